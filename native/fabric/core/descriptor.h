// An open file of this process, closed with its owner. Forked children do not keep it.
#pragma once

#include <unistd.h>

#include <utility>

#include "store/forks.h"

namespace luwu::fabric {

class Descriptor {
  public:
    Descriptor() = default;
    explicit Descriptor(int value) : value_(value) {
        if (value_ >= 0) store::keep_from_children(value_);
    }
    ~Descriptor() {
        if (value_ < 0) return;
        store::forget_descriptor(value_);
        close(value_);
    }
    Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(value_, other.value_);
        return *this;
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    [[nodiscard]] int get() const { return value_; }  // -1: none

  private:
    int value_ = -1;
};

}  // namespace luwu::fabric
