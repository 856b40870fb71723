#include <doctest/doctest.h>

#include <filesystem>

#include "pipeline/update_probe.h"
#include "store/disk_probe.h"
#include "support.h"

using namespace luwu;

TEST_CASE("a disk is measured in whole requests, and nothing stays in the folder") {
    const test::Scratch scratch;
    const std::string folder = scratch.folder();
    constexpr std::uint64_t read = 3U << 16U;
    constexpr std::uint64_t write = 4U << 16U;
    const store::DiskProbe probe(folder, 1U << 22U);
    CHECK(std::filesystem::is_empty(folder));

    const auto mixed = probe.run({.read_bytes = read, .write_bytes = write, .seconds = 0.01});
    CHECK(mixed.bytes_read % read == 0);
    CHECK(mixed.bytes_read / read == mixed.bytes_written / write);  // each buffer that was read is written
    CHECK(mixed.bytes_read >= 12 * read);
    CHECK(mixed.seconds > 0);

    CHECK(probe.run({.read_bytes = read, .seconds = 0.01}).bytes_written == 0);
    CHECK(probe.run({.write_bytes = write, .seconds = 0.01}).bytes_read == 0);
    CHECK(probe.run({.read_bytes = read, .seconds = 0.01, .sharing = store::Sharing::shared}).bytes_read > 0);
    CHECK_THROWS_AS(static_cast<void>(probe.run({.read_bytes = 100})), Error);
    CHECK_THROWS_AS(static_cast<void>(probe.run({})), Error);
    CHECK_THROWS_AS(static_cast<void>(probe.run({.write_bytes = 1U << 22U})), Error);
}

TEST_CASE("a folder that is not there cannot be measured") {
    CHECK_THROWS_AS(store::DiskProbe("/nonexistent", 1U << 20U), Error);
}

TEST_CASE("updates are measured in whole chunks, for every optimizer and dtype") {
    for (const kernels::Optimizer* const optimizer : kernels::kOptimizers) {
        for (const auto dtype : {kernels::Dtype::float32, kernels::Dtype::bfloat16, kernels::Dtype::float16}) {
            pipeline::UpdateProbe probe;
            probe.optimizer = optimizer;
            probe.dtype = dtype;
            probe.workers = probe.threads = 2;
            probe.chunk_elements = 1U << 13U;
            probe.elements = 4 * probe.chunk_elements;
            probe.verify = true;
            probe.seconds = 0.002;
            const pipeline::UpdateRate found = measure_update(probe);
            CHECK(found.elements % probe.chunk_elements == 0);
            CHECK(found.elements > 0);
            CHECK(found.seconds >= probe.seconds);
        }
    }
    CHECK_THROWS_AS(static_cast<void>(pipeline::measure_update({.threads = 0})), Error);
    CHECK_THROWS_AS(static_cast<void>(pipeline::measure_update({.workers = 0})), Error);
    CHECK_THROWS_AS(static_cast<void>(pipeline::measure_update({.workers = 4, .trims = 2})), Error);
    CHECK_THROWS_AS(static_cast<void>(pipeline::measure_update({.workers = 65, .trims = 1})), Error);
}
