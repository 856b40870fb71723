// An I/O engine of a server that dies.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "store/io_engine.h"

namespace luwu::test {

// Fails every write from the moment that it is told to, as the end of a process would; syncs are none of its business.
class DyingEngine final : public store::IoEngine {
  public:
    DyingEngine(std::unique_ptr<store::IoEngine> inner, const std::atomic<bool>& dead)
        : inner_(std::move(inner)), dead_(dead) {}
    void submit(store::IoRequest& request) override {
        if (request.operation == store::IoRequest::Operation::write && dead_) {
            request.error = EIO;
            failed_.push_back(&request);
            inner_->wake();
        } else {
            inner_->submit(request);
        }
    }
    void wait(std::vector<store::IoRequest*>& completed) override {
        if (failed_.empty()) inner_->wait(completed);
        completed.insert(completed.end(), failed_.begin(), failed_.end());
        failed_.clear();
    }
    void wake() override { inner_->wake(); }
    [[nodiscard]] std::uint32_t depth() const override { return inner_->depth(); }
    [[nodiscard]] const char* name() const override { return "dying"; }

  private:
    std::unique_ptr<store::IoEngine> inner_;
    const std::atomic<bool>& dead_;
    std::vector<store::IoRequest*> failed_;
};

}  // namespace luwu::test
