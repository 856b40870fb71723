// A standby has every commit of its server, and is at that commit bit for bit whenever it takes over.
#include <doctest/doctest.h>

#include <chrono>
#include <future>
#include <memory>

#include "standby/sync.h"
#include "standby_support.h"

namespace luwu::test {

namespace {

using namespace std::chrono_literals;
using standby::Sync;
using Next = Sync::Next;

}  // namespace

TEST_CASE("what a server owes its standby") {
    Sync sync(false);
    CHECK(sync.next() == Next::nothing);
    CHECK(!sync.sends());
    sync.connected();
    CHECK_MESSAGE(!sync.sends(), "it has missed records of this step already");
    sync.committed();
    CHECK(sync.next() == Next::copy);
    sync.copied();
    CHECK(sync.next() == Next::commit);
    sync.has();
    CHECK(sync.next() == Next::require);
    sync.required();
    CHECK(sync.next() == Next::tell);
    sync.knows();
    CHECK(sync.next() == Next::nothing);
    CHECK(sync.sends());

    SUBCASE("records that went out need no copy") {
        sync.committed();
        CHECK(sync.next() == Next::commit);
    }
    SUBCASE("a record that did not go out does") {
        sync.passed_by();
        CHECK(!sync.sends());
        sync.committed();
        CHECK(sync.next() == Next::copy);
    }
    SUBCASE("one that is away is waited for, and gets what it has missed") {
        sync.lost();
        CHECK(!sync.sends());
        sync.committed();
        CHECK(sync.next() == Next::wait);
        sync.connected();
        CHECK(sync.next() == Next::copy);
        sync.has();  // it had that commit before
        CHECK_MESSAGE(sync.next() == Next::tell, "it may have missed that, too");
        sync.knows();
        CHECK(sync.next() == Next::nothing);
        CHECK(sync.sends());
    }
    SUBCASE("one that may have noted something else since is told again") {
        sync.doubted();
        CHECK(sync.next() == Next::tell);
    }
    SUBCASE("one that is given up is not") {
        sync.lost();
        sync.committed();
        sync.released();
        CHECK(sync.next() == Next::nothing);
    }
}

TEST_CASE("a standby has each commit") {
    const Scratch scratch;
    const Folders own{scratch.folder("own")};
    const Folders other{scratch.folder("other-0"), scratch.folder("other-1")};  // it may have other folders
    const std::uint64_t memory = variants({kPlenty, Rig::minimum_bytes(kFloat, 1)}).back();
    ReplicatedServer server(own, store::OpenMode::create, make_sender(), memory);
    auto standby = make_standby(other, store::OpenMode::create);
    REQUIRE(server.rig.run_all(1) == 1);  // before it is there
    auto owners = std::make_unique<Owners>(*server.sender, *standby);
    server.sender->set_note({std::byte{1}, std::byte{2}});
    server.sender->connect({"127.0.0.1", standby->port(), kToken});
    for (std::uint64_t step = 2; step <= 6; ++step) {
        REQUIRE(server.rig.run_all(step) == 1);
        CHECK(standby->view().step == step);
        CHECK(server.sender->view().step == step);
    }
    CHECK(server.sender->view().required);
    wait_until([&] { return standby->view().in_sync; });
    CHECK(standby->view().note == std::vector<std::byte>{std::byte{1}, std::byte{2}});
    CHECK_MESSAGE(server.sender->view().bytes_copied < server.sender->view().bytes_sent, "only the first is copied");
    owners.reset();
    standby.reset();
    CHECK(equal(stored_contents(other, kFloat), expected_contents(kFloat, 1, 6)));
}

TEST_CASE("a standby's store trains on as the server's would") {
    const Scratch scratch;
    const Folders own{scratch.folder("own")};
    const Folders other{scratch.folder("other")};
    {
        ReplicatedServer server(own, store::OpenMode::create, make_sender());
        auto standby = make_standby(other, store::OpenMode::create);
        const Owners owners(*server.sender, *standby);
        server.sender->connect({"127.0.0.1", standby->port(), kToken});
        for (std::uint64_t step = 1; step <= 3; ++step) REQUIRE(server.rig.run_all(step) == 1);
        // An attempt that is not kept leaves nothing at the standby that a later one could be taken for.
        CHECK(server.rig.run_all(4, true) == pipeline::kNotFinite);
        REQUIRE(server.rig.run_all(4) == 1);
    }
    train(other, 5, 7);
    CHECK(equal(stored_contents(other, kFloat), expected_contents(kFloat, 1, 7)));
}

TEST_CASE("a standby that has missed records while it was connected gets them, and no frozen chunk again") {
    const Scratch scratch;
    const Folders own{scratch.folder("own")};
    const Folders other{scratch.folder("other")};
    ReplicatedServer server(own, store::OpenMode::create, make_sender());
    auto standby = make_standby(other, store::OpenMode::create);
    auto owners = std::make_unique<Owners>(*server.sender, *standby);
    server.sender->connect({"127.0.0.1", standby->port(), kToken});
    REQUIRE(server.rig.run_all(1) == 1);
    const std::uint64_t copied = server.sender->view().bytes_copied;
    server.sender->give_back();  // what follows is not sent
    REQUIRE(server.rig.run_all(2) == 1);
    CHECK(standby->view().step == 2);
    CHECK(server.sender->view().bytes_copied > copied);
    CHECK(standby->view().failure.empty());
    owners.reset();
    standby.reset();
    CHECK(equal(stored_contents(other, kFloat), expected_contents(kFloat, 1, 2)));
}

TEST_CASE("no commit counts without a standby that was in sync") {
    const Scratch scratch;
    const Folders own{scratch.folder("own")};
    const Folders other{scratch.folder("other")};
    ReplicatedServer server(own, store::OpenMode::create, make_sender());
    auto standby = make_standby(other, store::OpenMode::create);
    auto owners = std::make_unique<Owners>(*server.sender, *standby);
    server.sender->connect({"127.0.0.1", standby->port(), kToken});
    REQUIRE(server.rig.run_all(1) == 1);
    REQUIRE(server.rig.run_all(2) == 1);
    wait_until([&] { return standby->view().in_sync; });
    owners.reset();
    standby.reset();  // as if its machine were off
    auto step = std::async(std::launch::async, [&] { return server.rig.run_all(3); });
    wait_until([&] { return server.sender->view().waits; });
    CHECK_MESSAGE(equal(stored_contents(own, kFloat), expected_contents(kFloat, 1, 3)), "its own disk has it");
    CHECK(step.wait_for(20ms) == std::future_status::timeout);

    SUBCASE("it comes back, and gets what it has missed") {
        standby = make_standby(other, store::OpenMode::open, true);
        CHECK(standby->view().step == 2);
        owners = std::make_unique<Owners>(*server.sender, *standby);
        server.sender->connect({"127.0.0.1", standby->port(), kToken});
        CHECK(step.get() == 1);
        REQUIRE(server.rig.run_all(4) == 1);
        CHECK(standby->view().step == 4);
        owners.reset();
        standby.reset();
        CHECK(equal(stored_contents(other, kFloat), expected_contents(kFloat, 1, 4)));
    }
    SUBCASE("it is given up") {
        CHECK(!server.sender->release(false));
        CHECK(step.wait_for(20ms) == std::future_status::timeout);
        CHECK(!server.sender->release(true));
        CHECK(step.get() == 1);
        REQUIRE(server.rig.run_all(4) == 1);
    }
    SUBCASE("it has taken over") {
        server.sender->replace("the standby has taken over");
        CHECK(step.get() == -1);
        CHECK(kind_of([&] { server.sender->connect({"127.0.0.1", 1, kToken}); }, "has taken over") ==
              ErrorKind::server);
    }
}

TEST_CASE("a commit does not wait for ever for a standby that is away") {
    const Scratch scratch;
    const Folders own{scratch.folder("own")};
    train(own, 1, 1, store::OpenMode::create);
    ReplicatedServer server(own, store::OpenMode::open, make_sender(true, 10ms));
    CHECK(server.rig.run_all(2) == -1);
    const auto failure = server.rig.pipeline().failure();
    REQUIRE(failure);
    CHECK(std::string(failure->what()).find("has not answered for too long") != std::string::npos);
}

TEST_CASE("a standby that hears too late that it is given up hears that it is not") {
    const Scratch scratch;
    const Folders own{scratch.folder("own")};
    const Folders other{scratch.folder("other")};
    auto sender = std::make_shared<standby::Sender>(standby::SenderSettings{
        .timing = kTiming, .answer = std::chrono::milliseconds(20), .tls = {}, .required = false, .patience = 1h});
    ReplicatedServer server(own, store::OpenMode::create, sender);
    auto standby = make_standby(other, store::OpenMode::create);
    auto owners = std::make_unique<Owners>(*sender, *standby);
    for (bool connected = false; !connected;) {  // an answer takes longer at times
        try {
            sender->connect({"127.0.0.1", standby->port(), kToken});
            connected = true;
        } catch (const Error&) {
        }
    }
    REQUIRE(server.rig.run_all(1) == 1);
    owners.reset();  // its owner notes nothing
    CHECK(!sender->release(false));
    CHECK(sender->view().required);
    auto step = std::async(std::launch::async, [&] { return server.rig.run_all(2); });
    wait_until([&] { return sender->view().waits; });  // until it has noted that it is counted on
    owners = std::make_unique<Owners>(*sender, *standby);
    CHECK(step.get() == 1);
    CHECK(standby->view().in_sync);
}

TEST_CASE("a standby that comes and is refused again and again does not keep a commit waiting for ever") {
    const Scratch scratch;
    const Folders own{scratch.folder("own")};
    const Folders other{scratch.folder("other")};
    train(other, 1, 5, store::OpenMode::create);  // the server's store was taken back
    train(own, 1, 2, store::OpenMode::create);
    auto standby = make_standby(other, store::OpenMode::open, true);
    auto sender = make_sender(true, 200ms);
    std::atomic<bool> ends{false};
    std::thread comes([&] {
        while (!ends) {
            try {
                sender->connect({"127.0.0.1", standby->port(), kToken});
            } catch (const Error&) {
            }
            std::this_thread::sleep_for(1ms);
        }
    });
    const store::ChunkStore store(own, layout_of(own), kUuid, store::OpenMode::read_only);
    CHECK(kind_of([&] { sender->commit(store); }, "taken back") == ErrorKind::server);
    ends = true;
    comes.join();
}

TEST_CASE("a server that was started again waits for its standby, which has the commit") {
    const Scratch scratch;
    const Folders own{scratch.folder("own")};
    const Folders other{scratch.folder("other")};
    auto standby = make_standby(other, store::OpenMode::create);
    {
        ReplicatedServer server(own, store::OpenMode::create, make_sender());
        const Owners owners(*server.sender, *standby);
        server.sender->connect({"127.0.0.1", standby->port(), kToken});
        REQUIRE(server.rig.run_all(1) == 1);
    }
    ReplicatedServer again(own, store::OpenMode::open, make_sender(true));
    wait_until([&] { return !standby->view().connected; });
    standby->expect(kToken);
    auto owners = std::make_unique<Owners>(*again.sender, *standby);
    again.sender->connect({"127.0.0.1", standby->port(), kToken});
    REQUIRE(again.rig.run_all(2) == 1);
    CHECK(standby->view().step == 2);
    owners.reset();
    standby.reset();
    CHECK(equal(stored_contents(other, kFloat), expected_contents(kFloat, 1, 2)));
}

TEST_CASE("a standby takes nothing from strangers, and nothing of another history") {
    const Scratch scratch;
    const Folders own{scratch.folder("own")};
    const Folders other{scratch.folder("other")};
    train(other, 1, 5, store::OpenMode::create);  // ahead of the server's
    ReplicatedServer server(own, store::OpenMode::create, make_sender());
    auto standby = make_standby(other, store::OpenMode::open);
    const fabric::Token wrong{std::byte{8}};
    CHECK(kind_of([&] { server.sender->connect({"127.0.0.1", standby->port(), wrong}); }) == ErrorKind::server);
    server.sender->connect({"127.0.0.1", standby->port(), kToken});
    CHECK(kind_of([&] { server.sender->connect({"127.0.0.1", standby->port(), kToken}); }, "attached already") ==
          ErrorKind::order);
    REQUIRE(server.rig.run_all(1) == 1);  // goes on without it
    wait_until([&] { return !standby->view().failure.empty(); });
    CHECK(standby->view().failure.find("taken back") != std::string::npos);
    CHECK(!server.sender->view().required);
    standby.reset();
    CHECK(equal(stored_contents(other, kFloat), expected_contents(kFloat, 1, 5)));
}

}  // namespace luwu::test
