// Common parts of the tests of block floating point: packets at any address, and the definition in double precision.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/fixed_point.h"

namespace luwu::kernels {

inline constexpr std::size_t kLongest = 200;
inline constexpr float kLargest = std::numeric_limits<float>::max();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kLeastDenormal = std::numeric_limits<float>::denorm_min();
inline constexpr std::uint32_t kQuietNan = 0x7FC00000;

// A buffer as a packet holds it: at any address, with a margin on either side that nobody may touch.
class Packet {
  public:
    Packet(std::size_t bytes, std::size_t misalignment)
        : bytes_(bytes), begin_(64 + misalignment), contents_(begin_ + bytes + 64, std::byte{0x5A}) {}

    template <class Value>
    Packet(const std::vector<Value>& values, std::size_t misalignment)
        : Packet(values.size() * sizeof(Value), misalignment) {
        if (bytes_ != 0) std::memcpy(data(), values.data(), bytes_);
    }

    [[nodiscard]] std::byte* data() { return contents_.data() + begin_; }

    template <class Value>
    [[nodiscard]] Value value(std::size_t i) const {
        Value value;
        std::memcpy(&value, contents_.data() + begin_ + i * sizeof value, sizeof value);
        return value;
    }

    [[nodiscard]] std::int64_t mantissa(FixedForm form, std::size_t i) const {
        return form == FixedForm::int16 ? std::int64_t{value<std::int16_t>(i)} : std::int64_t{value<std::int32_t>(i)};
    }

    [[nodiscard]] bool margins_are_whole() const {
        const auto untouched = [](std::byte byte) { return byte == std::byte{0x5A}; };
        const auto end = contents_.begin() + static_cast<std::ptrdiff_t>(begin_ + bytes_);
        return std::all_of(contents_.begin(), contents_.begin() + static_cast<std::ptrdiff_t>(begin_), untouched) &&
               std::all_of(end, contents_.end(), untouched);
    }

    bool operator==(const Packet& other) const { return contents_ == other.contents_; }

  private:
    std::size_t bytes_;
    std::size_t begin_;
    std::vector<std::byte> contents_;
};

inline std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

// Values of all magnitudes from `lowest` to `highest` (powers of two) and of both signs, a seventh of them zero.
inline std::vector<float> spread_floats(std::size_t count, std::uint32_t seed, int lowest, int highest) {
    std::mt19937 generator(seed);
    std::uniform_real_distribution<float> fraction(-1.0F, 1.0F);
    std::uniform_int_distribution<int> exponent(lowest, highest);
    std::vector<float> values(count);
    for (float& value : values) {
        value = generator() % 7 == 0 ? 0.0F : std::ldexp(fraction(generator), exponent(generator));
    }
    return values;
}

inline std::uint8_t reference_exponent(const float* values, std::size_t count) {
    float largest = 0;
    for (std::size_t i = 0; i < count; ++i) {
        if (!std::isfinite(values[i])) return 255;
        largest = std::max(largest, std::abs(values[i]));
    }
    if (largest == 0) return 0;
    return static_cast<std::uint8_t>(std::max(32, std::ilogb(largest) + 127));
}

inline std::vector<std::uint8_t> reference_exponents(const std::vector<float>& values) {
    std::vector<std::uint8_t> exponents;
    for (std::size_t first = 0; first < values.size(); first += kFixedGroup) {
        exponents.push_back(reference_exponent(values.data() + first, std::min(kFixedGroup, values.size() - first)));
    }
    return exponents;
}

inline std::int64_t reference_mantissa(float value, int exponent, int bits) {
    if (exponent == 0 || exponent == 255) return 0;
    const double most = std::ldexp(1.0, bits) - 1;
    const double scaled = std::nearbyint(std::ldexp(static_cast<double>(value), bits + 126 - exponent));
    return static_cast<std::int64_t>(std::clamp(scaled, -most, most));
}

inline float reference_value(std::int64_t mantissa, int exponent, int bits) {
    return exponent == 255 ? kNan : std::ldexp(static_cast<float>(mantissa), exponent - 126 - bits);
}

inline int bits_for(FixedForm form, std::uint32_t workers) { return static_cast<int>(fixed_bits(form, workers)); }

// Passes one group, or several, through every stage on one worker.
inline Packet encode(const std::vector<float>& values, const std::vector<std::uint8_t>& exponents, FixedForm form,
                     std::uint32_t workers) {
    Packet mantissas(values.size() * size_of(form), 0);
    fixed_encode(values.data(), Dtype::float32, values.size(), exponents.data(), form, workers, mantissas.data());
    return mantissas;
}

inline std::vector<float> decode(Packet mantissas, const std::vector<std::uint8_t>& exponents, FixedForm form,
                                 std::uint32_t workers, std::size_t elements) {
    std::vector<float> values(elements);
    fixed_decode(mantissas.data(), form, elements, exponents.data(), workers, values.data());
    return values;
}

}  // namespace luwu::kernels
