// The server's six steps over one store. Each step has its own queue and threads; a block rotates from step to step:
//   1 read parameters   2 hand them to workers   3 collect gradients   4 read states   5 update   6 write and commit
// Steps 2 and 3 are the two streams of the fabric (fabric/server.h), which call pull() and push() here.
// With clipping, gradients are kept between 3 and 4 until their global norm is known, and a step is decided before it
// is updated: docs/decisions/0007-clipping.md. pipeline_clipping.cc has that part. Every public function may be called
// from any thread. Replies are called with the pipeline's lock held: they must be short and must not call back.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "pipeline/chunk_update.h"
#include "pipeline/io_stage.h"
#include "pipeline/kept_gradients.h"
#include "pipeline/room.h"
#include "schedule/pass.h"
#include "schedule/residency.h"
#include "schedule/state_cache.h"
#include "schedule/window_cache.h"
#include "store/chunk_store.h"

namespace luwu::pipeline {

using GroupSettings = kernels::HyperParameters;  // of one parameter group for one step

// What happens to the gradients of a step before they are used.
struct GradientSettings {
    std::optional<double> max_norm = {};              // their global norm is clipped to it
    std::optional<store::LossScale> loss_scale = {};  // they are divided by it, which comes before anything else

    bool operator==(const GradientSettings&) const = default;
};

struct PipelineSettings {
    schedule::ResidencyPlan plan;
    std::byte* window = nullptr;  // plan.window_bytes, page aligned
    std::uint32_t workers = 1;
    std::optional<kernels::Dtype> gradient_dtype;  // of all blocks; default: each block's own
    std::optional<float> gradient_scale;           // of the sum over workers, but for loss scale; default: 1 / workers
    std::uint32_t optimizer_threads = 1;
    std::uint32_t io_depth = 16;
    bool prepares = false;  // a step that nobody rolled back waits for decide(): other servers have the other blocks
    std::function<std::unique_ptr<store::IoEngine>(std::uint32_t)> make_engine = store::make_io_engine;
    std::function<void(const Error&)> on_failure = [](const Error&) {};
    std::chrono::nanoseconds disk_full_wait{0};  // the longest time that a step waits for room on a disk
    // The first record since the last commit is about to be written: called with the lock held, so short.
    std::function<void()> on_writing = [] {};
    // A commit has been made and answered: called in the thread that makes the next one, before it does.
    std::function<void()> on_commit = [] {};
};

inline constexpr double kNoSquares = -1;

struct Outcome {
    bool ok = true;          // false: the pipeline failed; failure() tells why
    std::int64_t value = 0;  // pull: offset in the window; commit and decide: a StepEnd
    // commit and decide, with clipping: the sum of squares of the averaged gradient, kNoSquares where nobody knows it.
    // Of a prepared step it is that of this server's blocks alone.
    double squares = kNoSquares;
};
// How a step ended. Prepared: all of it is written, and decide() has the last word. Not finite: rolled back because of
// a gradient, and nobody asked for it.
enum StepEnd : std::int64_t { kRolledBack = 0, kCommitted = 1, kPrepared = 2, kNotFinite = 3 };
using Reply = std::function<void(Outcome)>;

struct PipelineStats {
    std::uint64_t bytes_pulled = 0;  // to all workers
    std::uint64_t bytes_pushed = 0;  // by all workers
    std::uint64_t bytes_read = 0;    // from the store
    std::uint64_t bytes_written = 0;
    std::uint64_t elements_updated = 0;
    std::uint64_t update_nanoseconds = 0;  // of step 5's threads together
    std::uint64_t pulls_waited = 0;        // pulls that found their block absent or still being read
    std::uint64_t pulls = 0;
    std::uint64_t states_waited = 0;  // chunks whose gradient was there before their states
    std::uint64_t chunks_updated = 0;
    std::uint64_t step = 0;
    std::uint64_t attempts = 0;
    std::uint64_t rolled_back = 0;
    std::uint64_t unwritten = 0;                 // steps that were answered and are not on the disk yet: 0 or 1
    std::uint64_t clipped = 0;                   // committed steps whose gradient was clipped
    std::uint64_t redone = 0;                    // of them: those that had been updated before their norm was known
    std::optional<store::LossScale> loss_scale;  // of the last committed step
    std::optional<RoomWait> waits_for_room;      // a disk is full: the run is paused
};

class Pipeline {
  public:
    Pipeline(store::ChunkStore& store, PipelineSettings settings);
    // Finishes transfers under way, and a step that was answered; what is not committed is lost, as in a crash.
    ~Pipeline();
    Pipeline(const Pipeline&) = delete;
    Pipeline& operator=(const Pipeline&) = delete;

