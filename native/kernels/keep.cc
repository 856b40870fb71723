#include "kernels/keep.h"

#include <array>

#include "kernels/gather.h"
#include "kernels/stream.h"
#include "kernels/versions.h"

namespace luwu::kernels {

namespace {

/// Sums of squares, one for each place of a group. They are added up in the order of the places at the end.
struct Squares {
    std::array<double, kGroupElements> sums{};

    LUWU_INLINE void add(const float* __restrict gradients, std::size_t elements, float scale) {
        for (std::size_t i = 0; i < elements; ++i) {
            const auto gradient = static_cast<double>(gradients[i] * scale);
            sums[i] += gradient * gradient;
        }
    }

    [[nodiscard]] LUWU_INLINE double total() const {
        double total = 0;
        for (const double sum : sums) total += sum;
        return total;
    }
};

template <bool gathers, class Element>
struct Keep {
    void* kept;
    const Gradients& gradients;
    std::size_t elements;

    LUWU_INLINE double operator()() const {
        Squares squares;
        std::size_t start = 0;
        for (; start + kGroupElements <= elements; start += kGroupElements) keep_group(start, kGroupElements, squares);
        keep_group(start, elements - start, squares);
        finish_stores();
        return squares.total();
    }

    LUWU_INLINE void keep_group(std::size_t start, std::size_t count, Squares& squares) const {
        alignas(64) float sum[kGroupElements];
        gather<Element>(sum, gradients, start, count);
        squares.add(sum, count, gradients.scale);
        if constexpr (gathers) {
            store_past_cache(static_cast<float*>(kept) + start, sum, count);
        } else {
            Element* const out = static_cast<Element*>(kept) + start;
            const Element* const gradient = gradient_at<Element>(gradients, 0, start);
            for (std::size_t i = 0; i < count; ++i) out[i] = gradient[i];
        }
    }
};

}  // namespace

double versions::keep_gradients(InstructionSet set, void* kept, const Gradients& gradients, std::size_t elements) {
    return with_element(gradients.dtype, [&]<class Element>() {
        if (gradients.count == 1) return run_on(set, Keep<false, Element>{kept, gradients, elements});
        return run_on(set, Keep<true, Element>{kept, gradients, elements});
    });
}

double keep_gradients(void* kept, const Gradients& gradients, std::size_t elements) {
    return versions::keep_gradients(best_instruction_set(), kept, gradients, elements);
}

}  // namespace luwu::kernels
