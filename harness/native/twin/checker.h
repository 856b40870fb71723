// A race detector with vector clocks: reports two accesses to the same bytes, one of them a write, that nothing orders.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace luwu::twin {

using Actor = std::uint32_t;

// An actor's knowledge of each actor's past.
class Clock {
  public:
    [[nodiscard]] std::uint64_t of(Actor actor) const { return actor < times_.size() ? times_[actor] : 0; }
    void tick(Actor actor);
    void join(const Clock& other);

  private:
    std::vector<std::uint64_t> times_;
};

struct Access {
    std::uintptr_t begin;
    std::uintptr_t end;
    bool writes;
    std::string what;
};

class Checker {
  public:
    // The actor's clock has ticked since its last access.
    void access(Actor actor, const Clock& clock, const Access& access);
    void forget(std::uintptr_t begin, std::uintptr_t end);  // memory that is somebody else's from now on
    void forget_of(Actor actor, std::uintptr_t begin, std::uintptr_t end);  // its accesses alone
    void find(std::string finding);
    void forget_findings() { findings_.clear(); }
    [[nodiscard]] const std::vector<std::string>& findings() const { return findings_; }

  private:
    struct Past {
        Access access;
        Actor actor;
        std::uint64_t time;
    };
    std::vector<Past> past_;
    std::vector<std::string> findings_;
};

}  // namespace luwu::twin
