// Compiles a kernel's body once for each instruction set. Internal to the kernels and their tests.
//
// A kernel is a struct whose call operator, and everything that calls, is always inlined; run_on() inlines it into a
// function with the wanted target, where the compiler vectorises it anew. No kernel fuses a multiply with an add or
// reorders floating point, so every version gives the same bits.
#pragma once

#include "kernels/instruction_set.h"

#if defined(__GNUC__) && !defined(__clang__) && !defined(__NO_MATH_ERRNO__)
#error "compile the kernels with -fno-math-errno: a square root that may set errno keeps a loop from being vectorised"
#endif

#define LUWU_INLINE [[gnu::always_inline]] inline

namespace luwu::kernels {

#if defined(__x86_64__)
#if defined(__clang__)
#define LUWU_AVX512 "avx512f,avx512bw,avx512dq,avx512vl"
#else
#define LUWU_AVX512 "avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"
#endif

template <class Kernel>
[[gnu::target("avx2")]] auto run_on_avx2(const Kernel& kernel) {
    return kernel();
}

template <class Kernel>
[[gnu::target(LUWU_AVX512)]] auto run_on_avx512(const Kernel& kernel) {
    return kernel();
}
#endif

/// Runs the version of `kernel` compiled for `set`, which must be available.
template <class Kernel>
auto run_on(InstructionSet set, const Kernel& kernel) {
#if defined(__x86_64__)
    if (set == InstructionSet::avx512) return run_on_avx512(kernel);
    if (set == InstructionSet::avx2) return run_on_avx2(kernel);
#else
    static_cast<void>(set);
#endif
    return kernel();
}

}  // namespace luwu::kernels
