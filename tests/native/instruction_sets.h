// The instruction sets that a kernel's versions are compared in.
#pragma once

#include <vector>

#include "kernels/instruction_set.h"

namespace luwu::kernels {

inline std::vector<InstructionSet> available_sets() {
    std::vector<InstructionSet> sets;
    for (const InstructionSet set : {InstructionSet::base, InstructionSet::avx2, InstructionSet::avx512}) {
        if (is_available(set)) sets.push_back(set);
    }
    return sets;
}

}  // namespace luwu::kernels
