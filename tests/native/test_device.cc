// Copies to and from a device that compute does not wait for, on a device that is simulated: what is read has its
// values, and nothing reads or writes what another does not expect.
#include <doctest/doctest.h>

#include <cstdlib>

#include "device_rig.h"
#include "fabric/core/shared_memory.h"
#include "support.h"

namespace luwu::test {

namespace {

constexpr std::uint64_t kMebi = 1 << 20;

JobShape small_job() {
    JobShape shape;
    shape.block_bytes = {24576, 16384, 16384, 16384, 16384, 16384, 16384, 5000, 24576};
    shape.arena_bytes = 49152;
    return shape;
}

std::string text_of(const std::vector<std::string>& wrong) {
    std::string text;
    for (const std::string& line : wrong) text += line + "\n";
    return text;
}

// Number of seeds of each random test; the control of `device_twin` asks for more.
std::uint64_t seeds() {
    const char* asked = std::getenv("LUWU_TEST_SEEDS");
    return asked == nullptr ? 6 : std::strtoull(asked, nullptr, 10);
}

}  // namespace

TEST_CASE("a device computes with the parameters of its step, and the server gets its gradients") {
    for (std::uint64_t seed = 1; seed <= seeds(); ++seed) {
        JobShape shape = small_job();
        shape.ahead = static_cast<std::uint32_t>(seed % 3);
        shape.depth = static_cast<std::uint32_t>(1 + seed % 3);
        shape.window_places = static_cast<std::uint32_t>(1 + seed % 4);
        DeviceJob job(shape, {seed, 400, 0, 0});
        for (int step = 0; step < 4; ++step) job.run_step();
        job.synchronise();
        CHECK_MESSAGE(job.wrong().empty(), text_of(job.wrong()));
        CHECK(job.server().held() == 0);
    }
}

TEST_CASE("a device's memory is that of a few blocks, whatever their number") {
    std::vector<std::size_t> most;
    for (const std::uint32_t blocks : {8U, 32U}) {
        JobShape shape;
        shape.block_bytes.assign(blocks, 8192);
        shape.arena_bytes = 16384;
        DeviceJob job(shape, {7, 50, 0, 0});
        for (int step = 0; step < 2; ++step) job.run_step();
        CHECK(job.engine().stats().device_bytes == 6 * 8192);
        most.push_back(twin_most_device_bytes());
    }
    CHECK(most[0] == most[1]);
    CHECK(most[0] == 6 * 8192);
}

TEST_CASE("a block that nobody needs any more is given back, taken or not") {
    JobShape shape = small_job();
    DeviceJob job(shape, {3, 200, 0, 0});
    device::CopyEngine& engine = job.engine();
    for (int round = 0; round < 20; ++round) {
        request(engine, 1, true);
        request(engine, 2, true);
        if (round % 2 == 0) {
            until_there([&](auto at_most) { return engine.take(1, job.compute(), at_most); });
        }
        for (const std::uint32_t block : {1U, 2U}) {
            until_there([&](auto at_most) { return engine.release(block, job.compute(), at_most); });
        }
    }
    until_there([&](auto at_most) { return engine.settle(at_most); });
    CHECK(job.server().held() == 0);
    CHECK_MESSAGE(job.wrong().empty(), text_of(job.wrong()));
}

TEST_CASE("a caller may hold more blocks than there are buffers, and gradients that it drops") {
    JobShape shape;
    shape.block_bytes.assign(6, 8192);
    shape.window_places = 6;
    shape.arena_bytes = 8192;
    shape.depth = 2;
    DeviceJob job(shape, {3, 100, 0, 0});
    device::CopyEngine& engine = job.engine();
    std::set<device::Address> addresses;
    for (std::uint32_t block = 0; block < 6; ++block) {
        request(engine, block, false);
        addresses.insert(*until_there([&](auto at_most) { return engine.take(block, job.compute(), at_most); }));
        addresses.insert(*until_there([&](auto at_most) { return engine.gradient(block, job.compute(), at_most); }));
    }
    CHECK(addresses.size() == 12);
    for (std::uint32_t block = 0; block < 6; ++block) {
        engine.drop_gradient(block);
        until_there([&](auto at_most) { return engine.release(block, job.compute(), at_most); });
    }
    until_there([&](auto at_most) { return engine.settle(at_most); });
    job.run_step();  // and what was dropped does not come back
    job.synchronise();
    CHECK_MESSAGE(job.wrong().empty(), text_of(job.wrong()));
}

TEST_CASE("nothing stays registered or allocated when an engine ends, even in the middle of a step") {
    for (const bool stalled : {false, true}) {
        DeviceJob job(small_job(), {3, 2000, 0, 0});
        CHECK(twin_registered_bytes() > 0);
        if (stalled) job.server().stall();
        for (const std::uint32_t block : {1U, 2U, 3U}) request(job.engine(), block, false);
        if (!stalled) {
            until_there([&](auto at_most) { return job.engine().take(1, job.compute(), at_most); });
        }
        job.end_engine();
        CHECK(twin_registered_bytes() == 0);
        CHECK(twin_device_bytes() == 0);
        CHECK_MESSAGE(job.wrong().empty(), text_of(job.wrong()));
    }
}

TEST_CASE("an engine may end while the server still writes a block that was asked for") {
    DeviceJob job(small_job(), {3, 0, 0, 0});
    const TwinAccess write{job.server().window().data(), 8192, 1, "the server writes parameters"};
    twin_server_access(&write);
    job.end_engine();
    CHECK_MESSAGE(job.wrong().empty(), text_of(job.wrong()));
}

TEST_CASE("a stalled server lets the caller go, and one that ends says why") {
    DeviceJob job(small_job(), {3, 0, 0, 0});
    job.server().stall();
    request(job.engine(), 1, false);
    CHECK_FALSE(job.engine().take(1, job.compute(), std::chrono::milliseconds(20)));
    CHECK_FALSE(job.engine().release(1, job.compute(), std::chrono::milliseconds(20)));
    job.server().fail();
    CHECK(kind_of([&] { until_there([&](auto at_most) { return job.engine().release(1, job.compute(), at_most); }); },
                  "the server ended") == ErrorKind::server);
    CHECK(kind_of([&] { (void)job.engine().settle(std::chrono::milliseconds(20)); }) == ErrorKind::server);
}

TEST_CASE("a block whose release was interrupted may be taken after all") {
    DeviceJob job(small_job(), {3, 0, 0, 0});
    device::CopyEngine& engine = job.engine();
    job.server().stall();
    request(engine, 1, false);
    CHECK_FALSE(engine.release(1, job.compute(), std::chrono::milliseconds(20)));
    CHECK_FALSE(engine.take(1, job.compute(), std::chrono::milliseconds(20)));
    job.server().go_on();
    const auto address = until_there([&](auto at_most) { return engine.take(1, job.compute(), at_most); });
    CHECK(engine.take(1, job.compute(), std::chrono::milliseconds(20)) == address);  // again, the same
    CHECK(engine.release(1, job.compute(), std::chrono::milliseconds(20)));
    CHECK(kind_of([&] { (void)engine.take(1, job.compute(), std::chrono::milliseconds(20)); }) == ErrorKind::order);
    until_there([&](auto at_most) { return engine.settle(at_most); });
    CHECK(job.server().held() == 0);
}

TEST_CASE("what the driver refuses is an error that says what it was") {
    const TwinSettings settings{3, 0, 0, 0};
    SUBCASE("locking memory") {
        twin_reset(&settings);
        twin_fail("cuMemHostRegister_v2", 1, 2);
        const auto driver = std::make_shared<device::Driver>(LUWU_TWIN_LIBRARY);
        ServerTwin server(small_job(), 1, 0);
        const device::EngineSettings of_engine{driver, 0, small_job().block_bytes, server.window(), server.arena(), 3,
                                               {},     {}};
        CHECK(kind_of([&] { const device::CopyEngine engine(of_engine, server); }, "ulimit -l") == ErrorKind::device);
        CHECK(twin_registered_bytes() == 0);
        const device::CopyEngine engine(of_engine, server);  // the next one works
    }
    SUBCASE("memory of the device") {
        DeviceJob job(small_job(), settings);
        twin_fail("cuMemAlloc_v2", 0, 2);
        request(job.engine(), 1, false);
        CHECK(kind_of([&] { until_there([&](auto at_most) { return job.engine().take(1, job.compute(), at_most); }); },
                      "allocate 16384 bytes of the device's memory for a block beside 0 of other") ==
              ErrorKind::device);
    }
    SUBCASE("memory of the device, of which others give some back") {
        int asked = 0;
        DeviceJob job(small_job(), settings, [&] { asked += 1; });
        for (int step = 0; step < 2; ++step) {
            twin_fail("cuMemAlloc_v2", 0, 2);
            job.run_step();
        }
        CHECK(asked == 1);  // all buffers were there in the second step
        CHECK_MESSAGE(job.wrong().empty(), text_of(job.wrong()));
    }
    SUBCASE("memory for a gradient: its buffer may be asked for again") {
        DeviceJob job(small_job(), settings);
        twin_fail("cuMemAlloc_v2", 0, 2);
        const auto gradient = [&] {
            return *until_there([&](auto at_most) { return job.engine().gradient(1, job.compute(), at_most); });
        };
        CHECK(kind_of([&] { (void)gradient(); }, "allocate") == ErrorKind::device);
        CHECK(gradient() != 0);
        job.engine().drop_gradient(1);
    }
    SUBCASE("a copy, and a call") {
        for (const char* function : {"cuMemcpyHtoDAsync_v2", "cuLaunchHostFunc"}) {
            DeviceJob job(small_job(), settings);
            twin_fail(function, 2, 700);
            CHECK(kind_of([&] { job.run_step(); }, "error 700") == ErrorKind::device);
        }
    }
    SUBCASE("no driver") {
        CHECK(kind_of([] { const device::Driver driver("libnone.so"); }, "device='cpu'") == ErrorKind::device);
        CHECK(kind_of([] { const device::Driver driver("libm.so.6"); }, "cuInit") == ErrorKind::device);
    }
    SUBCASE("no such device") {
        const auto driver = std::make_shared<device::Driver>(LUWU_TWIN_LIBRARY);
        CHECK(kind_of([&] { const device::Device device(driver, 3); }, "device 3") == ErrorKind::device);
    }
    SUBCASE("an arena that is too small") {
        JobShape shape = small_job();
        shape.arena_bytes = 8192;
        DeviceJob job(shape, settings);
        const auto ask = [&](std::uint32_t block) {
            return job.engine().gradient(block, job.compute(), std::chrono::milliseconds(100));
        };
        CHECK(kind_of([&] { (void)ask(0); }, "24576 bytes, the size of block 0") == ErrorKind::memory_budget);
        CHECK(ask(7));  // it has 5000 bytes: larger ones may be frozen
        job.engine().drop_gradient(7);
    }
}

TEST_CASE("a copy is made from the pages that were registered, as a device's is") {
    // Pages that are given back to the system after a registration are not the ones that a copy writes to.
    const TwinSettings settings{3, 0, 0, 0};
    for (const bool given_back : {false, true}) {
        twin_reset(&settings);
        const auto driver = std::make_shared<device::Driver>(LUWU_TWIN_LIBRARY);
        const device::Device device(driver, 0);
        const fabric::MemoryFile file("luwu-test", kMebi);
        const fabric::Mapping memory(file.descriptor(), fabric::MapMode::shared);
        std::fill_n(memory.data(), kMebi, std::byte{1});
        const device::PinnedMemory pinned(device, {memory.data(), kMebi});
        if (given_back) memory.discard();
        const device::DeviceMemory gradient(device, kMebi);
        std::fill_n(reinterpret_cast<std::byte*>(gradient.address()), kMebi, std::byte{5});
        const device::OwnStream stream(device);
        driver->check(driver->functions().copy_to_host(memory.data(), gradient.address(), kMebi, stream.get()), "copy");
        const device::Mark end(device);
        end.record(stream.get());
        end.wait();
        CHECK(memory.data()[0] == std::byte{given_back ? std::uint8_t{0} : std::uint8_t{5}});
    }
}

}  // namespace luwu::test
