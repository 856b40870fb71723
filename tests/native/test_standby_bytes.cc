// A standby that gets other bytes than it should: values change by whole commits alone.
#include <doctest/doctest.h>

#include <vector>

#include "standby_peers.h"

namespace luwu::test {

TEST_CASE("a standby refuses a record that is not what its checksums say") {
    const Two two;
    auto standby = make_standby(two.other, store::OpenMode::create);
    FakeServer server(two.own, *standby);
    std::string expected = "the header of another record";
    SUBCASE("other parameters") {
        server.send_record(1, [](std::byte* parameters, store::ChunkHeader&) { parameters[5] ^= std::byte{1}; });
        expected = "other bytes than its checksums say";
    }
    SUBCASE("other states") {
        server.send_record(1, [](std::byte*, store::ChunkHeader& header) { header.state_crc[0] ^= 1U; });
        expected = "other bytes than its checksums say";
    }
    SUBCASE("a header that is not what its own checksum says") {
        server.send_record(1, [](std::byte*, store::ChunkHeader& header) { header.version = 0; });
        expected = "a damaged header";
    }
    SUBCASE("another store's") {
        server.send_record(1, [](std::byte*, store::ChunkHeader& header) { header.uuid[3] ^= 1U; });
    }
    SUBCASE("another block's") {
        server.send_record(1, [](std::byte*, store::ChunkHeader& header) { ++header.block; });
    }
    SUBCASE("another chunk's") {
        server.send_record(1, [](std::byte*, store::ChunkHeader& header) { ++header.chunk; });
    }
    SUBCASE("another update's") {
        server.send_record(1, [](std::byte*, store::ChunkHeader& header) { ++header.count; });
    }
    CHECK(server.why_it_ended().find(expected) != std::string::npos);
    wait_until([&] { return !standby->view().failure.empty(); });
    CHECK(!standby->view().has_values);
}

TEST_CASE("a standby refuses a commit of which a record is missing, and takes it with all") {
    const Two two;
    auto standby = make_standby(two.other, store::OpenMode::create);
    {
        FakeServer server(two.own, *standby);
        for (std::uint32_t chunk = 1; chunk < server.chunks(); ++chunk) server.send_record(chunk);
        server.send_commit();
        CHECK(server.why_it_ended().find("came without the record of block 'root', chunk 0") != std::string::npos);
    }
    wait_until([&] { return !standby->view().connected; });
    {
        FakeServer server(two.own, *standby);
        server.send_record(0);  // the others came in another connection, whose records do not count
        server.send_commit();
        CHECK(server.why_it_ended().find("came without the record") != std::string::npos);
    }
    wait_until([&] { return !standby->view().connected; });
    CHECK(!standby->view().has_values);
    {
        FakeServer server(two.own, *standby);
        for (std::uint32_t chunk = 0; chunk < server.chunks(); ++chunk) server.send_record(chunk);
        server.send_commit();
        server.await(FrameKind::committed);
    }
    standby.reset();
    check_at(two.other, 1);
}

TEST_CASE("a standby takes no commit of fewer updates than it has") {
    const Two two;
    train(two.other, 1, 3, store::OpenMode::create);
    auto standby = make_standby(two.other, store::OpenMode::open);
    {
        FakeServer server(two.own, *standby);
        for (std::uint32_t chunk = 0; chunk < server.chunks(); ++chunk) {
            if (server.place(chunk).trainable) server.send_record(chunk);
        }
        server.send_commit();
        CHECK(server.why_it_ended().find("came without the record") != std::string::npos);
    }
    standby.reset();
    check_at(two.other, 3);
}

TEST_CASE("a standby takes as much from its tenth connection as from its first") {
    const Two two;
    auto standby = make_standby(two.other, store::OpenMode::create);
    for (int connection = 0; connection < 9; ++connection) {
        FakeServer server(two.own, *standby);
        server.send_record(0);
        server.end();
        wait_until([&] { return !standby->view().failure.empty(); });
    }
    FakeServer server(two.own, *standby);
    for (std::uint32_t chunk = 0; chunk < server.chunks(); ++chunk) server.send_record(chunk);
    server.send_commit();
    server.await(FrameKind::committed);
}

TEST_CASE("records of a step that is begun again do not count for its commit") {
    const Two two;
    auto standby = make_standby(two.other, store::OpenMode::create);
    FakeServer server(two.own, *standby);
    server.send_record(0, [](std::byte*, store::ChunkHeader& header) { --header.attempt; });
    for (std::uint32_t chunk = 1; chunk < server.chunks(); ++chunk) server.send_record(chunk);
    server.send_commit();
    CHECK(server.why_it_ended().find("came without the record of block 'root', chunk 0") != std::string::npos);
}

TEST_CASE("a standby gives each attempt of its server a number of its own") {
    const Two two;
    train(two.other, 1, 1, store::OpenMode::create);
    train(two.own, 2, 2);
    std::vector<std::uint64_t> attempts;
    for (const std::uint64_t more : {0U, 1U}) {
        CAPTURE(more);
        auto standby = make_standby(two.other, store::OpenMode::open);
        FakeServer server(two.own, *standby);
        server.send_record(0);
        server.send_record(0, [&](std::byte*, store::ChunkHeader& header) { header.attempt += more; });
        server.end();
        wait_until([&] { return !standby->view().failure.empty(); });
        standby.reset();
        const store::ChunkStore store(two.other, layout_of(two.other), kUuid, store::OpenMode::read_only);
        const store::AlignedBuffer page(store::kPage);
        store::IoRequest request = store.records().read_header(store.layout().chunks()[0], 2, page.data());
        store::transfer_now(request);
        attempts.push_back(store::load_chunk_header(page.data()).attempt & 0xFFFFFFFFU);
    }
    CHECK(attempts[1] == attempts[0] + 1);
    check_at(two.other, 1);
}

TEST_CASE("a commit that has arrived counts, although its server is gone") {
    const Two two;
    auto standby = make_standby(two.other, store::OpenMode::create);
    {
        FakeServer server(two.own, *standby);
        for (std::uint32_t chunk = 0; chunk < server.chunks(); ++chunk) server.send_record(chunk);
        server.send_commit(std::byte{9});
        server.end();
    }
    wait_until([&] { return !standby->view().failure.empty(); });
    CHECK(standby->view().has_values);
    CHECK(standby->view().step == 1);
    CHECK(standby->view().note == std::vector<std::byte>{std::byte{9}});
    standby.reset();
    check_at(two.other, 1);
}

TEST_CASE("a standby hears that it is given up while a commit is under way") {
    const Two two;
    auto standby = make_standby(two.other, store::OpenMode::create);
    FakeServer server(two.own, *standby);
    for (std::uint32_t chunk = 0; chunk < server.chunks(); ++chunk) server.send_record(chunk);
    server.send_commit();
    server.send_word(FrameKind::released);
    server.await(FrameKind::committed);
    wait_until([&] { return standby->view().to_note.has_value(); });
    CHECK(standby->view().to_note == false);
    standby->note(false, standby->view().word);
    server.await(FrameKind::noted);
}

TEST_CASE("what a server says while the standby's owner notes something else is noted, too") {
    const Two two;
    auto standby = make_standby(two.other, store::OpenMode::create);
    FakeServer server(two.own, *standby);
    server.send_word(FrameKind::in_sync);
    wait_until([&] { return standby->view().to_note == true; });
    const std::uint64_t first = standby->view().word;
    server.send_word(FrameKind::released);
    wait_until([&] { return standby->view().to_note == false; });
    standby->note(true, first);  // its owner has begun to note it before
    CHECK(standby->view().to_note == false);
    standby->note(false, standby->view().word);
    CHECK(!standby->view().to_note);
    CHECK(!standby->view().in_sync);
}

}  // namespace luwu::test
