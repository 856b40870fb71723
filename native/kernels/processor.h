// The features of this processor, for kernels that have versions for several. Internal to the kernels.
//
// Asked for with the instruction itself: compilers' libraries that answer __builtin_cpu_supports are not in every build
// (that of zig, which wheels are built with, always says no).
#pragma once

namespace luwu::kernels {

struct Processor {
    bool avx2 = false;
    bool avx512 = false;      // avx512f, bw, dq and vl
    bool vpclmulqdq = false;  // with the registers of avx512
    bool crc32c = false;      // as an instruction
};

/// The processor that runs this; the operating system keeps the registers of all that is true.
[[nodiscard]] const Processor& processor();

}  // namespace luwu::kernels