    // Writes the first values of a whole block (fp32) at update count 0.
    void initialise(std::uint32_t block, const float* values);
    void finish_initialise();  // commits step 0

    // Which parameter group each range of a block belongs to; without a call all is group 0. Before the first step
    // only.
    void set_segments(std::uint32_t block, std::vector<Segment> segments);
    // Starts a worker's step. All workers must bring the same settings. The first step of all decides whether there is
    // clipping.
    void begin(std::uint32_t worker, const std::vector<GroupSettings>& groups, const GradientSettings& gradient = {});
    void pull(std::uint32_t worker, std::uint32_t block, Reply reply);
    // A pull that is part of no worker's pass, such as an evaluation's, outside of that worker's own steps. Ends with
    // release(), soon: places in the window are few.
    void read(std::uint32_t block, Reply reply);
    void release(std::uint32_t block);
    // `gradient` is the whole block's, in its gradients' dtype, and stays in place until the reply.
    void push(std::uint32_t worker, std::uint32_t block, const std::byte* gradient, Reply reply);
    // Ends a worker's step. When all have: commits, or rolls back if one asks for it or a gradient was not finite. With
    // clipping the answer may come before the updates: they follow, and are committed before the next step is.
    void commit(std::uint32_t worker, bool roll_back, Reply reply);
    // Commits or rolls back the prepared step. The first call counts; the others get its answer, too. With clipping,
    // `squares` is the sum over all servers.
    void decide(bool commits, Reply reply, double squares = kNoSquares);
    // Returns when every step that was answered is on the disk; an error where one of them never will be.
    std::optional<Error> wait_until_written();
    // The worker will make no more steps. Fails the pipeline when others are in one, or begin one later.
    void leave(std::uint32_t worker);

    void fail(const Error& error);
    [[nodiscard]] std::optional<Error> failure() const;
    [[nodiscard]] PipelineStats stats() const;
    [[nodiscard]] const char* io_name() const { return writer_->engine_name(); }

  private:
    struct Block {
        bool updating = false;
        std::uint64_t count = 0;  // updates in what memory and store hold now; committed at the end of the step
        bool updated = false;     // in this step
        // With clipping:
        bool kept = false;     // this step's gradient is
        bool decided = false;  // the update is one of the step before, which was answered
        bool stale = false;    // and memory does not hold it yet: nobody may see the block
        bool keep_waits = false;
        std::uint32_t chunks_to_collect = 0;  // whose gradients are still the workers'
        std::uint32_t chunks_to_keep = 0;
        bool update_needs_parameters = false;
        std::uint32_t chunks_reading = 0;
        std::uint32_t chunks_to_update = 0;
        std::uint32_t chunks_to_write = 0;
        std::uint32_t chunks_in_hand = 0;         // optimizer threads read its gradients now, without the lock
        std::uint32_t arrived = 0;                // gradients, in this step
        std::vector<const std::byte*> gradients;  // per worker; null until pushed in this step
        std::vector<Reply> push_replies;
        std::vector<Reply> waiting_pulls;
        std::vector<Segment> segments;
    };

    // What an optimizer thread does with a chunk.
    struct Work {
        std::uint32_t chunk = 0;
        bool keeps = false;  // else it updates
    };
    // A step that was answered, and whose updates are not all written yet.
    struct Settling {
        std::deque<std::uint32_t> due;  // blocks whose updates have not begun, in the order of the next pass
        std::uint32_t blocks = 0;       // not written yet
        std::vector<GroupSettings> groups;
        float scale = 1.0F;     // of the kept gradients
        bool reads_on = false;  // all its states were asked for: those read ahead from now on are the next step's
        std::vector<std::uint32_t> next_order;  // of whose updates, as far as anybody knows
        store::CommitRecord record;
    };

