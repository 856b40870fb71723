#include "kernels/fixed_point.h"

#include <algorithm>

#include "kernels/element.h"
#include "kernels/unaligned.h"
#include "kernels/versions.h"

namespace luwu::kernels {

namespace {

constexpr float kQuietNan = std::bit_cast<float>(0x7FC00000U);

LUWU_INLINE float power_of_two(std::uint32_t biased_exponent) { return std::bit_cast<float>(biased_exponent << 23); }

// Exponents come from the network: one that no group can have is read as the nearest that one can.
LUWU_INLINE std::uint32_t usable(std::uint8_t exponent) {
    return std::max<std::uint32_t>(exponent, kFixedLeastExponent);
}

// Biased exponents of 2^(k + 126 - e) and of its inverse. Both are normal for every k and e there is.
LUWU_INLINE constexpr std::uint32_t encoding_exponent(std::uint32_t bits, std::uint32_t e) { return bits + 253 - e; }
LUWU_INLINE constexpr std::uint32_t decoding_exponent(std::uint32_t bits, std::uint32_t e) { return e + 1 - bits; }

constexpr std::uint32_t kFewestBits = fixed_bits(FixedForm::int16, kFixedMostWorkers);
constexpr std::uint32_t kMostBits = fixed_bits(FixedForm::int32, 1);
static_assert(encoding_exponent(kFewestBits, 254) >= 1 && encoding_exponent(kMostBits, kFixedLeastExponent) <= 254);
static_assert(decoding_exponent(kMostBits, kFixedLeastExponent) >= 1 && decoding_exponent(kFewestBits, 254) <= 254);

// The float that no mantissa may pass: 2^k - 1, or where that is no float, the largest float below 2^k. Only rounding
// up to 2^k has to be undone, which happens below 24 bits alone.
LUWU_INLINE float outermost(std::uint32_t bits) {
    if (bits <= 24) return static_cast<float>((1U << bits) - 1U);
    return std::bit_cast<float>(((bits + 127U) << 23) - 1U);
}

// Not a number gives `most`.
LUWU_INLINE float hold_within(float value, float most) {
    const float below = value < most ? value : most;
    return below > -most ? below : -most;
}

// Rounds to nearest, ties to even. Adding a number whose last place is worth one does so in every instruction set; the
// processors' own conversions have no form that all compilers vectorise.
template <class Mantissa>
LUWU_INLINE Mantissa nearest(float value);

template <>
LUWU_INLINE std::uint16_t nearest(float value) {
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value + 0x1.8p23F));
}

template <>
LUWU_INLINE std::uint32_t nearest(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const auto magnitude = static_cast<std::int32_t>(bits & 0x7FFFFFFFU);
    constexpr auto two_to_23 = std::bit_cast<std::int32_t>(0x1p23F);
    const std::int32_t number = magnitude < two_to_23 ? two_to_23 : 0;  // floats from there on are integers
    const auto with_sign = std::bit_cast<float>(static_cast<std::uint32_t>(number) | (bits & 0x80000000U));
    return static_cast<std::uint32_t>(static_cast<std::int32_t>((value + with_sign) - with_sign));
}

template <class Element>
struct Exponents {
    const std::byte* values;
    std::size_t elements;
    std::uint8_t* exponents;

    LUWU_INLINE void operator()() const {
        const std::size_t whole = elements / kFixedGroup;
        for (std::size_t group = 0; group < whole; ++group) exponents[group] = find(group, kFixedGroup);
        if (elements % kFixedGroup != 0) exponents[whole] = find(whole, elements % kFixedGroup);
    }

    LUWU_INLINE std::uint8_t find(std::size_t group, std::size_t count) const {
        const std::byte* const from = values + group * kFixedGroup * sizeof(Element);
        std::int32_t largest = 0;
        for (std::size_t i = 0; i < count; ++i) {
            const auto bits = std::bit_cast<std::int32_t>(widen(load_at<Element>(from, i)));
            largest = std::max(largest, bits & 0x7FFFFFFF);
        }
        if (largest == 0) return kFixedZero;
        return std::max(static_cast<std::uint8_t>(largest >> 23), kFixedLeastExponent);
    }
};

