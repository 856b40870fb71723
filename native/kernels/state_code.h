// Codes of the numbers in one plane of a chunk's optimizer states: floats, or fewer bytes. docs/optimizers.md defines
// the codes of 8 bits and says why.
#pragma once

#include <cstddef>
#include <cstdint>

namespace luwu::kernels {

enum class StateCode : std::uint8_t {
    float32,
    remainder,    // of a master whose bfloat16 copy is kept as well: the 16 bits that the copy lacks (remainder.h)
    signed_8bit,  // one byte each, by the largest of 256
    root_8bit,    // as that, for numbers that are never negative: the code of their roots
};

/// Numbers that share a scale, the largest magnitude among them (a block of Dettmers et al., 2022).
inline constexpr std::size_t kScaleElements = 256;

/// A plane of 8 bits is a row of cells: the scales of one, then its codes; the last one is filled up with zeros.
inline constexpr std::size_t kCellElements = 2048;
inline constexpr std::size_t kCellScales = kCellElements / kScaleElements;
inline constexpr std::size_t kCellBytes = kCellScales * sizeof(float) + kCellElements;

/// Bytes of a plane of `elements`, without padding.
[[nodiscard]] constexpr std::uint64_t plane_bytes(StateCode code, std::uint64_t elements) {
    if (code == StateCode::float32) return elements * sizeof(float);
    if (code == StateCode::remainder) return elements * sizeof(std::uint16_t);
    return (elements + kCellElements - 1) / kCellElements * kCellBytes;
}

/// Writes `elements` values to a plane of 8 bits, from the beginning of a cell on. `t` counts the plane's updates: with
/// the place in a cell it decides which way a value between two codes is rounded, so the same values give the same bits
/// on every instruction set, and a value's mean over many steps is right.
void encode(StateCode code, const float* values, std::byte* plane, std::size_t elements, std::uint64_t t);

/// Inverse of encode(). A plane of zero bytes gives zeros.
void decode(StateCode code, const std::byte* plane, float* values, std::size_t elements);

}  // namespace luwu::kernels
