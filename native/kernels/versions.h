// The kernels with the instruction set given rather than chosen, so that tests can compare versions. `set` must be
// available. Internal to the kernels and their tests; everything else is documented at the public functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/fixed_point.h"
#include "kernels/gradients.h"
#include "kernels/instruction_set.h"
#include "kernels/state_code.h"

namespace luwu::kernels::versions {

void float_to_low(InstructionSet set, Dtype dtype, const float* source, std::uint16_t* target, std::size_t count);

void low_to_float(InstructionSet set, Dtype dtype, const std::uint16_t* source, float* target, std::size_t count);

void sum_gradients(InstructionSet set, float* out, const Gradients& gradients, std::size_t elements);

void trimmed_mean(InstructionSet set, float* out, const Gradients& gradients, std::size_t trims, std::size_t elements);

[[nodiscard]] double keep_gradients(InstructionSet set, void* kept, const Gradients& gradients, std::size_t elements);

void fixed_exponents(InstructionSet set, const void* values, Dtype dtype, std::size_t elements,
                     std::uint8_t* exponents);

void max_exponents(InstructionSet set, std::uint8_t* most, const std::uint8_t* others, std::size_t count);

void fixed_encode(InstructionSet set, const void* values, Dtype dtype, std::size_t elements,
                  const std::uint8_t* exponents, FixedForm form, std::uint32_t workers, void* mantissas);

void fixed_decode(InstructionSet set, const void* mantissas, FixedForm form, std::size_t elements,
                  const std::uint8_t* exponents, std::uint32_t workers, float* values);

void add_mantissas(InstructionSet set, void* sum, const void* addend, FixedForm form, std::size_t elements);

void add_floats(InstructionSet set, void* sum, const void* addend, std::size_t elements);

[[nodiscard]] std::uint64_t weighted_sum(InstructionSet set, const std::uint32_t* weights, const void* values,
                                         std::size_t bytes, FixedForm form);

void encode(InstructionSet set, StateCode code, const float* values, std::byte* plane, std::size_t elements,
            std::uint64_t t);

void decode(InstructionSet set, StateCode code, const std::byte* plane, float* values, std::size_t elements);

void split_master(InstructionSet set, const float* master, std::uint16_t* copy, std::uint16_t* remainder,
                  std::size_t count);

void join_master(InstructionSet set, const std::uint16_t* copy, const std::uint16_t* remainder, float* master,
                 std::size_t count);

/// The checksum CRC32C by table, by the processor's instruction (where has_crc32c_instruction()), and by folding (where
/// has_crc32c_folding()).
[[nodiscard]] std::uint32_t crc32c_by_table(std::uint32_t crc, const void* data, std::size_t bytes);
[[nodiscard]] std::uint32_t crc32c_by_instruction(std::uint32_t crc, const void* data, std::size_t bytes);
[[nodiscard]] std::uint32_t crc32c_by_folding(std::uint32_t crc, const void* data, std::size_t bytes);
[[nodiscard]] bool has_crc32c_instruction();
[[nodiscard]] bool has_crc32c_folding();

}  // namespace luwu::kernels::versions
