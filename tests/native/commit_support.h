// Helpers for tests of commit records and of versions: they make small stores, damage files, and check what a store
// holds.
#pragma once

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "support.h"

namespace luwu::test {

namespace fs = std::filesystem;

using Folders = std::vector<std::string>;

const inline Dtypes kFloat(kernels::Dtype::float32);
constexpr std::uint64_t kPlenty = 1U << 26;
inline store::Layout layout_of(const Folders& folders) {
    return {small_shape(kFloat), static_cast<std::uint32_t>(folders.size())};
}

inline void train(const Folders& folders, std::uint64_t from, std::uint64_t to,
                  store::OpenMode mode = store::OpenMode::open) {
    Rig rig(folders, kFloat, 1, kPlenty, mode);
    if (mode == store::OpenMode::create) rig.initialise();
    for (std::uint64_t step = from; step <= to; ++step) REQUIRE(rig.run_all(step) == 1);
}

inline void check_at(const Folders& folders, std::uint64_t step) {
    CAPTURE(step);
    CHECK(equal(stored_contents(folders, kFloat), expected_contents(kFloat, 1, step)));
}

inline void spoil(const std::string& path, std::uint64_t offset, std::uint64_t bytes = store::kPage) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file << std::string(bytes, '\x5a');
}

inline std::vector<std::string> findings_of(const Folders& folders) {
    const store::Layout layout = layout_of(folders);
    return store::ChunkStore(folders, layout, kUuid, store::OpenMode::read_only).findings();
}

inline void link_copy(const std::string& from, const std::string& to) {
    fs::remove_all(to);
    fs::create_directories(to);
    fs::copy(from, to, fs::copy_options::recursive | fs::copy_options::create_hard_links);
}

}  // namespace luwu::test
