#include "kernels/remainder.h"

#include <bit>

#include "kernels/multiversion.h"
#include "kernels/versions.h"

namespace luwu::kernels {

namespace {

struct SplitMaster {
    const float* master;
    std::uint16_t* copy;
    std::uint16_t* remainder;
    std::size_t count;

    LUWU_INLINE void operator()() const { split(master, copy, remainder, count); }

    LUWU_INLINE static void split(const float* __restrict from, std::uint16_t* __restrict upper,
                                  std::uint16_t* __restrict lower, std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) {
            const auto bits = std::bit_cast<std::uint32_t>(from[i]);
            const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
            upper[i] = static_cast<std::uint16_t>(is_nan ? 0xFFFFU : (bits + 0x8000U) >> 16);
            lower[i] = static_cast<std::uint16_t>(is_nan ? 0U : bits);
        }
    }
};

struct JoinMaster {
    const std::uint16_t* copy;
    const std::uint16_t* remainder;
    float* master;
    std::size_t count;

    LUWU_INLINE void operator()() const { join(copy, remainder, master, count); }

    LUWU_INLINE static void join(const std::uint16_t* __restrict upper, const std::uint16_t* __restrict lower,
                                 float* __restrict to, std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) {
            const std::uint32_t rounded_up = std::uint32_t{lower[i]} >> 15 << 16;
            to[i] = std::bit_cast<float>((std::uint32_t{upper[i]} << 16) - rounded_up + lower[i]);
        }
    }
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
