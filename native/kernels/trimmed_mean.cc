#include "kernels/trimmed_mean.h"

#include <limits>

#include "kernels/gather.h"
#include "kernels/versions.h"

namespace luwu::kernels {

namespace {

// Moves the smaller of each two values to `low` and the other one to `high`.
LUWU_INLINE void exchange(float* __restrict low, float* __restrict high) {
    for (std::size_t i = 0; i < kGroupElements; ++i) {
        const bool swaps = high[i] < low[i];
        const float smaller = swaps ? high[i] : low[i];
        high[i] = swaps ? low[i] : high[i];
        low[i] = smaller;
    }
}

template <class Element>
struct TrimmedMean {
    float* out;
    const Gradients& gradients;
    std::size_t trims;
    std::size_t elements;

    LUWU_INLINE void operator()() const {
        std::size_t start = 0;
        for (; start + kGroupElements <= elements; start += kGroupElements) group(start, kGroupElements);
        if (start < elements) group(start, elements - start);
    }

    // One row for each worker; each column is sorted from both ends as far as values are left out.
    LUWU_INLINE void group(std::size_t start, std::size_t count) const {
        alignas(64) float rows[kMostTrimmed][kGroupElements];
        const std::size_t workers = gradients.count;
        for (std::size_t worker = 0; worker < workers; ++worker) {
            const Element* const gradient = gradient_at<Element>(gradients, worker, start);
            prefetch_group(gradient);
            for (std::size_t i = 0; i < count; ++i) {
                const float value = widen(gradient[i]);
                rows[worker][i] = value != value ? std::numeric_limits<float>::infinity() : value;
            }
            for (std::size_t i = count; i < kGroupElements; ++i) rows[worker][i] = 0;
        }
        for (std::size_t done = 0; done < trims; ++done) {
            for (std::size_t row = done; row + 1 < workers - done; ++row) exchange(rows[row], rows[row + 1]);
            for (std::size_t row = workers - done - 1; row-- > done + 1;) exchange(rows[row - 1], rows[row]);
        }
        const float share = 1.0F / static_cast<float>(workers - 2 * trims);
        for (std::size_t i = 0; i < count; ++i) {
            float sum = rows[trims][i];
            for (std::size_t row = trims + 1; row < workers - trims; ++row) sum += rows[row][i];
            out[start + i] = sum * share;
        }
    }
};

}  // namespace

void versions::trimmed_mean(InstructionSet set, float* out, const Gradients& gradients, std::size_t trims,
                            std::size_t elements) {
    with_element(gradients.dtype,
                 [&]<class Element>() { run_on(set, TrimmedMean<Element>{out, gradients, trims, elements}); });
}

void trimmed_mean(float* out, const Gradients& gradients, std::size_t trims, std::size_t elements) {
    versions::trimmed_mean(best_instruction_set(), out, gradients, trims, elements);
}

}  // namespace luwu::kernels
