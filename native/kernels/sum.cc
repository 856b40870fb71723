#include "kernels/sum.h"

#include <cstdint>

#include "kernels/gather.h"
#include "kernels/stream.h"
#include "kernels/versions.h"

namespace luwu::kernels {

namespace {

template <class Element>
struct Sum {
    float* out;
    const Gradients& gradients;
    std::size_t elements;

    LUWU_INLINE void operator()() const {
        std::size_t start = 0;
        for (; start + kGroupElements <= elements; start += kGroupElements) sum_group(start, kGroupElements);
        sum_group(start, elements - start);
        finish_stores();
    }

    LUWU_INLINE void sum_group(std::size_t start, std::size_t count) const {
        alignas(64) float sum[kGroupElements];
        gather<Element>(sum, gradients, start, count);
        for (std::size_t i = 0; i < count; ++i) sum[i] *= gradients.scale;
        store_past_cache(out + start, sum, count);
    }
};

}  // namespace

void versions::sum_gradients(InstructionSet set, float* out, const Gradients& gradients, std::size_t elements) {
    with_element(gradients.dtype, [&]<class Element>() { run_on(set, Sum<Element>{out, gradients, elements}); });
}

void sum_gradients(float* out, const Gradients& gradients, std::size_t elements) {
    versions::sum_gradients(best_instruction_set(), out, gradients, elements);
}

}  // namespace luwu::kernels
