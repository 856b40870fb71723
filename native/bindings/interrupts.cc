#include "bindings/interrupts.h"

#include <atomic>
#include <csignal>
#include <mutex>

namespace nb = nanobind;

namespace luwu::bindings {

namespace {

std::mutex mutex;
unsigned watches = 0;
struct sigaction before{};
std::atomic<unsigned> signals{0};
static_assert(std::atomic<unsigned>::is_always_lock_free);  // a handler may use nothing else

void note(int signal) {
    signals.fetch_add(1);
    before.sa_handler(signal);
}

bool is_a_function(const struct sigaction& action) {
    return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN;
}

}  // namespace

InterruptWatch::InterruptWatch() : seen_before_(signals.load()) {
    const std::lock_guard lock(mutex);
    if (watches++ > 0) return;
    struct sigaction now{};
    sigaction(SIGINT, nullptr, &now);
    if (!is_a_function(now) || now.sa_handler == &note) return;
    before = now;
    struct sigaction ours = before;
    ours.sa_handler = &note;
    sigaction(SIGINT, &ours, nullptr);
}

InterruptWatch::~InterruptWatch() {
    const std::lock_guard lock(mutex);
    if (--watches > 0) return;
    struct sigaction now{};
    sigaction(SIGINT, nullptr, &now);
    if (now.sa_handler == &note) sigaction(SIGINT, &before, nullptr);  // else the program has set another meanwhile
}

bool InterruptWatch::interrupted() const { return signals.load() != seen_before_; }

bool in_main_thread() {
    const nb::object threading = nb::module_::import_("threading");
    return threading.attr("current_thread")().is(threading.attr("main_thread")());
}

bool interrupt_raises() {
    const nb::object signals = nb::module_::import_("signal");
    return signals.attr("getsignal")(signals.attr("SIGINT")).is(signals.attr("default_int_handler"));
}

}  // namespace luwu::bindings
