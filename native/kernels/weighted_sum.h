// A checksum that is linear: that of a sum of payloads is the sum of their checksums, so that a receiver can tell
// whether switches added what the workers sent.
//
// The checksum is the multilinear hash of Carter and Wegman, "Universal classes of hash functions" (1979): the sum of
// weight[i] * value[i] modulo 2^64, over signed values. Weights are odd and below 2^31, and values have at most 32
// bits, so that a change of one value always shows; any other change that was made without knowing the key is missed
// with a probability of at most 2^-30. It is no signature: whoever knows the key can forge it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/fixed_point.h"

namespace luwu::kernels {

/// The weights of values in their order, drawn from a key by SplitMix64 (Steele, Lea and Flood, "Fast splittable
/// pseudorandom number generators", 2014). A longer list starts with all of a shorter one.
class Weights {
  public:
    Weights(std::uint64_t key, std::size_t count);

    [[nodiscard]] const std::uint32_t* data() const { return weights_.data(); }
    [[nodiscard]] std::size_t size() const { return weights_.size(); }

  private:
    std::vector<std::uint32_t> weights_;
};

/// The checksum of `bytes` at `values`, which need no alignment and are read as signed integers of that form in the
/// processor's byte order. Bytes after the last whole value count as one value with zeros appended. There must be a
/// weight for each value. Checksums of payloads add up as long as their mantissas do without overflow.
[[nodiscard]] std::uint64_t weighted_sum(const std::uint32_t* weights, const void* values, std::size_t bytes,
                                         FixedForm form);

}  // namespace luwu::kernels
