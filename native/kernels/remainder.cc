#include "kernels/remainder.h"

#include "kernels/halves.h"
#include "kernels/multiversion.h"
#include "kernels/versions.h"

namespace luwu::kernels {

namespace {

struct SplitMaster {
    const float* master;
    std::uint16_t* copy;
    std::uint16_t* remainder;
    std::size_t count;

    LUWU_INLINE void operator()() const { split_values(master, copy, remainder, count); }
};

struct JoinMaster {
    const std::uint16_t* copy;
    const std::uint16_t* remainder;
    float* master;
    std::size_t count;

    LUWU_INLINE void operator()() const { join_values(copy, remainder, master, count); }
};

}  // namespace

void versions::split_master(InstructionSet set, const float* master, std::uint16_t* copy, std::uint16_t* remainder,
                            std::size_t count) {
    run_on(set, SplitMaster{master, copy, remainder, count});
}

void versions::join_master(InstructionSet set, const std::uint16_t* copy, const std::uint16_t* remainder, float* master,
                           std::size_t count) {
    run_on(set, JoinMaster{copy, remainder, master, count});
}

void split_master(const float* master, std::uint16_t* copy, std::uint16_t* remainder, std::size_t count) {
    versions::split_master(best_instruction_set(), master, copy, remainder, count);
}

void join_master(const std::uint16_t* copy, const std::uint16_t* remainder, float* master, std::size_t count) {
    versions::join_master(best_instruction_set(), copy, remainder, master, count);
}

}  // namespace luwu::kernels
