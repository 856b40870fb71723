// Choice of the kernels' compiled version for this processor.
#pragma once

namespace luwu::kernels {

/// `base` is what the compiler may assume of every processor of the architecture: SSE2, or NEON on 64-bit Arm.
enum class InstructionSet { base, avx2, avx512 };

/// True if this processor, and this build, can run that version.
[[nodiscard]] bool is_available(InstructionSet set);

/// The best available one; the kernels' choice.
[[nodiscard]] InstructionSet best_instruction_set();

/// The choice by name: "avx512", "avx2", "sse2", "neon" or "base".
[[nodiscard]] const char* instruction_set();

}  // namespace luwu::kernels
