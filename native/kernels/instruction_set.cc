#include "kernels/instruction_set.h"

#include "kernels/processor.h"

namespace luwu::kernels {

bool is_available(InstructionSet set) {
#if defined(__x86_64__)
    if (set == InstructionSet::avx2) return processor().avx2;
    if (set == InstructionSet::avx512) return processor().avx512;
#endif
    return set == InstructionSet::base;
}

InstructionSet best_instruction_set() {
    static const InstructionSet best = is_available(InstructionSet::avx512) ? InstructionSet::avx512
                                       : is_available(InstructionSet::avx2) ? InstructionSet::avx2
                                                                            : InstructionSet::base;
    return best;
}

const char* instruction_set() {
    switch (best_instruction_set()) {
        case InstructionSet::avx512:
            return "avx512";
        case InstructionSet::avx2:
            return "avx2";
        case InstructionSet::base:
            break;
    }
#if defined(__x86_64__)
    return "sse2";
#elif defined(__aarch64__)
    return "neon";
#else
    return "base";
#endif
}

}  // namespace luwu::kernels
