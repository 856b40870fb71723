// The frames that a server sends to its standby, and the order in which a standby takes them.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <vector>

#include "standby/receiver_session.h"
#include "standby_peers.h"
#include "stream.h"

namespace luwu::test {

namespace {

std::int64_t number_of(const std::vector<FrameKind>& came, FrameKind kind) {
    return std::count(came.begin(), came.end(), kind);
}

std::int64_t trained_chunks(const store::ChunkStore& store) {
    const auto chunks = store.layout().chunks();
    return std::count_if(chunks.begin(), chunks.end(), [](const store::ChunkPlace& place) { return place.trainable; });
}

void append(std::vector<std::byte>& stream, const fabric::Frame& frame, std::span<const std::byte> payload) {
    const auto head = fabric::encode(frame);
    stream.insert(stream.end(), head.begin(), head.end());
    if (payload.empty()) return;
    stream.insert(stream.end(), payload.begin(), payload.end());
    const std::uint32_t crc = kernels::crc32c(0, payload.data(), payload.size());
    const auto tail = std::as_bytes(std::span(&crc, 1));
    stream.insert(stream.end(), tail.begin(), tail.end());
}

// Why a standby whose own work is held up drops a connection with these bytes.
std::optional<fabric::Drop> refusal(const store::ChunkStore& own, const Folders& folders,
                                    std::span<const std::byte> stream) {
    store::ChunkStore store(folders, layout_of(folders), kUuid, store::OpenMode::create);
    std::promise<void> goes_on;
    standby::Applier applier(store, [held = goes_on.get_future().share()] { held.wait(); });
    auto [ours, theirs] = fuzz::connected();
    fuzz::send_all(theirs, stream);
    shutdown(theirs.get(), SHUT_WR);
    fabric::Bell bell;
    fabric::Channel channel(std::move(ours), bell, nullptr, "");
    std::optional<fabric::Drop> drop;
    try {
        standby::ReceiverSession session(own, applier, channel, kTiming.silence,
                                         {.record = [](std::uint64_t) {},
                                          .sync = [](bool, std::uint64_t) {},
                                          .committed = [](const standby::Applied&) {},
                                          .noted = []() -> std::optional<std::uint64_t> { return std::nullopt; },
                                          .heard = [] {}});
        session.serve();
    } catch (const fabric::Dropped& dropped) {
        drop = dropped.reason();
    } catch (const fabric::Broken&) {  // it took them all
    }
    goes_on.set_value();
    return drop;
}

}  // namespace

TEST_CASE("a standby of the same steps is refused with other values, and gets nothing with the same") {
    const Two two;
    const store::ChunkStore store(two.own, layout_of(two.own), kUuid, store::OpenMode::read_only);
    std::vector<std::byte> standing = standby::encode_standing(store);
    bool differs = false;
    SUBCASE("other values") {
        standing.back() ^= std::byte{1};  // of the digest
        differs = true;
    }
    SUBCASE("the same values") {}
    FakeStandby standby(standing);
    standby.read_on();
    auto sender = make_sender(!differs);  // or the commit would wait for one that is not refused
    sender->connect(standby.place());
    sender->commit(store);
    sender.reset();
    const auto came = standby.came();
    CHECK(number_of(came, FrameKind::record_states) == 0);
    CHECK(number_of(came, FrameKind::commit) == 0);
    CHECK(number_of(came, FrameKind::failure) == (differs ? 1 : 0));
}

TEST_CASE("a standby takes a server's frames in their order alone") {
    const Two two;
    const store::ChunkStore own(two.own, layout_of(two.own), kUuid, store::OpenMode::read_only);
    const store::ChunkPlace& place = own.layout().chunks()[0];
    const store::AlignedBuffer record = record_of(own, 0);
    const auto parameters = std::span<const std::byte>(record.data(), place.parameter_bytes);
    const auto states = std::span<const std::byte>(record.data() + place.parameter_bytes, place.state_bytes());
    auto commit = commit_of(own, std::byte{0});
    std::vector<std::byte> stream;
    fabric::Drop expected = fabric::Drop::malformed;
    SUBCASE("a record between a commit and its answer") {
        append(stream, {FrameKind::record_parameters, 0, 1, parameters.size()}, parameters);
        append(stream, {FrameKind::record_states, 0, 1, states.size()}, states);
        append(stream, {FrameKind::commit, 0, 1, commit.size()}, commit);
        append(stream, {FrameKind::alive, 0, 0, 0}, {});
        append(stream, {FrameKind::record_parameters, 0, 2, parameters.size()}, {});
    }
    SUBCASE("states without their parameters") {
        append(stream, {FrameKind::record_states, 0, 1, states.size()}, states);
    }
    SUBCASE("states of another chunk") {
        append(stream, {FrameKind::record_parameters, 0, 1, parameters.size()}, parameters);
        append(stream, {FrameKind::record_states, 1, 1, states.size()}, states);
    }
    SUBCASE("states of another update") {
        append(stream, {FrameKind::record_parameters, 0, 1, parameters.size()}, parameters);
        append(stream, {FrameKind::record_states, 0, 2, states.size()}, states);
    }
    SUBCASE("a chunk that there is not") {
        const auto chunks = static_cast<std::uint32_t>(own.layout().chunks().size());
        append(stream, {FrameKind::record_parameters, chunks, 1, parameters.size()}, parameters);
    }
    SUBCASE("more parameters than the chunk has") {
        append(stream, {FrameKind::record_parameters, 0, 1, parameters.size() + 1}, {});
        expected = fabric::Drop::oversized;
    }
    SUBCASE("more states than the chunk has") {
        append(stream, {FrameKind::record_parameters, 0, 1, parameters.size()}, parameters);
        append(stream, {FrameKind::record_states, 0, 1, states.size() + 1}, {});
        expected = fabric::Drop::oversized;
    }
    SUBCASE("a commit of another model") {
        commit[commit.size() / 2] ^= std::byte{1};
        commit[20] ^= std::byte{1};
        append(stream, {FrameKind::commit, 0, 1, commit.size()}, commit);
    }
    SUBCASE("a note without end") {
        append(stream, {FrameKind::commit, 0, 1, commit.size() + standby::kMostNoteBytes}, {});
        expected = fabric::Drop::oversized;
    }
    CHECK(refusal(own, two.other, stream) == expected);
}

TEST_CASE("a server takes no failure of its standby that is longer than a message") {
    const Two two;
    const store::ChunkStore store(two.own, layout_of(two.own), kUuid, store::OpenMode::read_only);
    std::vector<std::byte> failure;
    append(failure, {FrameKind::failure, 0, 0, fabric::kMostFailureBytes + 1}, {});
    FakeStandby standby(standby::encode_standing(store), failure);
    auto sender = make_sender();
    sender->connect(standby.place());
    wait_until([&] { return !sender->view().lost_because.empty(); });
    CHECK(sender->view().lost_because == "oversized");
    standby.read_on();
}

TEST_CASE("a commit that waits for its standby ends when the server stops") {
    const Two two;
    const store::ChunkStore store(two.own, layout_of(two.own), kUuid, store::OpenMode::read_only);
    const auto sender = make_sender(true);
    auto step = std::async(std::launch::async, [&] { sender->commit(store); });
    wait_until([&] { return sender->view().waits; });
    sender->stop_waiting();
    CHECK(kind_of([&] { step.get(); }, "this server was stopped") == ErrorKind::server);
}

TEST_CASE("a standby that missed records, because a run had ended, gets the chunks again") {
    const Two two;
    const store::ChunkStore store(two.own, layout_of(two.own), kUuid, store::OpenMode::read_only);
    FakeStandby standby(standby::encode_standing(store), {}, true);
    auto sender = make_sender(true);
    sender->connect(standby.place());
    sender->commit(store);  // it has that
    std::vector<std::byte> memory(64U << 20);
    std::atomic<int> returned{0};
    const auto then = [&](std::unique_ptr<pipeline::IoTask>) { ++returned; };
    bool drops = true;
    SUBCASE("some wait") {
        for (int i = 0; i < 3; ++i) sender->send(large_record(memory), then);
        auto ends = std::async(std::launch::async, [&] { sender->give_back(); });
        wait_until([&] { return returned == 3; });  // the first with its states
        standby.read_on();
        ends.get();
    }
    SUBCASE("none waits") {
        standby.read_on();
        for (int i = 0; i < 3; ++i) sender->send(large_record(memory), then);
        wait_until([&] { return returned == 3; });
        sender->give_back();
        drops = false;
    }
    sender->start();
    sender->commit(store);
    sender.reset();
    const std::vector<FrameKind> came = standby.came();
    CHECK(number_of(came, FrameKind::commit) == 1);
    CHECK(number_of(came, FrameKind::record_states) == (drops ? trained_chunks(store) : 3));
}

}  // namespace luwu::test
