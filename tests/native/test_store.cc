#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "store/writer.h"
#include "support.h"

using namespace luwu;
using luwu::test::kind_of;
using luwu::test::kUuid;
using luwu::test::Scratch;
using store::ChunkStore;
using store::OpenMode;

namespace {

constexpr std::uint64_t kCopyDistance = 1U << 16U;  // docs/store-format.md
const store::Layout kLayout(test::small_shape(kernels::Dtype::float32), 1);

void commit_step(ChunkStore& store, std::uint64_t step) {
    store::CommitRecord record;
    record.step = step;
    record.counts.assign(kLayout.block_count(), step);
    store.commit(record);
}

void overwrite(const std::string& path, std::uint64_t offset, const std::string& bytes) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file << bytes;
}

}  // namespace

TEST_CASE("a store remembers its last commit") {
    const Scratch scratch;
    const std::vector<std::string> folders{scratch.folder()};
    {
        ChunkStore store(folders, kLayout, kUuid, OpenMode::create);
        CHECK_FALSE(store.initialised());
        for (std::uint64_t step = 0; step < 5; ++step) commit_step(store, step);
    }
    const ChunkStore store(folders, kLayout, kUuid, OpenMode::open);
    CHECK(store.initialised());
    CHECK(store.committed().step == 4);
    CHECK(store.committed().counts[3] == 4);
}

TEST_CASE("a store goes back by one commit, for good") {
    const Scratch scratch;
    const std::vector<std::string> folders{scratch.folder()};
    {
        ChunkStore store(folders, kLayout, kUuid, OpenMode::create);
        CHECK_FALSE(store.before().has_value());
        CHECK(kind_of([&] { store.go_back(); }, "no commit before") == ErrorKind::order);
        for (std::uint64_t step = 0; step < 4; ++step) commit_step(store, step);
        REQUIRE(store.before().has_value());
        CHECK(store.before()->step == 2);
    }
    {
        ChunkStore store(folders, kLayout, kUuid, OpenMode::open);
        REQUIRE(store.before().has_value());
        CHECK(store.before()->step == 2);
        store.go_back();
        CHECK(store.committed().step == 2);
        CHECK(store.committed().counts[3] == 2);
        CHECK_FALSE(store.before().has_value());
    }
    {
        ChunkStore store(folders, kLayout, kUuid, OpenMode::open);
        CHECK(store.committed().step == 2);
        CHECK_FALSE(store.before().has_value());
        commit_step(store, 3);
    }
    const ChunkStore store(folders, kLayout, kUuid, OpenMode::open);
    CHECK(store.committed().step == 3);
    REQUIRE(store.before().has_value());
    CHECK(store.before()->step == 2);
}

TEST_CASE("a torn commit record leaves the one before; two leave none") {
    const Scratch scratch;
    const std::vector<std::string> folders{scratch.folder()};
    {
        ChunkStore store(folders, kLayout, kUuid, OpenMode::create);
        for (std::uint64_t step = 0; step < 3; ++step) commit_step(store, step);  // sequences 1, 2, 3
    }
    const std::string path = folders[0] + "/commit.luwu";
    const auto tear = [&](std::uint64_t slot) {
        for (const std::uint64_t copy : {std::uint64_t{0}, kCopyDistance}) {
            overwrite(path, copy + slot * store::commit_slot_bytes(kLayout) + 70, "torn");
        }
    };
    tear(1);  // sequence 3
    CHECK(ChunkStore(folders, kLayout, kUuid, OpenMode::read_only).committed().step == 1);
    tear(0);
    CHECK(kind_of([&] { ChunkStore(folders, kLayout, kUuid, OpenMode::open); }, "commit.luwu at offset 0") ==
          ErrorKind::corrupt);
}

TEST_CASE("creation that ended early is done again, a committed store is never overwritten") {
    const Scratch scratch;
    const std::vector<std::string> folders{scratch.folder()};
    {
        const ChunkStore store(folders, kLayout, kUuid, OpenMode::create);
    }
    std::filesystem::remove(folders[0] + "/version-0.luwu");
    {
        ChunkStore store(folders, kLayout, kUuid, OpenMode::create);
        commit_step(store, 0);
    }
    CHECK(kind_of([&] { ChunkStore(folders, kLayout, kUuid, OpenMode::create); }, "manifest") == ErrorKind::corrupt);
    std::filesystem::resize_file(folders[0] + "/commit.luwu", std::uint64_t{1} << 40U);  // which no memory holds
    CHECK(kind_of([&] { ChunkStore(folders, kLayout, kUuid, OpenMode::create); }, "manifest") == ErrorKind::corrupt);
    std::filesystem::remove(folders[0] + "/commit.luwu");
    CHECK(kind_of([&] { ChunkStore(folders, kLayout, kUuid, OpenMode::create); }, "nothing was changed") ==
          ErrorKind::corrupt);
    CHECK(std::filesystem::exists(folders[0] + "/version-0.luwu"));
}

