// Every input that fuzzing has kept (tests/fuzz/corpus), through its target once more, without libFuzzer.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "target.h"

namespace {

std::vector<std::byte> contents_of(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> bytes(std::istreambuf_iterator<char>(file), {});
    const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
    return {data, data + bytes.size()};
}

}  // namespace

TEST_CASE("what fuzzing found is read or refused as it should be") {
    CHECK(luwu::fuzz::targets().size() >= 12);
    for (const luwu::fuzz::Target& target : luwu::fuzz::targets()) {
        CAPTURE(target.name);
        std::size_t inputs = 0;
        for (const auto& entry : std::filesystem::directory_iterator(LUWU_FUZZ_CORPUS "/" + target.name)) {
            const std::string name = entry.path().filename().string();
            CAPTURE(name);
            CHECK_NOTHROW(target.run(contents_of(entry.path())));
            ++inputs;
        }
        CHECK(inputs > 0);
    }
}
