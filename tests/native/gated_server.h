// A server whose reads of states and whose writes can be held, each by its gate.
#pragma once

#include <atomic>
#include <cerrno>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "failing_engine.h"
#include "holding_engine.h"
#include "support.h"

namespace luwu::test {

inline constexpr auto kFloat = kernels::Dtype::float32;
inline constexpr auto kLow = kernels::Dtype::bfloat16;
inline constexpr std::uint64_t kPlenty = 1U << 28;  // bytes of memory that keep everything

class Gated {
  public:
    Gated(
        const Scratch& scratch, kernels::Dtype dtype, std::uint64_t memory, store::OpenMode mode, bool prepares = false,
        const std::function<void(pipeline::PipelineSettings&)>& change = [](pipeline::PipelineSettings&) {})
        : rig(
              {scratch.folder()}, dtype, 1, memory, mode, [this](std::uint32_t depth) { return make_engine(depth); },
              prepares, kernels::adamw, 2, {}, {}, change) {
        if (mode == store::OpenMode::create) rig.initialise();
        rig.waits_for_disk = false;
    }

    void close_reads() { reads_closed_ = true; }
    void close_writes() { writes_closed_ = true; }
    void open() {
        reads_closed_ = writes_closed_ = false;
        for (store::IoEngine* engine : engines_) engine->wake();
    }

    // Writes that were ever held back.
    [[nodiscard]] std::uint64_t held_writes() const { return writes_->held_count(); }

    // Nothing more is written, held or not.
    void die() {
        dead_ = true;
        open();
    }

  private:
    std::unique_ptr<store::IoEngine> make_engine(std::uint32_t depth) {
        auto engine = store::make_io_engine(depth);
        if (engines_.size() == 1) engine = std::make_unique<HoldingEngine>(std::move(engine), reads_closed_);
        if (engines_.size() == 2) {
            engine = std::make_unique<FailingEngine>(std::move(engine), [this] { return dead_ ? EIO : 0; });
            auto holding = std::make_unique<HoldingEngine>(std::move(engine), writes_closed_);
            writes_ = holding.get();
            engine = std::move(holding);
        }
        engines_.push_back(engine.get());
        return engine;
    }

    std::atomic<bool> dead_{false};
    std::atomic<bool> reads_closed_{false};
    std::atomic<bool> writes_closed_{false};
    std::vector<store::IoEngine*> engines_;  // of parameters, of states, of what is written
    HoldingEngine* writes_ = nullptr;

  public:
    Rig rig;
};

}  // namespace luwu::test
