// The steps that are behind: what is answered, what stands on the disk, and the update counts of both. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "store/records.h"

namespace luwu::step {

class Progress {
  public:
    explicit Progress(const store::CommitRecord& standing)
        : step_(standing.step),
          durable_step_(standing.step),
          attempts_(standing.attempts),
          rolled_back_(standing.rolled_back),
          attempts_of_step_(standing.attempts),
          rolled_back_of_step_(standing.rolled_back),
          loss_scale_(standing.loss_scale),
          counts_(standing.counts),
          committed_(standing.counts) {}

    [[nodiscard]] std::uint64_t step() const { return step_; }                  // the last that was answered
    [[nodiscard]] std::uint64_t durable_step() const { return durable_step_; }  // of the last record on the disk
    [[nodiscard]] std::uint64_t attempts() const { return attempts_; }
    [[nodiscard]] std::uint64_t rolled_back() const { return rolled_back_; }
    [[nodiscard]] std::uint64_t voided() const { return voided_; }  // attempts that a lost worker made void
    // Attempts that have ended, void ones too. It tells several servers' attempts apart, and no store keeps it.
    [[nodiscard]] std::uint64_t ended() const { return attempts_ + voided_; }
    [[nodiscard]] std::uint64_t clipped() const { return clipped_; }
    [[nodiscard]] std::uint64_t redone() const { return redone_; }
    [[nodiscard]] const std::optional<store::LossScale>& loss_scale() const { return loss_scale_; }
    // Updates of a block in what memory and store hold now.
    [[nodiscard]] std::uint64_t count(std::uint32_t block) const { return counts_[block]; }

    // The record of the last step that was answered. It knows nothing of attempts that were rolled back since: they are
    // made again after a crash, as those after any other commit, and servers need not have ended as many.
    [[nodiscard]] store::CommitRecord last_record() const {
        store::CommitRecord record;
        record.step = step_;
        record.attempts = attempts_of_step_;
        record.rolled_back = rolled_back_of_step_;
        record.loss_scale = loss_scale_;
        record.counts = counts_;
        return record;
    }
    // The record of a step that ends now.
    [[nodiscard]] store::CommitRecord next_record(const std::optional<store::LossScale>& loss_scale) const {
        store::CommitRecord record;
        record.step = step_ + 1;
        record.attempts = attempts_ + 1;
        record.rolled_back = rolled_back_;
        record.loss_scale = loss_scale;
        record.counts = counts_;
        return record;
    }
    // Memory holds updates of this block that no record on the disk has.
    [[nodiscard]] bool is_ahead(std::uint32_t block) const { return counts_[block] != committed_[block]; }
    void updated(std::uint32_t block) { ++counts_[block]; }
    void taken_back(std::uint32_t block) { counts_[block] = committed_[block]; }
    void on_disk(const store::CommitRecord& record) {
        committed_ = record.counts;
        durable_step_ = record.step;
    }

    void end_committed(const std::optional<store::LossScale>& loss_scale) {
        attempts_of_step_ = ++attempts_;
        rolled_back_of_step_ = rolled_back_;
        ++step_;
        loss_scale_ = loss_scale;
    }
    void end_rolled_back() {
        ++attempts_;
        ++rolled_back_;
    }
    // A void attempt does not count: its number is that of the one that follows it.
    void end_void() { ++voided_; }
    void note_clipped() { ++clipped_; }
    void note_redone() { ++redone_; }

  private:
    std::uint64_t step_;
    std::uint64_t durable_step_;
    std::uint64_t attempts_;
    std::uint64_t rolled_back_;
    std::uint64_t attempts_of_step_;  // when the last step was answered, as the next
    std::uint64_t rolled_back_of_step_;
    std::uint64_t voided_ = 0;
    std::uint64_t clipped_ = 0;  // committed steps whose gradient was clipped
    std::uint64_t redone_ = 0;   // of them: those that had been updated before their norm was known
    std::optional<store::LossScale> loss_scale_;
    std::vector<std::uint64_t> counts_;
    std::vector<std::uint64_t> committed_;  // as the last record on the disk has them
};

}  // namespace luwu::step
