// Errors of the native core: a kind that the bindings map to one Python class each, and a message for a person.
#pragma once

#include <stdexcept>
#include <string>

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
};

inline constexpr ErrorKind kLastErrorKind = ErrorKind::forked;

class Error : public std::runtime_error {
  public:
    Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
    [[nodiscard]] ErrorKind kind() const { return kind_; }

  private:
    ErrorKind kind_;
};

}  // namespace luwu
