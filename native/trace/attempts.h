// Which attempts at steps are traced: the next ones that begin, as many as were asked for. Pure.
#pragma once

#include <cstdint>

namespace luwu::trace {

class Attempts {
  public:
    enum class Change { none, start, stop };  // of the recording

    // Asks for a trace, while there is none. `attempts` is at least 1.
    void ask(std::uint32_t attempts) { to_begin_ = attempts; }
    // An attempt begins: its first worker does.
    Change begin_attempt(std::uint64_t step) {
        if (to_begin_ > 0) {
            const bool first = !recording_;
            recording_ = within_ = true;
            behind_ = 0;
            if (first) first_step_ = step;
            last_step_ = step;
            --to_begin_;
            return first ? Change::start : Change::none;
        }
        within_ = false;
        // The last attempt's debts are settled before the one after it ends.
        if (!recording_ || ++behind_ < 2) return Change::none;
        recording_ = false;
        return Change::stop;
    }
    // The attempt that began last is the last one.
    void take_no_more() { to_begin_ = 0; }
    // Nothing more comes, although no other attempt has begun. Returns true where something was recorded.
    bool end() {
        const bool was = recording_;
        recording_ = within_ = false;
        to_begin_ = 0;
        return was;
    }

    [[nodiscard]] bool asked() const { return to_begin_ > 0 || recording_; }
    // The workers of the attempt under way record it, too.
    [[nodiscard]] bool within() const { return within_; }
    [[nodiscard]] bool last() const { return within_ && to_begin_ == 0; }
    // Every attempt has begun.
    [[nodiscard]] bool complete() const { return recording_ && to_begin_ == 0; }
    [[nodiscard]] std::uint64_t first_step() const { return first_step_; }
    [[nodiscard]] std::uint64_t last_step() const { return last_step_; }

  private:
    std::uint32_t to_begin_ = 0;
    std::uint32_t behind_ = 0;  // attempts that have begun since the last one
    bool recording_ = false;
    bool within_ = false;
    std::uint64_t first_step_ = 0;
    std::uint64_t last_step_ = 0;
};

}  // namespace luwu::trace