TEST_CASE("a folder of a creation that ended early lets nobody remove another store's chunks") {
    const Scratch scratch;
    const store::Layout layout(test::small_shape(kernels::Dtype::float32), 2);
    const std::vector<std::string> first{scratch.folder("a"), scratch.folder("b")};
    const std::vector<std::string> other{scratch.folder("c"), scratch.folder("d")};
    {
        const ChunkStore begun(first, layout, kUuid, OpenMode::create);
        ChunkStore store(other, layout, kUuid, OpenMode::create);
        commit_step(store, 0);
    }
    std::filesystem::remove(other[1] + "/commit.luwu");
    const std::string missing = other[1] + "/commit.luwu is missing";
    CHECK(kind_of([&] { ChunkStore({first[0], other[1]}, layout, kUuid, OpenMode::create); }, missing) ==
          ErrorKind::corrupt);
    for (const char* name : {"/version-0.luwu", "/version-1.luwu", "/frozen.luwu"}) {
        CHECK(std::filesystem::exists(other[1] + name));
        CHECK(std::filesystem::exists(first[0] + name));
    }
    const ChunkStore again(first, layout, kUuid, OpenMode::create);
}

TEST_CASE("one store is open once, and a reader may look on") {
    const Scratch scratch;
    const std::vector<std::string> folders{scratch.folder()};
    ChunkStore store(folders, kLayout, kUuid, OpenMode::create);
    commit_step(store, 0);
    CHECK(kind_of([&] { ChunkStore(folders, kLayout, kUuid, OpenMode::open); }, std::to_string(getpid())) ==
          ErrorKind::locked);
    CHECK(ChunkStore(folders, kLayout, kUuid, OpenMode::read_only).committed().step == 0);
}

TEST_CASE("files that are not what they should be are named with their offset") {
    const Scratch scratch;
    const std::vector<std::string> folders{scratch.folder()};
    {
        ChunkStore store(folders, kLayout, kUuid, OpenMode::create);
        commit_step(store, 0);
    }
    const std::string path = folders[0] + "/version-0.luwu";
    const auto reopen = [&] { ChunkStore(folders, kLayout, kUuid, OpenMode::open); };
    SUBCASE("truncated") {
        std::filesystem::resize_file(path, kLayout.version_bytes(0) / 2);
        CHECK(kind_of(reopen, "truncated at offset " + std::to_string(kLayout.version_bytes(0) / 2)) ==
              ErrorKind::corrupt);
    }
    SUBCASE("a damaged header") {
        overwrite(path, 20, "x");
        CHECK(kind_of(reopen, "version-0.luwu at offset 0") == ErrorKind::corrupt);
    }
    SUBCASE("a newer data format") {
        overwrite(path, 8, "\x09");
        CHECK(kind_of(reopen, "version-0.luwu at offset 0 has store format 9") == ErrorKind::format);
    }
    SUBCASE("an older data format") {
        overwrite(path, 8, "\x01");
        CHECK(kind_of(reopen,
                      "has store format 1; this LuWu reads formats 2 to 3: export it with the LuWu that wrote it") ==
              ErrorKind::format);
    }
    SUBCASE("a store of format 1") {
        std::filesystem::remove(folders[0] + "/version-1.luwu");
        std::filesystem::remove(folders[0] + "/frozen.luwu");
        std::filesystem::rename(path, folders[0] + "/chunks.luwu");
        CHECK(kind_of(reopen, "chunks.luwu at offset 0 has store format 1") == ErrorKind::format);
    }
    SUBCASE("a newer commit format") {
        for (const std::uint64_t copy : {std::uint64_t{0}, kCopyDistance}) {
            for (const std::uint64_t slot : {0U, 1U}) {
                overwrite(folders[0] + "/commit.luwu", copy + slot * store::commit_slot_bytes(kLayout) + 8, "\x07");
            }
        }
        CHECK(kind_of(reopen, "has store format 7") == ErrorKind::format);
    }
    SUBCASE("another store's file") {
        CHECK(kind_of([&] { ChunkStore(folders, kLayout, {9}, OpenMode::open); }, "another store") ==
              ErrorKind::corrupt);
    }
    SUBCASE("a missing file") {
        std::filesystem::remove(path);
        CHECK(kind_of(reopen, "version-0.luwu is missing") == ErrorKind::corrupt);
    }
    SUBCASE("missing frozen chunks") {
        std::filesystem::remove(folders[0] + "/frozen.luwu");
        CHECK(kind_of(reopen, "frozen.luwu is missing") == ErrorKind::corrupt);
    }
    SUBCASE("frozen chunks in the place of a version") {
        std::filesystem::remove(path);
        std::filesystem::copy(folders[0] + "/frozen.luwu", path);
        CHECK(kind_of(reopen, "version-0.luwu at offset 0 describes another layout") == ErrorKind::corrupt);
    }
}

