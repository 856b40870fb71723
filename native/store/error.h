// Errors of the native core: a kind that the bindings map to one Python class each, and a message for a person.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace luwu {

enum class ErrorKind {
    io,             // the operating system refused a read, write or sync
    no_space,       // a store does not fit on its disk
    permission,     // a store's folder or file cannot be read or written
    locked,         // another process has the store open
    corrupt,        // a checksum, size or identity on disk is wrong
    format,         // the store was written by a newer or unknown format
    memory_budget,  // the memory budget is below the minimum
    order,          // calls came in an order that has no meaning
    worker_lost,    // a worker ended without leaving
    server,         // the server failed or is gone
    invalid,        // an argument cannot be used
    empty,          // a store's values are asked for before it has any
    forked,         // a child of the process that opened something uses it
    device,         // a GPU or its driver is missing, or failed
};

inline constexpr ErrorKind kLastErrorKind = ErrorKind::device;

// The shortage on a full disk: the file or folder that found no room, and how much it needs.
struct Shortage {
    std::string path;
    std::uint64_t bytes = 0;    // at least; 0: nobody knows
    bool may_try_again = true;  // false after a sync: earlier writes may be lost
};

class Error : public std::runtime_error {
  public:
    Error(ErrorKind kind, const std::string& message, Shortage shortage = {})
        : std::runtime_error(message), kind_(kind), shortage_(std::move(shortage)) {}
    [[nodiscard]] ErrorKind kind() const { return kind_; }
    [[nodiscard]] const Shortage& shortage() const { return shortage_; }  // for no_space

  private:
    ErrorKind kind_;
    Shortage shortage_;
};

}  // namespace luwu
