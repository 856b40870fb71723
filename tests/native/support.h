// Common parts of the native tests: a scratch folder, and a worker that drives a pipeline the way a real one does.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <functional>
#include <future>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "pipeline/pipeline.h"
#include "pipeline/snapshot_keeper.h"
#include "read_block.h"
#include "store/aligned_buffer.h"
#include "store/chunk_store.h"

namespace luwu::test {

// On a real disk (O_DIRECT), beside the build; gone at the end.
class Scratch {
  public:
    Scratch() {
        std::string path = (std::filesystem::current_path() / "luwu-test-XXXXXX").string();
        if (mkdtemp(path.data()) == nullptr) throw std::runtime_error("cannot make a scratch folder");
        path_ = path;
    }
    ~Scratch() { std::filesystem::remove_all(path_); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    [[nodiscard]] std::string folder(const std::string& name = "store") const {
        std::filesystem::create_directories(path_ / name);
        return (path_ / name).string();
    }

  private:
    std::filesystem::path path_;
};

// The cases of a test: all of them; under ThreadSanitizer, which takes ten times as long, the first alone. Give
// it what changes no thread's work, such as dtypes.
template <typename Value>
std::vector<Value> variants(std::initializer_list<Value> all) {
#ifdef __SANITIZE_THREAD__
    return {*all.begin()};
#else
    return all;
#endif
}

// The kind of the Error that a call throws, whose message mentions this; a failure of the test where it throws none.
[[nodiscard]] ErrorKind kind_of(const std::function<void()>& call, const std::string& mentions = "");

// Those of the blocks with even numbers, and of the others.
struct Dtypes {
    Dtypes(kernels::Dtype all) : Dtypes(all, all) {}
    Dtypes(kernels::Dtype even_, kernels::Dtype odd_) : even(even_), odd(odd_) {}
    [[nodiscard]] kernels::Dtype of(std::uint32_t block) const { return block % 2 == 0 ? even : odd; }

    kernels::Dtype even;
    kernels::Dtype odd;
    bool whole_masters = false;
};

// The values in a dtype.
[[nodiscard]] std::vector<std::byte> rounded(kernels::Dtype dtype, const std::vector<float>& values);

inline store::StoreShape small_shape(const Dtypes& dtypes, const kernels::Optimizer& optimizer = kernels::adamw) {
    store::StoreShape shape;
    shape.optimizer = &optimizer;
    shape.chunk_elements = store::kChunkStep;
    shape.blocks = {{"root", 1000, true}};
    for (int i = 0; i < 6; ++i)
        shape.blocks.push_back({"b" + std::to_string(i), 4100 + 10U * static_cast<unsigned>(i), true});
    shape.blocks.push_back({"frozen", 3000, false});
    for (std::uint32_t block = 0; block < shape.blocks.size(); ++block) {
        shape.blocks[block].dtype = dtypes.of(block);
        shape.blocks[block].whole_master = dtypes.whole_masters;
    }
    return shape;
}

inline constexpr store::Uuid kUuid{1, 2, 3};

inline float first_value(std::uint32_t block, std::uint64_t element) {
    return std::sin(static_cast<float>(element) * 0.37F + static_cast<float>(block));
}
inline float gradient_value(std::uint32_t worker, std::uint64_t step, std::uint32_t block, std::uint64_t element) {
    return std::cos(static_cast<float>(element % 1013) * 0.11F + static_cast<float>(step * 3 + block * 7 + worker));
}

// Settings of the only parameter group; AdamW's names fit them, and every optimizer can do something with them.
inline constexpr pipeline::GroupSettings kSettings{0.01, 0.9, 0.999, 1e-8, 0.1};

// A server of small_shape in a folder, with as many workers as asked for.
class Rig {
  public:
    Rig(
        const std::vector<std::string>& folders, const Dtypes& dtypes, std::uint32_t workers,
        std::uint64_t memory_bytes, store::OpenMode mode,
        std::function<std::unique_ptr<store::IoEngine>(std::uint32_t)> make_engine = store::make_io_engine,
        bool prepares = false, const kernels::Optimizer& optimizer = kernels::adamw, std::uint32_t threads = 2,
        pipeline::SnapshotSettings snapshots = {}, std::chrono::nanoseconds disk_full_wait = {},
        const std::function<void(pipeline::PipelineSettings&)>& change = [](pipeline::PipelineSettings&) {})
        : layout_(small_shape(dtypes, optimizer), static_cast<std::uint32_t>(folders.size())),
          held_(held()),
          store_(folders, layout_, kUuid, mode) {
        pipeline::PipelineSettings settings;
        settings.plan = schedule::plan_with_tail(layout_, memory_bytes, workers, held_, std::nullopt,
                                                 schedule::kept_dtypes(layout_, workers, std::nullopt));
        window_ = store::AlignedBuffer(settings.plan.window_bytes);
        settings.window = window_.data();
        settings.workers = workers;
        settings.optimizer_threads = threads;
        settings.make_engine = std::move(make_engine);
        settings.prepares = prepares;
        settings.disk_full_wait = disk_full_wait;
        if (snapshots.every > 0) {
            keeper_ = std::make_unique<pipeline::SnapshotKeeper>(store_, snapshots);
            settings.on_writing = [this](std::uint64_t step) { keeper_->writing(step); };
            settings.on_commit = [this] { keeper_->committed(); };
        }
        workers_ = workers;
        change(settings);
        waits_for_disk = !settings.prepares && settings.commit_points.is_each_step();
        pipeline_ = std::make_unique<pipeline::Pipeline>(store_, settings);
    }

