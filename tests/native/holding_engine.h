// An I/O engine that holds transfers back while a test wants it: a slow disk.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "store/io_engine.h"

namespace luwu::test {

class HoldingEngine final : public store::IoEngine {
  public:
    // After `holds` has become false, a call of wake() lets go of what was held.
    HoldingEngine(std::unique_ptr<store::IoEngine> inner, const std::atomic<bool>& holds)
        : inner_(std::move(inner)), holds_(holds) {}
    void submit(store::IoRequest& request) override {
        if (!holds_) return inner_->submit(request);
        held_.push_back(&request);
        ++held_count_;
    }
    void wait(std::vector<store::IoRequest*>& completed) override {
        if (!holds_) {
            for (store::IoRequest* request : std::exchange(held_, {})) inner_->submit(*request);
        }
        inner_->wait(completed);
    }
    void wake() override { inner_->wake(); }
    [[nodiscard]] std::uint32_t depth() const override { return inner_->depth(); }
    [[nodiscard]] const char* name() const override { return "holding"; }
    // Transfers that were ever held back; any thread may ask.
    [[nodiscard]] std::uint64_t held_count() const { return held_count_; }

  private:
    std::unique_ptr<store::IoEngine> inner_;
    const std::atomic<bool>& holds_;
    std::vector<store::IoRequest*> held_;
    std::atomic<std::uint64_t> held_count_{0};
};

}  // namespace luwu::test
