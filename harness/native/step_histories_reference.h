// A naive server's step: sets of everything that has happened, and the rules written down as ifs over them. It shares
// no code with the machine, only the names of events and actions. It has no stages: each question is
// asked of the sets anew.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "step_histories.h"

namespace luwu::test {

// A set of numbers below 64.
class Few {
  public:
    [[nodiscard]] bool has(std::uint32_t number) const { return (bits_ >> number & 1U) != 0; }
    [[nodiscard]] bool empty() const { return bits_ == 0; }
    [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(std::popcount(bits_)); }
    void add(std::uint32_t number) { bits_ |= std::uint64_t{1} << number; }
    void remove(std::uint32_t number) { bits_ &= ~(std::uint64_t{1} << number); }

  private:
    std::uint64_t bits_ = 0;
};

// A worker's place.
struct NaiveWorker {
    bool in_step = false;
    bool voted = false;
    bool counts = false;  // its vote does
    bool back = false;
    bool absent = false;  // lost, and nobody has joined there since
    std::uint64_t pushed = 0;
    std::uint64_t said = 0;  // pushes, by its last vote
    std::uint64_t in_step_pushes = 0;
    std::optional<step::Ending> told;
};

// All that happened since the last step ended.
struct NaiveStep {
    explicit NaiveStep(std::size_t blocks) : came(blocks), useful(blocks), squares(blocks, 0.0) {}

    step::StepSettings settings;
    bool speculates = false;
    std::vector<Few> came;             // per block: streams
    std::vector<Few> useful;           // those that came before the step was given up
    std::vector<std::uint32_t> order;  // blocks that all have pushed
    Few keep_waits, update_waits;
    Few keep_asked, kept, update_asked, in_memory, written;
    std::vector<double> squares;
    std::uint64_t stream_pushes = 0;
    bool spoiled = false, given_up = false, lost = false, epoch_awaited = false;
    bool closed = false, prepared = false, decided = false, taking_back = false, redoing = false;
    bool recording = false;
    double sum = step::kNoSquares;  // decided or counted

    [[nodiscard]] bool is_void() const { return spoiled || given_up || lost; }
    // With `written_too`, a block is under way until its update is on the disk; else until memory has it.
    [[nodiscard]] std::uint32_t under_way(bool written_too) const;
    [[nodiscard]] std::vector<std::uint32_t> updated_blocks() const;
    [[nodiscard]] std::string what_workers_did_differently(const step::Rules& rules) const;
    [[nodiscard]] std::vector<step::Action> given_back_unfinished(std::uint32_t streams) const;
    [[nodiscard]] step::Stage stage() const;
    [[nodiscard]] step::Ending ending_of_void() const;
    [[nodiscard]] double factor() const;
    [[nodiscard]] float average(float mean) const;
};

// The step before, which was answered: blocks that memory has not updated, and those that are not where they belong,
// which is the disk at a commit point and may be memory else.
struct NaiveDebt {
    std::optional<store::CommitRecord> record;
    Few not_in_memory, not_in_place;
    bool may_follow = false;  // places are known once memory has all
};
// A commit point that later steps do not wait for.
struct NaivePoint {
    store::CommitRecord record;
    bool recording = false;
};
// Updates are behind, so a block is kept if memory has room for it.
[[nodiscard]] bool is_behind(const step::Rules& rules, const NaiveStep& now, const std::optional<NaiveDebt>& debt);
[[nodiscard]] bool has_room(const step::Rules& rules, const NaiveStep& now, const std::optional<NaiveDebt>& debt,
                            std::uint32_t block);
[[nodiscard]] inline bool owes(const std::optional<NaiveDebt>& debt, std::uint32_t block) {
    return debt && debt->not_in_place.has(block);
}

// The steps that were answered, and updates by block: as memory has them, and the disk.
struct NaiveCounts {
    explicit NaiveCounts(const store::CommitRecord& standing);

    [[nodiscard]] store::CommitRecord last_record() const;
    [[nodiscard]] store::CommitRecord next_record(const std::optional<store::LossScale>& loss_scale) const;

    std::uint64_t step, durable_step, attempts, rolled_back;
    std::uint64_t attempts_of_step, rolled_back_of_step;  // when the last step was answered
    std::optional<store::LossScale> loss_scale;
    std::vector<std::uint64_t> updates, on_disk;
};

[[nodiscard]] bool is_commit_point(const step::CommitPoints& points, std::uint64_t step);
[[nodiscard]] inline bool keeps_gradients(const step::Rules& rules, bool limited) {
    return limited || rules.commit_points.every != 1;
}

class StepReference {
  public:
    explicit StepReference(const StepSetup& setup);

    // Throws std::logic_error where an executor says that it ended what was not begun.
    [[nodiscard]] step::Actions happen(const StepEvent& event);
    // The first difference between the machine's state and this one's; empty: none.
    [[nodiscard]] std::string difference(const step::State& state) const;

  private:
    void hear_worker(const StepEvent& event);
    void hear_executor(const StepEvent& event);
    void begin(std::uint32_t worker, const step::StepSettings& settings);
    void push(std::uint32_t stream, std::uint32_t block);
    void vote(const StepEvent& event);
    void decide(bool commits, double squares);
    void annul(std::uint64_t ended);
    void join(std::uint32_t worker);
    void leave(std::uint32_t worker);
    void lose(std::uint32_t worker);
    void caught_up(std::uint32_t block);
    void written(std::uint32_t block);
    void taken_back();
    void recorded();
    void nothing_is_owed();
    void flush_if_due();

    void fail(ErrorKind kind, const std::string& text);
    void all_have_pushed(std::uint32_t block);
    void update(std::uint32_t block);
    void vote_counts(std::uint32_t worker);
    void nobody_needs_gradients();
    void close_if_all_voted();
    void end_if_nothing_is_under_way();
    void answer_and_owe();
    void record_if_all_is_in_place();
    void commit();
    void end(step::StepEnd how, double squares);

    step::Rules rules_;
    std::uint32_t streams_;
    std::vector<NaiveWorker> workers_;
    std::vector<std::uint32_t> gone_;
    std::optional<bool> limits_;
    bool last_did_not_clip_ = false;
    NaiveStep now_;
    std::optional<NaiveDebt> before_;
    std::optional<NaivePoint> point_;
    NaiveCounts done_;
    std::uint64_t voided_ = 0, clipped_ = 0, redone_ = 0;
    bool point_is_due_ = false, flush_is_due_ = false;
    bool failed_ = false, broken_ = false;
    std::string failure_;
    step::Ending last_end_;
    step::Actions actions_;
};

[[nodiscard]] bool nobody_in_step(const std::vector<NaiveWorker>& workers);
// Equal, and NaN counts as equal to NaN.
[[nodiscard]] bool same(const step::Ending& left, const step::Ending& right);
[[nodiscard]] bool same(const step::Actions& left, const step::Actions& right);

}  // namespace luwu::test