    // Blocks that are held through a whole step.
    static std::vector<bool> held() {
        std::vector<bool> held(small_shape(kernels::Dtype::float32).blocks.size(), false);
        held[0] = true;
        return held;
    }

    static std::uint64_t minimum_bytes(const Dtypes& dtypes, std::uint32_t workers,
                                       const kernels::Optimizer& optimizer = kernels::adamw) {
        const store::Layout layout(small_shape(dtypes, optimizer), 1);
        return schedule::plan_residency(layout, 1U << 30, workers, held()).minimum_bytes;
    }

    void initialise() {
        for (std::uint32_t block = 0; block < layout_.block_count(); ++block) {
            std::vector<float> values(layout_.shape().blocks[block].elements);
            for (std::size_t i = 0; i < values.size(); ++i) values[i] = first_value(block, i);
            pipeline_->initialise(block, values.data());
        }
        pipeline_->finish_initialise();
    }

    // Clipping of the steps that begin from now on. Gradients are multiplied by the loss scale as a backward's would
    // be.
    std::optional<double> max_norm;
    std::optional<store::LossScale> loss_scale;
    // A step that nobody clips ends when it is on the disk, so that a test can look at it there.
    bool waits_for_disk = false;
    pipeline::Pipeline& pipeline() const { return *pipeline_; }
    const store::Layout& layout() const { return layout_; }
    store::ChunkStore& store() { return store_; }
    // Stats of the snapshots that were due.
    [[nodiscard]] pipeline::SnapshotStats snapshot_stats() const { return keeper_->stats(); }
    const std::byte* window() const { return window_.data(); }

    std::int64_t pull(std::uint32_t worker, std::uint32_t block) {
        return wait([&](pipeline::Reply reply) { pipeline_->pull(worker, block, std::move(reply)); });
    }

    // Makes one worker's step: forward over all blocks, backward in reverse, with `spoil` making one gradient infinite.
    // Returns the commit's result, or -1 where the pipeline failed.
    std::int64_t run_step(std::uint32_t worker, std::uint64_t step, bool spoil = false, bool roll_back = false) {
        pipeline_->begin(worker, {kSettings}, {max_norm, loss_scale});
        const std::uint32_t blocks = layout_.block_count();
        for (std::uint32_t block = 0; block < blocks; ++block) {
            if (pull(worker, block) < 0) return -1;
            if (block != 0) pipeline_->release(block);
        }
        std::vector<std::future<std::int64_t>> pushes;
        for (std::uint32_t block = blocks; block-- > 0;) {
            if (block != 0 && pull(worker, block) < 0) return -1;
            if (layout_.shape().blocks[block].trainable) {
                const std::byte* gradient = keep(make_gradient(worker, step, block, spoil && block == 2));
                pushes.push_back(
                    start([&](pipeline::Reply reply) { pipeline_->push(worker, block, gradient, std::move(reply)); }));
            }
            pipeline_->release(block);
        }
        const std::int64_t outcome = wait([&](pipeline::Reply reply) {
            pipeline_->vote(worker, roll_back, [this, reply = std::move(reply)](pipeline::Outcome ended) {
                squares_ = ended.squares;
                reply(ended);
            });
        });
        for (auto& push : pushes) push.wait();
        const bool waits = outcome == pipeline::kCommitted && waits_for_disk && !max_norm;
        return waits && pipeline_->wait_until_written() ? -1 : outcome;
    }

