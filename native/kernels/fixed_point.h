// Block floating point: gradients as integers that switches can add in any order and get the same sum.
//
// A group of consecutive values shares an exponent byte e; each value x is sent as the mantissa nearest to
// x * 2^(k + 126 - e), k being fixed_bits(). Every |x| is below 2^(e - 126), so every |mantissa| is below 2^k, and k
// leaves room for the sum of all workers. All of them must encode with one exponent, the greatest any of them has:
// fixed_exponents(), max_exponents() over the workers, then fixed_encode(). The method is that of Sapio et al.,
// "Scaling Distributed Machine Learning with In-Network Aggregation" (NSDI 2021), with a power of two for each group as
// scale.
//
// Where A is the largest magnitude of a group among N workers, a worker's value is off by at most 2^-k * A, and so the
// decoded sum by at most N * 2^-k * A, plus half a unit in the last place where a sum of `int32` takes more than the 24
// bits of a float. Groups with A below 2^-95 are encoded as though A were 2^-95, and lose low bits; in return every
// factor is a normal float, and neither mantissas nor decoded sums depend on how the processor treats denormals.
//
// Pointers to `void` need no alignment; mantissas and exponents are in the processor's byte order, little-endian on x86
// and Arm. No two buffers of a call may overlap. All results are the same on every processor.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

namespace luwu::kernels {

/// Form in which a mantissa is sent; the value is its size in bytes.
enum class FixedForm : std::uint8_t { int16 = 2, int32 = 4 };

/// Elements that share an exponent. The last group of a buffer may be shorter.
inline constexpr std::size_t kFixedGroup = 32;

/// Exponent bytes with a meaning of their own: all values are zero; some value is infinite or not a number.
inline constexpr std::uint8_t kFixedZero = 0;
inline constexpr std::uint8_t kFixedNotFinite = 255;

/// The least exponent of a group that is not all zero: that of magnitudes from 2^-95 up to 2^-94.
inline constexpr std::uint8_t kFixedLeastExponent = 32;

/// The most workers that can be summed: 2 bits of a mantissa remain in `int16`. With one bit the scale of the largest
/// exponent would be 2^-127, no longer a normal float.
inline constexpr std::uint32_t kFixedMostWorkers = 8192;

/// Bytes of one mantissa.
constexpr std::size_t size_of(FixedForm form) { return static_cast<std::size_t>(form); }

/// Groups, and so exponent bytes, of a buffer of `elements`.
constexpr std::size_t fixed_groups(std::size_t elements) { return (elements + kFixedGroup - 1) / kFixedGroup; }

/// k: the bits of a mantissa besides its sign that are left when `workers`, from 1 to kFixedMostWorkers, are summed.
constexpr std::uint32_t fixed_bits(FixedForm form, std::uint32_t workers) {
    return static_cast<std::uint32_t>(8 * size_of(form)) - 1U - static_cast<std::uint32_t>(std::bit_width(workers - 1));
}

/// Writes each group's exponent: kFixedZero, kFixedNotFinite, or the biased exponent of the largest magnitude, raised
/// to kFixedLeastExponent where it is below.
void fixed_exponents(const void* values, Dtype dtype, std::size_t elements, std::uint8_t* exponents);

/// Replaces each of `count` exponents by the greater of it and its counterpart; kFixedNotFinite wins over all.
void max_exponents(std::uint8_t* most, const std::uint8_t* others, std::size_t count);

/// Writes `elements` mantissas, rounded to nearest, ties to even, and held within 2^k - 1. They are zero in groups
/// whose exponent is kFixedZero or kFixedNotFinite. A value too large for its exponent gives the outermost mantissa.
void fixed_encode(const void* values, Dtype dtype, std::size_t elements, const std::uint8_t* exponents, FixedForm form,
                  std::uint32_t workers, void* mantissas);

/// Writes the values of `elements` mantissas that are the sum over `workers`; 0x7FC00000, a quiet NaN, in groups whose
/// exponent is kFixedNotFinite. A sum beyond the range of a float gives infinity.
void fixed_decode(const void* mantissas, FixedForm form, std::size_t elements, const std::uint8_t* exponents,
                  std::uint32_t workers, float* values);

/// Adds mantissas to `sum`, modulo 2^16 or 2^32.
void add_mantissas(void* sum, const void* addend, FixedForm form, std::size_t elements);

/// Adds floats to `sum`; every NaN becomes 0x7FC00000. Unlike a sum of mantissas, one of floats depends on the order.
void add_floats(void* sum, const void* addend, std::size_t elements);

}  // namespace luwu::kernels