template <class Element, class Mantissa>
struct Encode {
    const std::byte* values;
    std::size_t elements;
    const std::uint8_t* exponents;
    std::uint32_t bits;
    std::byte* mantissas;

    LUWU_INLINE void operator()() const {
        const std::size_t whole = elements / kFixedGroup;
        for (std::size_t group = 0; group < whole; ++group) encode(group, kFixedGroup);
        if (elements % kFixedGroup != 0) encode(whole, elements % kFixedGroup);
    }

    LUWU_INLINE void encode(std::size_t group, std::size_t count) const {
        const std::uint8_t exponent = exponents[group];
        std::byte* const to = mantissas + group * kFixedGroup * sizeof(Mantissa);
        if (exponent == kFixedZero || exponent == kFixedNotFinite) {
            std::memset(to, 0, count * sizeof(Mantissa));
            return;
        }
        const float scale = power_of_two(encoding_exponent(bits, usable(exponent)));
        scale_all(values + group * kFixedGroup * sizeof(Element), to, count, scale, outermost(bits));
    }

    LUWU_INLINE static void scale_all(const std::byte* __restrict from, std::byte* __restrict to, std::size_t count,
                                      float scale, float most) {
        for (std::size_t i = 0; i < count; ++i) {
            const float scaled = widen(load_at<Element>(from, i)) * scale;
            store_at(to, i, nearest<Mantissa>(hold_within(scaled, most)));
        }
    }
};

template <class Mantissa>
struct Decode {
    const std::byte* mantissas;
    std::size_t elements;
    const std::uint8_t* exponents;
    std::uint32_t bits;
    float* values;

    LUWU_INLINE void operator()() const {
        const std::size_t whole = elements / kFixedGroup;
        for (std::size_t group = 0; group < whole; ++group) decode(group, kFixedGroup);
        if (elements % kFixedGroup != 0) decode(whole, elements % kFixedGroup);
    }

    LUWU_INLINE void decode(std::size_t group, std::size_t count) const {
        const std::uint8_t exponent = exponents[group];
        float* const to = values + group * kFixedGroup;
        if (exponent == kFixedNotFinite) {
            std::fill_n(to, count, kQuietNan);
            return;
        }
        const float scale = power_of_two(decoding_exponent(bits, usable(exponent)));
        scale_all(mantissas + group * kFixedGroup * sizeof(Mantissa), to, count, scale);
    }

    LUWU_INLINE static void scale_all(const std::byte* __restrict from, float* __restrict to, std::size_t count,
                                      float scale) {
        for (std::size_t i = 0; i < count; ++i) to[i] = static_cast<float>(load_at<Mantissa>(from, i)) * scale;
    }
};

LUWU_INLINE std::uint16_t add(std::uint16_t one, std::uint16_t two) { return static_cast<std::uint16_t>(one + two); }

LUWU_INLINE std::uint32_t add(std::uint32_t one, std::uint32_t two) { return one + two; }

// Adds. Any NaN becomes the quiet NaN, because of two NaNs the compiler is free to keep either.
LUWU_INLINE float add(float one, float two) {
    const float sum = one + two;
    return sum == sum ? sum : kQuietNan;
}

template <class Value>
struct Add {
    std::byte* sum;
    const std::byte* addend;
    std::size_t elements;

    LUWU_INLINE void operator()() const { add_all(sum, addend, elements); }

    LUWU_INLINE static void add_all(std::byte* __restrict to, const std::byte* __restrict from, std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) store_at(to, i, add(load_at<Value>(to, i), load_at<Value>(from, i)));
    }
};

struct Maximum {
    std::uint8_t* most;
    const std::uint8_t* others;
    std::size_t count;

    LUWU_INLINE void operator()() const { take_all(most, others, count); }

    LUWU_INLINE static void take_all(std::uint8_t* __restrict to, const std::uint8_t* __restrict from,
                                     std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) to[i] = std::max(to[i], from[i]);
    }
};

