// An I/O engine whose writes fail when a test wants it: a full disk, or the end of a process. Syncs are none of its
// business.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "store/io_engine.h"

namespace luwu::test {

class FailingEngine final : public store::IoEngine {
  public:
    // `error_of_next` is asked before each write: 0, or the error number that it fails with.
    FailingEngine(std::unique_ptr<store::IoEngine> inner, std::function<int()> error_of_next)
        : inner_(std::move(inner)), error_of_next_(std::move(error_of_next)) {}
    void submit(store::IoRequest& request) override {
        if (request.operation == store::IoRequest::Operation::write) request.error = error_of_next_();
        if (request.error == 0) return inner_->submit(request);
        failed_.push_back(&request);
        inner_->wake();
    }
    void wait(std::vector<store::IoRequest*>& completed) override {
        if (failed_.empty()) inner_->wait(completed);
        completed.insert(completed.end(), failed_.begin(), failed_.end());
        failed_.clear();
    }
    void wake() override { inner_->wake(); }
    [[nodiscard]] std::uint32_t depth() const override { return inner_->depth(); }
    [[nodiscard]] const char* name() const override { return "failing"; }

  private:
    std::unique_ptr<store::IoEngine> inner_;
    std::function<int()> error_of_next_;
    std::vector<store::IoRequest*> failed_;
};

}  // namespace luwu::test