TEST_CASE("a store that does not fit is refused before anything is kept") {
    const Scratch scratch;
    const std::vector<std::string> folders{scratch.folder()};
    store::StoreShape huge = test::small_shape(kernels::Dtype::float32);
    huge.chunk_elements = 1U << 20;
    huge.blocks = {{"huge", std::uint64_t{1} << 44, true}};
    huge.chunk_elements = std::uint64_t{1} << 40;
    const store::Layout layout(huge, 1);
    CHECK(kind_of([&] { ChunkStore(folders, layout, kUuid, OpenMode::create); }, "free some space") ==
          ErrorKind::no_space);
    CHECK_FALSE(std::filesystem::exists(folders[0] + "/version-0.luwu"));
    CHECK_FALSE(std::filesystem::exists(folders[0] + "/commit.luwu"));
}

TEST_CASE("values and states that are written chunk by chunk come back, as every optimizer keeps them") {
    for (const kernels::Optimizer* const optimizer : kernels::kOptimizers) {
        for (const auto dtype : {kernels::Dtype::float32, kernels::Dtype::bfloat16, kernels::Dtype::float16}) {
            CAPTURE(std::string(optimizer->name));
            const Scratch scratch;
            const store::Layout layout(test::small_shape(dtype, *optimizer), 1);
            store::ChunkStore store({scratch.folder()}, layout, test::kUuid, store::OpenMode::create);
            const std::uint64_t elements = layout.shape().blocks[1].elements;
            std::vector<float> values(elements);
            std::vector<float> moments(elements);
            for (std::uint64_t i = 0; i < elements; ++i) {
                values[i] = test::first_value(1, i);
                moments[i] = 0.01F + std::abs(test::first_value(2, i));
            }
            for (const store::ChunkPlace& place : layout.chunks_of(1)) {
                const std::vector<const float*> planes(optimizer->codes.size(), moments.data() + place.first_element);
                store::write_chunk(store, place, 1, values.data() + place.first_element, planes);
            }
            store::CommitRecord record;
            record.counts.assign(layout.block_count(), 0);
            record.counts[1] = 1;
            store.commit(std::move(record));
            const test::BlockContents found = test::read_block(store, 1);
            const std::size_t masters = dtype == kernels::Dtype::float32 ? 0 : 1;
            REQUIRE(found.states.size() == masters + optimizer->codes.size());
            if (masters > 0) CHECK(found.states[0] == values);
            for (std::size_t i = 0; i < optimizer->codes.size(); ++i) {
                const bool exact = optimizer->codes[i] == kernels::StateCode::float32;
                for (std::uint64_t k = 0; k < elements; ++k) {
                    REQUIRE(std::abs(found.states[masters + i][k] - moments[k]) <= (exact ? 0 : 0.13F * moments[k]));
                }
            }
        }
    }
}

TEST_CASE("requests of both engines move two parts, and say what failed") {
    const Scratch scratch;
    const std::string path = scratch.folder() + "/file";
    for (const auto& make : {store::make_io_engine, store::make_thread_io_engine}) {
        std::filesystem::remove(path);
        const store::File file = store::open_file(path, true, false);
        const auto engine = make(2);
        const store::AlignedBuffer out(3 * store::kPage);
        const store::AlignedBuffer in(3 * store::kPage);
        std::iota(reinterpret_cast<std::uint32_t*>(out.data()), reinterpret_cast<std::uint32_t*>(out.data()) + 3072,
                  7U);
        const auto run = [&](store::IoRequest request) {
            request.file = file.descriptor();
            engine->submit(request);
            std::vector<store::IoRequest*> completed;
            while (completed.empty()) engine->wait(completed);
            return request.error;
        };
        store::IoRequest write;
        write.operation = store::IoRequest::Operation::write;
        write.add_part(out.data(), store::kPage);
        write.add_part(out.data() + store::kPage, 2 * store::kPage);
        CHECK(run(write) == 0);
        store::IoRequest read;
        read.add_part(in.data(), 2 * store::kPage);
        read.add_part(in.data() + 2 * store::kPage, store::kPage);
        CHECK(run(read) == 0);
        CHECK(std::memcmp(in.data(), out.data(), 3 * store::kPage) == 0);
        store::IoRequest beyond;
        beyond.offset = 2 * store::kPage;
        beyond.add_part(in.data(), 2 * store::kPage);
        CHECK(run(beyond) == EIO);  // the file ends in the middle
        engine->wake();
        std::vector<store::IoRequest*> none;
        engine->wait(none);
        CHECK(none.empty());
    }
}
