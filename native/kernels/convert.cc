#include "kernels/convert.h"

#include "kernels/element.h"
#include "kernels/versions.h"

namespace luwu::kernels {

namespace {

template <class Low>
struct Narrow {
    const float* source;
    std::uint16_t* target;
    std::size_t count;

    LUWU_INLINE void operator()() const { narrow_all(source, target, count); }

    LUWU_INLINE static void narrow_all(const float* __restrict from, std::uint16_t* __restrict to, std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) to[i] = static_cast<std::uint16_t>(narrow<Low>(from[i]));
    }
};

template <class Low>
struct Widen {
    const std::uint16_t* source;
    float* target;
    std::size_t count;

    LUWU_INLINE void operator()() const { widen_all(source, target, count); }

    LUWU_INLINE static void widen_all(const std::uint16_t* __restrict from, float* __restrict to, std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) to[i] = widen(static_cast<Low>(from[i]));
    }
};

}  // namespace

void versions::float_to_low(InstructionSet set, Dtype dtype, const float* source, std::uint16_t* target,
                            std::size_t count) {
    if (dtype == Dtype::float16) {
        run_on(set, Narrow<Float16>{source, target, count});
    } else {
        run_on(set, Narrow<Bfloat16>{source, target, count});
    }
}

void versions::low_to_float(InstructionSet set, Dtype dtype, const std::uint16_t* source, float* target,
                            std::size_t count) {
    if (dtype == Dtype::float16) {
        run_on(set, Widen<Float16>{source, target, count});
    } else {
        run_on(set, Widen<Bfloat16>{source, target, count});
    }
}

void float_to_low(Dtype dtype, const float* source, std::uint16_t* target, std::size_t count) {
    versions::float_to_low(best_instruction_set(), dtype, source, target, count);
}

void low_to_float(Dtype dtype, const std::uint16_t* source, float* target, std::size_t count) {
    versions::low_to_float(best_instruction_set(), dtype, source, target, count);
}

}  // namespace luwu::kernels
