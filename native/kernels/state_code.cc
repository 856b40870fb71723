#include "kernels/state_code.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "kernels/unaligned.h"
#include "kernels/versions.h"

namespace luwu::kernels {

namespace {

// A magnitude y is coded by the upper bits of the float 1 + y: steps of equal size below 1, and above as many for each
// power of two. Zero is code 0, and the top code is the group's largest magnitude.
constexpr std::uint32_t kOneBits = std::bit_cast<std::uint32_t>(1.0F);
constexpr std::uint32_t kMagnitude = 0x7FFFFFFF;
constexpr float kLeastScale = 0x1p-100F;  // what is smaller counts as zero: no number on the way is subnormal

template <bool is_root>
struct Code {
    static constexpr std::uint32_t kDropped = is_root ? 19 : 20;  // bits of the float that the code does not have
    static constexpr std::uint32_t kTop = is_root ? 255 : 127;
    static constexpr float kRange = std::bit_cast<float>(kOneBits + (kTop << kDropped)) - 1.0F;  // y of the top code
};

// Point between two codes from which a value is rounded up: a sequence that fills [0, 1) evenly over places and over
// steps alike (Roberts, The Unreasonable Effectiveness of Quasirandom Sequences, 2018), as a 32-bit fraction.
constexpr std::uint32_t kAcrossPlaces = 0x91E10DA5;
constexpr std::uint32_t kAcrossSteps = 0xC13FA9A9;

template <bool is_root>
struct Encode {
    const float* values;
    std::byte* plane;
    std::size_t elements;
    std::uint32_t t;

    LUWU_INLINE void operator()() const {
        std::byte* cell = plane;
        for (std::size_t first = 0; first < elements; first += kCellElements, cell += kCellBytes) {
            for (std::size_t group = 0; group < kCellScales; ++group) {
                const std::size_t start = std::min(first + group * kScaleElements, elements);
                const std::size_t count = std::min(kScaleElements, elements - start);
                encode_group(values + start, count, group, cell);
            }
        }
    }

    LUWU_INLINE void encode_group(const float* from, std::size_t count, std::size_t group, std::byte* cell) const {
        alignas(64) std::array<float, kScaleElements> roots;
        alignas(64) std::array<std::uint8_t, kScaleElements> codes;
        if (count == kScaleElements) {
            take(from, roots.data(), kScaleElements);
        } else {
            take(from, roots.data(), count);
            std::fill(roots.begin() + static_cast<std::ptrdiff_t>(count), roots.end(), 0.0F);
        }
        const float scale = largest(roots.data());
        const auto place = static_cast<std::uint32_t>(group * kScaleElements);
        const std::uint32_t turn = t * kAcrossSteps + place * kAcrossPlaces + (is_root ? 0x80000000U : 0U);
        write(roots.data(), codes.data(), scale > 0.0F ? Code<is_root>::kRange / scale : 0.0F, turn);
        store_at(cell, group, scale);
        std::memcpy(cell + kCellScales * sizeof(float) + group * kScaleElements, codes.data(), codes.size());
    }

    LUWU_INLINE static void take(const float* __restrict from, float* __restrict to, std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) to[i] = is_root ? __builtin_sqrtf(from[i]) : from[i];
    }

    LUWU_INLINE static float largest(const float* __restrict from) {
        std::uint32_t most = 0;
        for (std::size_t i = 0; i < kScaleElements; ++i) {
            most = std::max(most, std::bit_cast<std::uint32_t>(from[i]) & kMagnitude);
        }
        const auto scale = std::bit_cast<float>(most);
        return scale < kLeastScale ? 0.0F : scale;
    }

    LUWU_INLINE static void write(const float* __restrict from, std::uint8_t* __restrict to, float factor,
                                  std::uint32_t turn) {
        using By = Code<is_root>;
        for (std::size_t i = 0; i < kScaleElements; ++i) {
            const auto bits = std::bit_cast<std::uint32_t>(from[i]);
            const float y = std::bit_cast<float>(bits & kMagnitude) * factor;
            const std::uint32_t up = (turn + static_cast<std::uint32_t>(i) * kAcrossPlaces) >> (32 - By::kDropped);
            const std::uint32_t above = std::bit_cast<std::uint32_t>(y + 1.0F) - kOneBits + up;
            std::uint32_t code = std::min(above >> By::kDropped, By::kTop);
            if constexpr (is_root) {
                code |= static_cast<std::uint32_t>((code == 0) & (bits != 0));  // a divisor must not become 0
            } else {
                code |= (bits >> 31) << 7;
            }
            to[i] = static_cast<std::uint8_t>(code);
        }
    }
};

template <bool is_root>
struct Decode {
    const std::byte* plane;
    float* values;
    std::size_t elements;

    LUWU_INLINE void operator()() const {
        const std::byte* cell = plane;
        for (std::size_t first = 0; first < elements; first += kCellElements, cell += kCellBytes) {
            const std::byte* const codes = cell + kCellScales * sizeof(float);
            for (std::size_t group = 0; group < kCellScales; ++group) {
                const std::size_t start = std::min(first + group * kScaleElements, elements);
                const std::size_t count = std::min(kScaleElements, elements - start);
                const float step = load_at<float>(cell, group) * (1.0F / Code<is_root>::kRange);
                const auto* const from = reinterpret_cast<const std::uint8_t*>(codes + group * kScaleElements);
                if (count == kScaleElements) {
                    read(from, values + start, kScaleElements, step);
                } else {
                    read(from, values + start, count, step);
                }
            }
        }
    }

    LUWU_INLINE static void read(const std::uint8_t* __restrict from, float* __restrict to, std::size_t count,
                                 float step) {
        using By = Code<is_root>;
        for (std::size_t i = 0; i < count; ++i) {
            const std::uint32_t code = from[i];
            const float y = std::bit_cast<float>(kOneBits + ((code & By::kTop) << By::kDropped)) - 1.0F;
            const float value = y * step;
            if constexpr (is_root) {
                to[i] = value * value;
            } else {
                to[i] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | ((code >> 7) << 31));
            }
        }
    }
};

}  // namespace

void versions::encode(InstructionSet set, StateCode code, const float* values, std::byte* plane, std::size_t elements,
                      std::uint64_t t) {
    const auto turn = static_cast<std::uint32_t>(t);
    if (code == StateCode::root_8bit) {
        run_on(set, Encode<true>{values, plane, elements, turn});
    } else {
        run_on(set, Encode<false>{values, plane, elements, turn});
    }
}

void versions::decode(InstructionSet set, StateCode code, const std::byte* plane, float* values, std::size_t elements) {
    if (code == StateCode::root_8bit) {
        run_on(set, Decode<true>{plane, values, elements});
    } else {
        run_on(set, Decode<false>{plane, values, elements});
    }
}

void encode(StateCode code, const float* values, std::byte* plane, std::size_t elements, std::uint64_t t) {
    versions::encode(best_instruction_set(), code, values, plane, elements, t);
}

void decode(StateCode code, const std::byte* plane, float* values, std::size_t elements) {
    versions::decode(best_instruction_set(), code, plane, values, elements);
}

}  // namespace luwu::kernels
