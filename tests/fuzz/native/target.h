// Common parts of the fuzz targets. A target is a function of bytes; it lets pass the errors that its parser documents
// and nothing else. The same file makes a libFuzzer program, or a test that replays the corpus.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "store/error.h"

namespace luwu::fuzz {

using Bytes = std::span<const std::byte>;

// The input, taken from its front; what it does not have is zero.
class Input {
  public:
    explicit Input(Bytes bytes) : rest_(bytes) {}

    [[nodiscard]] bool empty() const { return rest_.empty(); }
    template <typename Number = std::uint8_t>
    [[nodiscard]] Number number() {
        Number value{};
        const Bytes taken = bytes(sizeof value);
        if (!taken.empty()) std::memcpy(&value, taken.data(), taken.size());
        return value;
    }
    [[nodiscard]] Bytes bytes(std::size_t most) {
        const Bytes taken = rest_.first(std::min(most, rest_.size()));
        rest_ = rest_.subspan(taken.size());
        return taken;
    }
    [[nodiscard]] Bytes rest() { return bytes(rest_.size()); }

  private:
    Bytes rest_;
};

[[nodiscard]] inline std::vector<std::byte> copy_of(Bytes bytes) { return {bytes.begin(), bytes.end()}; }

// Fails the target: nobody catches this error.
inline void require(bool holds, const std::string& promise) {
    if (!holds) throw std::logic_error("broken promise: " + promise);
}

// Calls `act`; the error that it throws, which has to be one of these kinds.
template <typename Act>
std::optional<Error> error_of(std::initializer_list<ErrorKind> kinds, Act&& act) {
    try {
        act();
    } catch (const Error& error) {
        const bool known = std::find(kinds.begin(), kinds.end(), error.kind()) != kinds.end();
        require(known, std::string("an error of a kind that fits: ") + error.what());
        return error;
    }
    return std::nullopt;
}

struct Target {
    std::string name;
    void (*run)(Bytes);
};

inline std::vector<Target>& targets() {
    static std::vector<Target> all;
    return all;
}

struct Registered {
    Registered(const char* name, void (*run)(Bytes)) { targets().push_back({name, run}); }
};

}  // namespace luwu::fuzz

// LUWU_FUZZ_TARGET("name") stands before the target's body, whose argument is `data`.
#ifdef LUWU_LIBFUZZER
#define LUWU_FUZZ_TARGET(NAME)                                                           \
    static void run_target(luwu::fuzz::Bytes data);                                      \
    extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) { \
        run_target({reinterpret_cast<const std::byte*>(bytes), size});                   \
        return 0;                                                                        \
    }                                                                                    \
    static void run_target(luwu::fuzz::Bytes data)
#else
#define LUWU_FUZZ_TARGET(NAME)                                         \
    static void run_target(luwu::fuzz::Bytes data);                    \
    static const luwu::fuzz::Registered registered{NAME, &run_target}; \
    static void run_target(luwu::fuzz::Bytes data)
#endif
