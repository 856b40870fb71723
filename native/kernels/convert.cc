#include "kernels/convert.h"

#include "kernels/element.h"
#include "kernels/versions.h"

namespace luwu::kernels {

namespace {

struct ToBfloat16 {
    const float* source;
    std::uint16_t* target;
    std::size_t count;

    LUWU_INLINE void operator()() const { narrow_all(source, target, count); }

    LUWU_INLINE static void narrow_all(const float* __restrict from, std::uint16_t* __restrict to, std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) to[i] = narrow(from[i]);
    }
};

struct ToFloat {
    const std::uint16_t* source;
    float* target;
    std::size_t count;

    LUWU_INLINE void operator()() const { widen_all(source, target, count); }

    LUWU_INLINE static void widen_all(const std::uint16_t* __restrict from, float* __restrict to, std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) to[i] = widen(from[i]);
    }
};

}  // namespace

void versions::float_to_bfloat16(InstructionSet set, const float* source, std::uint16_t* target, std::size_t count) {
    run_on(set, ToBfloat16{source, target, count});
}

void versions::bfloat16_to_float(InstructionSet set, const std::uint16_t* source, float* target, std::size_t count) {
    run_on(set, ToFloat{source, target, count});
}

void float_to_bfloat16(const float* source, std::uint16_t* target, std::size_t count) {
    versions::float_to_bfloat16(best_instruction_set(), source, target, count);
}

void bfloat16_to_float(const std::uint16_t* source, float* target, std::size_t count) {
    versions::bfloat16_to_float(best_instruction_set(), source, target, count);
}

}  // namespace luwu::kernels