    // All below are called with mutex_ held unless they say otherwise.
    [[nodiscard]] std::uint64_t block_bytes(std::uint32_t block) const;
    [[nodiscard]] bool has_values();  // else the run fails
    [[nodiscard]] kernels::Dtype gradient_dtype(std::uint32_t block) const;
    [[nodiscard]] std::vector<kernels::Dtype> kept_dtypes() const;                 // per block
    [[nodiscard]] std::byte* parameters_of(const store::ChunkPlace& place) const;  // in the window
    [[nodiscard]] bool reading_allowed(std::uint32_t block) const;
    [[nodiscard]] bool step_is_void() const { return poisoned_ || roll_back_; }
    // The block's update will not be needed.
    [[nodiscard]] bool is_void(const Block& block) const { return !block.decided && step_is_void(); }
    [[nodiscard]] bool given_up(const Block& block) const {
        return broken_.has_value() || (failure_ && !block.decided);
    }
    [[nodiscard]] float average() const;  // what the sum over workers is multiplied by

    [[nodiscard]] Error left_too_early() const;

    [[nodiscard]] bool in_step() const;                          // some worker has begun one, and has not ended it
    [[nodiscard]] bool update_comes(std::uint32_t block) const;  // in this step, and has not begun
    void hand_out(std::uint32_t block, Reply reply);
    void want_parameters(std::uint32_t block);
    void start_parameter_read(std::uint32_t block);
    void retry_waiting_blocks();
    void prefetch_parameters(std::uint32_t worker);
    void parameters_read(IoTask& task);  // takes mutex_
    void parameters_resident(std::uint32_t block);
    void deliver(std::uint32_t block, const Reply& reply);

    void begin_update(std::uint32_t block);
    void start_update(std::uint32_t block);
    void start_chunks(std::uint32_t block);
    void want_chunk(std::uint32_t chunk);
    void want_states(std::uint32_t chunk);
    void states_there(std::uint32_t chunk);
    void chunk_has(std::uint32_t chunk);
    void start_state_read(std::uint32_t chunk);
    void serve_state_demand();
    void prefetch_states();
    void states_read(IoTask& task);        // takes mutex_
    void optimizer_loop();                 // takes mutex_
    void update_one(std::uint32_t chunk);  // takes mutex_
    [[nodiscard]] ChunkUpdate make_update(std::uint32_t chunk) const;
    [[nodiscard]] std::vector<const std::byte*> gradients_at(const store::ChunkPlace& place) const;
    void put_down(std::uint32_t chunk);
    void chunk_updated(std::uint32_t chunk, bool write);
    void chunk_written(std::uint32_t chunk);
    void write(std::unique_ptr<IoTask> task);
    void prepare_to_write();  // takes mutex_
    [[nodiscard]] store::IoRequest write_request(const IoTask& task) const;
    [[nodiscard]] std::optional<Error> write_again(IoTask& task);  // without mutex_
    void record_written(IoTask& task);                             // takes mutex_

    void try_finish_step();
    void return_unfinished_pushes();
    void check_all_pushed();
    void prepare();
    void start_commit();
    void write_commit();  // takes mutex_
    [[nodiscard]] store::CommitRecord next_record() const;
    void finish_step(StepEnd end, const std::vector<std::uint32_t>& order);
    [[nodiscard]] bool may_restore() const;
    void restore_updated_blocks();
    void roll_back();

