// Common parts of the kernels' tests: values, gradients of several workers at any alignment, and reference conversions.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "instruction_sets.h"
#include "kernels/gradients.h"

namespace luwu::kernels {

inline constexpr std::array kDtypesToTest{Dtype::float32, Dtype::bfloat16, Dtype::float16};
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

// From the definition: sign, 5 bits of exponent, 10 of mantissa; a NaN keeps its payload and becomes quiet.
inline float reference_widened(std::uint16_t float16) {
    const std::uint32_t sign = (float16 & 0x8000U) << 16;
    const int exponent = float16 >> 10 & 0x1F;
    const std::uint32_t mantissa = float16 & 0x3FFU;
    if (exponent == 31) {
        const std::uint32_t payload = mantissa == 0 ? 0 : 0x00400000U | mantissa << 13;
        return std::bit_cast<float>(sign | 0x7F800000U | payload);
    }
    const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(static_cast<float>(magnitude)) | sign);
}

// The nearest float16 by looking for it: magnitudes ascend with their bits, and 65536 is the place of infinity.
inline std::uint16_t reference_float16(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000U);
    if (std::isnan(value)) return static_cast<std::uint16_t>(sign | 0x7E00U | (bits >> 13 & 0x3FFU));
    const double magnitude = std::abs(double{value});
    const auto place = [](std::uint32_t half) {
        return half == 0x7C00U ? 65536.0 : double{reference_widened(static_cast<std::uint16_t>(half))};
    };
    std::uint32_t below = 0;
    for (std::uint32_t step = 0x4000U; step != 0; step /= 2) {
        if (below + step <= 0x7C00U && place(below + step) <= magnitude) below += step;
    }
    if (below == 0x7C00U) return static_cast<std::uint16_t>(sign | below);
    const double down = magnitude - place(below);
    const double up = place(below + 1) - magnitude;
    const bool rounds_up = up < down || (up == down && below % 2 == 1);
    return static_cast<std::uint16_t>(sign | (below + (rounds_up ? 1U : 0U)));
}

inline std::uint16_t reference_low(Dtype dtype, float value) {
    return dtype == Dtype::float16 ? reference_float16(value) : reference_bfloat16(value);
}

inline float as_float(Dtype dtype, std::uint16_t low) {
    if (dtype == Dtype::float16) return reference_widened(low);
    return std::bit_cast<float>(static_cast<std::uint32_t>(low) << 16);
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
            for (std::size_t i = 0; i < halves_.back().size(); ++i) {
                halves_.back()[i] = reference_low(dtype, floats_.back()[i]);
            }
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
        return as_float(dtype_, static_cast<const std::uint16_t*>(buffers_[worker])[i]);
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