template <class Element>
void encode_from(InstructionSet set, const std::byte* values, std::size_t elements, const std::uint8_t* exponents,
                 FixedForm form, std::uint32_t workers, std::byte* mantissas) {
    const std::uint32_t bits = fixed_bits(form, workers);
    if (form == FixedForm::int16) {
        run_on(set, Encode<Element, std::uint16_t>{values, elements, exponents, bits, mantissas});
    } else {
        run_on(set, Encode<Element, std::uint32_t>{values, elements, exponents, bits, mantissas});
    }
}

}  // namespace

void versions::fixed_exponents(InstructionSet set, const void* values, Dtype dtype, std::size_t elements,
                               std::uint8_t* exponents) {
    const auto* const from = static_cast<const std::byte*>(values);
    with_element(dtype, [&]<class Element>() { run_on(set, Exponents<Element>{from, elements, exponents}); });
}

void versions::max_exponents(InstructionSet set, std::uint8_t* most, const std::uint8_t* others, std::size_t count) {
    run_on(set, Maximum{most, others, count});
}

void versions::fixed_encode(InstructionSet set, const void* values, Dtype dtype, std::size_t elements,
                            const std::uint8_t* exponents, FixedForm form, std::uint32_t workers, void* mantissas) {
    const auto* const from = static_cast<const std::byte*>(values);
    auto* const to = static_cast<std::byte*>(mantissas);
    with_element(dtype,
                 [&]<class Element>() { encode_from<Element>(set, from, elements, exponents, form, workers, to); });
}

void versions::fixed_decode(InstructionSet set, const void* mantissas, FixedForm form, std::size_t elements,
                            const std::uint8_t* exponents, std::uint32_t workers, float* values) {
    const auto* const from = static_cast<const std::byte*>(mantissas);
    const std::uint32_t bits = fixed_bits(form, workers);
    if (form == FixedForm::int16) {
        run_on(set, Decode<std::int16_t>{from, elements, exponents, bits, values});
    } else {
        run_on(set, Decode<std::int32_t>{from, elements, exponents, bits, values});
    }
}

void versions::add_mantissas(InstructionSet set, void* sum, const void* addend, FixedForm form, std::size_t elements) {
    auto* const to = static_cast<std::byte*>(sum);
    const auto* const from = static_cast<const std::byte*>(addend);
    if (form == FixedForm::int16) {
        run_on(set, Add<std::uint16_t>{to, from, elements});
    } else {
        run_on(set, Add<std::uint32_t>{to, from, elements});
    }
}

void versions::add_floats(InstructionSet set, void* sum, const void* addend, std::size_t elements) {
    run_on(set, Add<float>{static_cast<std::byte*>(sum), static_cast<const std::byte*>(addend), elements});
}

void fixed_exponents(const void* values, Dtype dtype, std::size_t elements, std::uint8_t* exponents) {
    versions::fixed_exponents(best_instruction_set(), values, dtype, elements, exponents);
}

void max_exponents(std::uint8_t* most, const std::uint8_t* others, std::size_t count) {
    versions::max_exponents(best_instruction_set(), most, others, count);
}

void fixed_encode(const void* values, Dtype dtype, std::size_t elements, const std::uint8_t* exponents, FixedForm form,
                  std::uint32_t workers, void* mantissas) {
    versions::fixed_encode(best_instruction_set(), values, dtype, elements, exponents, form, workers, mantissas);
}

void fixed_decode(const void* mantissas, FixedForm form, std::size_t elements, const std::uint8_t* exponents,
                  std::uint32_t workers, float* values) {
    versions::fixed_decode(best_instruction_set(), mantissas, form, elements, exponents, workers, values);
}

void add_mantissas(void* sum, const void* addend, FixedForm form, std::size_t elements) {
    versions::add_mantissas(best_instruction_set(), sum, addend, form, elements);
}

void add_floats(void* sum, const void* addend, std::size_t elements) {
    versions::add_floats(best_instruction_set(), sum, addend, elements);
}

}  // namespace luwu::kernels
