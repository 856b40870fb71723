// An inner node of the tree: adds up what its children push, copies what its parent sends, and merges heartbeats, so
// that to its parent its children look like one. What it knows is soft: one that was started again learns it from the
// next heartbeats, and the children send again what it had. Called by one thread at a time.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <queue>
#include <vector>

#include "fabric/protocol/link.h"
#include "switch/block_sums.h"
#include "switch/slot_table.h"

namespace luwu::switching {

struct SwitchNodeStats {
    std::uint64_t packets_in = 0;
    std::uint64_t packets_out = 0;
    std::uint64_t sums_sent = 0;
    std::uint64_t sums_sent_again = 0;
    std::uint64_t heartbeats_in = 0;
    std::uint64_t heartbeats_out = 0;
    std::uint64_t state_bytes = 0;  // allocated at the start, for slots
    fabric::PacketDrops drops{};
};

inline constexpr std::uint32_t kMostChildren = 1024;

class SwitchNode final : public fabric::Node {
  public:
    // `child` is this switch's number among its parent's children. The wiring needs no blocks. Gradients are added in
    // `gradients`; by default in this process.
    SwitchNode(const fabric::Wiring& wiring, const fabric::Address& parent, std::uint16_t child,
               const std::vector<fabric::Address>& children, std::unique_ptr<SlotTable> gradients = nullptr);

    void receive(const fabric::Address& from, const fabric::Datagram& datagram, fabric::Time now,
                 fabric::Outbox& outbox) override;
    fabric::Time advance(fabric::Time now, fabric::Outbox& outbox) override;
    [[nodiscard]] bool may_be_marked() const override;

    [[nodiscard]] std::uint32_t epoch() const { return epoch_; }
    [[nodiscard]] SwitchNodeStats stats() const;

    // Records the sums of blocks from now on, the first so many. Sums that are made elsewhere are not seen here.
    void start_trace(std::uint64_t most_records);
    trace::Recorded stop_trace() { return sums_.stop(); }

  private:
    static constexpr std::array kUp = {LUWU_STREAM_REQUESTS, LUWU_STREAM_EXPONENTS, LUWU_STREAM_GRADIENTS};

    void drop(fabric::PacketDrop reason) { ++stats_.drops[static_cast<std::size_t>(reason)]; }
    void begin_epoch(std::uint32_t epoch);
    void from_parent(const fabric::Packet& packet, std::span<const std::byte> datagram, fabric::Time now,
                     fabric::Outbox& outbox);
    void from_child(const fabric::Packet& packet, fabric::Time now, fabric::Outbox& outbox);
    void forward(fabric::Outbox& outbox);
    void take_parents_heartbeat(const fabric::Packet& packet, fabric::Time now, fabric::Outbox& outbox);
    void take_note(const fabric::Packet& packet, fabric::Time now, fabric::Outbox& outbox);
    [[nodiscard]] SlotTable& slots(luwu_stream stream) { return *slots_[stream - 1]; }
    [[nodiscard]] const SlotTable& slots(luwu_stream stream) const { return *slots_[stream - 1]; }
    [[nodiscard]] bool adds_elsewhere() const { return slots(LUWU_STREAM_GRADIENTS).elsewhere(); }
    [[nodiscard]] bool counts_marks() const { return !adds_elsewhere(); }  // else most packets do not come here
    [[nodiscard]] std::uint64_t under_way() const;
    void pass_up(luwu_stream stream, std::uint64_t sequence, fabric::Time now, fabric::Outbox& outbox);
    void send_waiting(fabric::Time now, fabric::Outbox& outbox);
    void send_sum(luwu_stream stream, std::uint64_t sequence, fabric::Time now, fabric::Outbox& outbox);
    [[nodiscard]] bool ready() const;  // everyone was heard in this epoch
    void send_up(fabric::Time now, fabric::Outbox& outbox);
    void send_down(fabric::Link& child, std::uint32_t number, fabric::Time now, fabric::Outbox& outbox);
    void add_marks_below();
    void merge_holes(fabric::Heartbeat& ours) const;

    fabric::Wiring wiring_;
    fabric::Seal seal_;
    std::uint32_t epoch_;
    fabric::Link parent_;
    std::vector<fabric::Link> children_;
    std::vector<std::unique_ptr<SlotTable>> slots_;  // by up-stream
    // Sums of gradients that the link up has no room for yet, the first on top; none is below the last one sent.
    std::priority_queue<std::uint64_t, std::vector<std::uint64_t>, std::greater<>> waiting_;
    std::vector<std::span<const std::byte>> forwards_;  // datagrams for every child
    std::vector<std::uint32_t> marks_told_;             // by each child, at the last heartbeat to the parent
    std::uint32_t marks_below_ = 0;                     // in this epoch
    SwitchNodeStats stats_;
    BlockSums sums_;
};

}  // namespace luwu::switching
