// Values that come into a store from outside of training, chunks read alone, and room that is given back.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "store/reader.h"
#include "store/writer.h"
#include "support.h"

using namespace luwu;
using luwu::test::kUuid;
using luwu::test::Scratch;
using store::ChunkStore;
using store::OpenMode;

namespace {

std::vector<float> ramp(std::uint64_t elements, float from) {
    std::vector<float> values(elements);
    for (std::uint64_t i = 0; i < elements; ++i) values[i] = from + static_cast<float>(i) / 128.0F;
    return values;
}

// Every chunk at an update count, its values beginning with its number, its moments with 1000 and 2000 more.
void fill(ChunkStore& store, std::uint64_t count) {
    float number = 0;
    for (const store::ChunkPlace& place : store.layout().chunks()) {
        const auto values = ramp(place.elements, number);
        const auto m = ramp(place.elements, number + 1000);
        const auto v = ramp(place.elements, number + 2000);
        const std::array moments{m.data(), v.data()};
        number += 1;
        if (!place.trainable && store.initialised()) continue;  // it never changes
        store::write_chunk(store, place, count, values.data(),
                           place.trainable ? std::span<const float* const>(moments) : std::span<const float* const>());
    }
    store::CommitRecord record;
    record.step = count;
    record.counts.assign(store.layout().block_count(), count);
    for (std::uint32_t block = 0; store.initialised() && block < record.counts.size(); ++block) {
        if (!store.layout().shape().blocks[block].trainable) record.counts[block] = store.committed().counts[block];
    }
    store.commit(record);
}

void check_filled(const ChunkStore& store) {
    float number = 0;
    for (const store::ChunkPlace& place : store.layout().chunks()) {
        const bool low = store.layout().parameter_size(place.block) == 2;
        const auto values = ramp(place.elements, number);
        const store::ChunkContents contents = store::read_chunk(store, place, true);
        std::vector<std::vector<float>> expected;
        if (place.trainable && low) expected.push_back(values);
        if (place.trainable) {
            expected.push_back(ramp(place.elements, number + 1000));
            expected.push_back(ramp(place.elements, number + 2000));
        }
        CHECK(contents.states == expected);
        if (!low) CHECK(std::memcmp(contents.parameters.data(), values.data(), place.elements * sizeof(float)) == 0);
        const store::ChunkContents alone = store::read_chunk(store, place, false);
        CHECK(alone.states.empty());
        CHECK(alone.parameters == contents.parameters);
        CHECK(alone.parameters.size() == place.elements * store.layout().parameter_size(place.block));
        number += 1;
    }
}

}  // namespace

TEST_CASE("chunks come out as they were written, with their states") {
    const test::Dtypes mixed(kernels::Dtype::float16, kernels::Dtype::float32);
    for (const test::Dtypes& dtypes :
         {test::Dtypes(kernels::Dtype::float32), test::Dtypes(kernels::Dtype::bfloat16), mixed}) {
        const Scratch scratch;
        const store::Layout layout(test::small_shape(dtypes), 1);
        ChunkStore store({scratch.folder()}, layout, kUuid, OpenMode::create);
        fill(store, 7);
        check_filled(store);
        const store::ChunkPlace& place = layout.chunks().front();
        const auto values = ramp(place.elements, 0);
        const std::array one{values.data()};
        CHECK_THROWS_WITH_AS(store::write_chunk(store, place, 8, values.data(), one),
                             doctest::Contains("keeps 2 optimizer states of each parameter, found 1"), Error);
    }
}

TEST_CASE("bfloat16 parameters are the nearest to what was written") {
    const Scratch scratch;
    const store::Layout layout(test::small_shape(kernels::Dtype::bfloat16), 1);
    ChunkStore store({scratch.folder()}, layout, kUuid, OpenMode::create);
    fill(store, 0);
    const store::ChunkPlace& place = layout.chunks().front();
    const store::ChunkContents contents = store::read_chunk(store, place, false);
    const auto values = ramp(place.elements, 0);
    for (std::size_t i = 0; i < values.size(); ++i) {
        std::uint16_t half = 0;
        std::memcpy(&half, contents.parameters.data() + 2 * i, sizeof half);
        const auto stored = std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16U);
        REQUIRE(std::abs(stored - values[i]) <= values[i] / 256);
    }
}

TEST_CASE("a compacted store keeps its commit, forgets the one before, and takes its room again") {
    const Scratch scratch;
    const std::vector<std::string> folders{scratch.folder()};
    const store::Layout layout(test::small_shape(kernels::Dtype::float32), 1);
    const auto allocated = [&] {  // fill(4) goes to version 0
        return store::open_file(folders[0] + "/version-0.luwu", false, true).allocated_bytes();
    };
    {
        ChunkStore store(folders, layout, kUuid, OpenMode::create);
        fill(store, 4);
        fill(store, 5);
        REQUIRE(store.before().has_value());
    }
    const std::uint64_t whole = allocated();
    {
        ChunkStore store(folders, layout, kUuid, OpenMode::open);
        const std::uint64_t given = store.compact();
        CHECK(given == whole - allocated());
        CHECK(allocated() < whole);
        check_filled(store);
        CHECK(store.compact() == 0);
    }
    ChunkStore store(folders, layout, kUuid, OpenMode::open);
    CHECK(store.committed().step == 5);
    CHECK_FALSE(store.before().has_value());
    check_filled(store);
    store.make_room();
    CHECK(allocated() >= whole);
    check_filled(store);
    fill(store, 6);
    check_filled(store);
}
