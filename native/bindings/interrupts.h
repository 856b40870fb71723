// Waiting in Python without its lock, so that Ctrl-C ends the wait, in whichever thread it is.
//
// Python lets signals through in its main thread alone. A backward on a GPU runs in a thread of torch's while the main
// thread stands in native code: nobody would see Ctrl-C while a server stalls. So a wait in another thread that lasts
// puts a handler of SIGINT in front of Python's for as long as it lasts: it notes the signal, and calls Python's.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>

#include "store/error.h"

namespace luwu::bindings {

constexpr std::chrono::milliseconds kSignalCheck{100};  // how soon Ctrl-C is seen

// Sees SIGINT while it lives. Where the program has no handler of its own it sees nothing.
class InterruptWatch {
  public:
    InterruptWatch();
    ~InterruptWatch();
    InterruptWatch(const InterruptWatch&) = delete;
    InterruptWatch& operator=(const InterruptWatch&) = delete;
    [[nodiscard]] bool interrupted() const;

  private:
    unsigned seen_before_;
};

// With Python's lock.
[[nodiscard]] bool in_main_thread();
[[nodiscard]] bool interrupt_raises();  // Python's handler of SIGINT is the one that raises KeyboardInterrupt

// Calls with a time that it may take, again and again, until it returns something. Raises KeyboardInterrupt, or what
// else a handler of signals raises, in the main thread; in another one ServerError, on which the main thread goes on
// and meets the signal itself.
template <class Call>
auto wait_for(const Call& call) {
    const auto once = [&] {
        const nanobind::gil_scoped_release release;
        return call(kSignalCheck);
    };
    if (auto found = once()) return found;
    if (in_main_thread()) {
        while (true) {
            if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
            if (auto found = once()) return found;
        }
    }
    const InterruptWatch watch;
    while (!(watch.interrupted() && interrupt_raises())) {
        if (auto found = once()) return found;
    }
    throw Error(ErrorKind::server, "interrupted while it waited for the server");
}

}  // namespace luwu::bindings