    // Clipping.
    void choose_clipping(bool clips);
    void keep_gradients(std::uint32_t block);
    void start_keeping(std::uint32_t block);
    void want_kept_memory(std::uint32_t chunk);
    void serve_kept_memory();
    void keep_one(std::uint32_t chunk);                         // takes mutex_
    void keep(const ChunkUpdate& update, std::uint32_t chunk);  // without mutex_
    void give_up_keeping(std::uint32_t chunk);
    void chunk_collected(std::uint32_t chunk);
    void store_kept(std::uint32_t chunk);
    void kept_written(IoTask& task);
    void start_kept_read(std::uint32_t chunk);
    void kept_read(IoTask& task);  // takes mutex_
    void release_kept(std::uint32_t chunk);
    void chunk_kept(std::uint32_t chunk);
    [[nodiscard]] double sum_of_squares() const;
    void end_clipped_step(double squares);
    void settle(float scale);
    [[nodiscard]] std::vector<std::uint32_t> order_of_next_pass();
    void hurry(std::uint32_t block);
    void start_due_updates();
    [[nodiscard]] bool start_due_update(std::uint32_t block, bool at_any_price);
    void hand_out_updated(std::uint32_t block);
    void block_settled(std::uint32_t block);
    void write_settled();    // takes mutex_
    void reserve_scratch();  // takes mutex_

    void fail_locked(const Error& error);
    void break_locked(const Error& error);  // the store is at fault: nothing more is written
    void answer_failed_pushes(Block& block);

    store::ChunkStore& store_;
    const store::Layout& layout_;
    PipelineSettings settings_;

    mutable std::mutex mutex_;
    schedule::Pass pass_;
    schedule::WindowCache window_;
    schedule::StateCache states_;
    std::vector<Block> blocks_;
    std::vector<GroupSettings> groups_;
    GradientSettings gradient_;               // of this step
    std::optional<bool> clips_;               // as the first step of all had it
    std::unique_ptr<KeptGradients> kept_;     // with clipping
    std::deque<std::uint32_t> waiting_kept_;  // chunks that need a buffer for their kept gradient
    std::vector<std::uint32_t> postponed_;    // blocks whose updates wait for the record of the step before
    std::optional<Settling> settling_;
    double squares_ = kNoSquares;  // of this step, once known
    bool speculates_ = false;      // this step is updated as if it were not clipped
    bool speculates_next_ = false;
    bool initialised_ = false;                    // the store has values
    std::vector<bool> begun_;                     // per worker
    std::optional<std::uint32_t> left_;           // a worker that makes no more steps
    std::deque<std::uint32_t> waiting_blocks_;    // wanted, no place in the window yet
    std::deque<std::uint32_t> waiting_chunks_;    // gradient is there, no state buffer yet
    std::vector<bool> chunk_wanted_;              // gradient is there, states are being read
    std::vector<std::uint8_t> chunk_needs_;       // before its update: states, and memory for its kept gradient
    std::vector<std::uint32_t> push_order_;       // blocks in the order of their updates, last committed step
    std::vector<std::uint32_t> recorded_pushes_;  // of this step
    std::size_t prefetch_block_ = 0;              // cursor in push_order_
    std::size_t prefetch_chunk_ = 0;              // and in that block's chunks
    bool prefetches_next_step_ = false;           // the cursor has been at the end of push_order_ since the step began
    std::uint32_t updating_blocks_ = 0;           // in this step, or waiting to be
    std::uint32_t updates_under_way_ = 0;         // blocks that need nothing more of the window
    std::uint32_t keeping_blocks_ = 0;
    std::uint32_t reads_in_flight_ = 0;
    bool may_write_ = false;                             // the store is prepared for the records of this step
    std::vector<std::unique_ptr<IoTask>> first_writes_;  // writes that wait until may_write_
    std::vector<Reply> commit_replies_;
    bool roll_back_ = false;
    bool poisoned_ = false;  // a gradient of this step was not finite
    bool closing_ = false;   // all workers asked for the commit
    bool prepared_ = false;  // nobody has decided yet
    bool decided_ = false;
    bool committing_ = false;
    Outcome last_end_;
    std::optional<Error> failure_;
    std::optional<Error> broken_;  // the error of the store, after which nothing is written
    std::condition_variable settled_;
    PipelineStats stats_;
    Room room_;

    std::condition_variable update_ready_;
    std::deque<Work> update_queue_;
    bool stopping_ = false;
    std::vector<std::thread> optimizers_;
    // Last, so that their threads end before what they use.
    std::unique_ptr<IoStage> parameter_reader_;
    std::unique_ptr<IoStage> state_reader_;
    std::unique_ptr<IoStage> writer_;
};

}  // namespace luwu::pipeline
