// What tests of kernels share: values, gradients of several workers at any alignment, and reference conversions.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "instruction_sets.h"
#include "kernels/convert.h"
#include "kernels/gradients.h"

namespace luwu::kernels {

inline constexpr std::size_t kLongest = 200;
inline constexpr std::size_t kMisalignments = 5;  // in elements
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

inline std::vector<float> random_floats(std::size_t count, std::uint32_t seed, float low = -1.0F, float high = 1.0F) {
    std::mt19937 generator(seed);
    std::uniform_real_distribution<float> distribution(low, high);
    std::vector<float> values(count);
    for (float& value : values) value = distribution(generator);
    return values;
}

inline std::uint16_t reference_bfloat16(float value) {
    if (std::isnan(value)) return 0xFFFF;
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t below = bits & 0xFFFFU;
    const bool up = below > 0x8000U || (below == 0x8000U && ((bits >> 16) & 1U) != 0);
    return static_cast<std::uint16_t>((bits >> 16) + (up ? 1U : 0U));
}

inline float as_float(std::uint16_t bfloat16) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bfloat16) << 16);
}

template <class Element>
bool same_bits(const std::vector<Element>& one, const std::vector<Element>& two) {
    return one.size() == two.size() && std::memcmp(one.data(), two.data(), one.size() * sizeof(Element)) == 0;
}

// Gradients of several workers in one dtype, each buffer off its alignment by some elements.
class Workers {
  public:
    Workers(std::size_t count, Dtype dtype, std::size_t elements, std::size_t misalignment) : dtype_(dtype) {
        for (std::size_t worker = 0; worker < count; ++worker) {
            floats_.push_back(random_floats(misalignment + elements, static_cast<std::uint32_t>(worker + 1)));
            halves_.emplace_back(floats_.back().size());
            float_to_bfloat16(floats_.back().data(), halves_.back().data(), halves_.back().size());
        }
        for (std::size_t worker = 0; worker < count; ++worker) {
            const void* const whole = dtype == Dtype::float32 ? static_cast<const void*>(floats_[worker].data())
                                                              : static_cast<const void*>(halves_[worker].data());
            buffers_.push_back(static_cast<const std::byte*>(whole) + misalignment * size_of(dtype));
        }
    }

    [[nodiscard]] Gradients gradients() const {
        return {buffers_.data(), buffers_.size(), dtype_, 1.0F / static_cast<float>(buffers_.size())};
    }

    [[nodiscard]] float value(std::size_t worker, std::size_t i) const {
        if (dtype_ == Dtype::float32) return static_cast<const float*>(buffers_[worker])[i];
        return as_float(static_cast<const std::uint16_t*>(buffers_[worker])[i]);
    }

    [[nodiscard]] float sum(std::size_t i) const {
        float total = value(0, i);
        for (std::size_t worker = 1; worker < buffers_.size(); ++worker) total += value(worker, i);
        return total * gradients().scale;
    }

  private:
    Dtype dtype_;
    std::vector<std::vector<float>> floats_;
    std::vector<std::vector<std::uint16_t>> halves_;
    std::vector<const void*> buffers_;
};

}  // namespace luwu::kernels
