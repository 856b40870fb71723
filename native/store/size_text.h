// Sizes in the words of messages.
#pragma once

#include <cstdint>
#include <string>

namespace luwu::store {

// Bytes in KiB, MiB or GiB with one digit after the point, rounded up: a least size that is taken from it is enough.
[[nodiscard]] std::string size_text(std::uint64_t bytes);

}  // namespace luwu::store