    // All workers' step, each in a thread of its own; the outcome of worker 0.
    std::int64_t run_all(std::uint64_t step, bool spoil = false) {
        std::vector<std::future<std::int64_t>> outcomes;
        for (std::uint32_t worker = 0; worker < workers_; ++worker) {
            outcomes.push_back(std::async(std::launch::async, [this, worker, step, spoil] {
                return run_step(worker, step, spoil && worker + 1 == workers_);
            }));
        }
        std::int64_t outcome = 0;
        for (std::size_t i = outcomes.size(); i-- > 0;) outcome = outcomes[i].get();
        return outcome;
    }

    // The decision's result, or -1 where the pipeline failed.
    std::int64_t decide(bool commits, double squares = pipeline::kNoSquares) {
        std::optional<pipeline::Outcome> ended;
        try {
            const pipeline::PipelineStats stats = pipeline_->stats();
            auto last_word = pipeline_->last_word(0);
            last_word.decide(stats.attempts + stats.voided, commits, squares);
            while (!ended) ended = last_word.wait(std::chrono::seconds(60));
        } catch (const Error&) {
            return -1;
        }
        return ended->value;
    }
    // Sum of squares of the step that ended last.
    [[nodiscard]] double squares() const { return squares_; }

    std::vector<std::byte> make_gradient(std::uint32_t worker, std::uint64_t step, std::uint32_t block,
                                         bool spoil) const;

  private:
    // As the server's mapping of an arena does: gradients outlive the pipeline, also when a step fails half-way.
    const std::byte* keep(std::vector<std::byte> gradient) {
        const std::lock_guard lock(mutex_);
        return gradients_.emplace_back(std::move(gradient)).data();
    }

    static std::future<std::int64_t> start(const std::function<void(pipeline::Reply)>& call) {
        auto promise = std::make_shared<std::promise<std::int64_t>>();
        auto result = promise->get_future();
        call([promise](pipeline::Outcome outcome) { promise->set_value(outcome.ok ? outcome.value : -1); });
        return result;
    }
    static std::int64_t wait(const std::function<void(pipeline::Reply)>& call) { return start(call).get(); }

    store::Layout layout_;
    std::vector<bool> held_;
    store::ChunkStore store_;
    store::AlignedBuffer window_;
    std::uint32_t workers_ = 1;
    std::atomic<double> squares_{pipeline::kNoSquares};
    std::mutex mutex_;
    std::deque<std::vector<std::byte>> gradients_;
    std::unique_ptr<pipeline::SnapshotKeeper> keeper_;
    std::unique_ptr<pipeline::Pipeline> pipeline_;
};

// The same training, whole in memory: what the store must hold after `steps`. `sum`, if given, makes one fp32 gradient
// of the workers' before the update.
using SumGradients = std::function<std::vector<float>(const std::vector<const void*>& gradients, kernels::Dtype,
                                                      std::uint64_t elements)>;
std::vector<BlockContents> expected_contents(const Dtypes& dtypes, std::uint32_t workers, std::uint64_t steps,
                                             const SumGradients& sum = {},
                                             const kernels::Optimizer& optimizer = kernels::adamw,
                                             std::optional<double> max_norm = std::nullopt, float loss_scale = 1);
// The sum of squares of a step's averaged gradient, block by block and chunk by chunk.
double sum_of_squares(const Dtypes& dtypes, std::uint32_t workers, std::uint64_t step, float loss_scale = 1);
// Contents of the store, every checksum compared.
std::vector<BlockContents> stored_contents(const std::vector<std::string>& folders, const Dtypes& dtypes,
                                           const kernels::Optimizer& optimizer = kernels::adamw);
bool equal(const std::vector<BlockContents>& left, const std::vector<BlockContents>& right);
// Until something is so; fails the test after many seconds.
void wait_until(const std::function<bool()>& holds);

}  // namespace luwu::test
