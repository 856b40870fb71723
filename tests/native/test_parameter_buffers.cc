// A worker's own memory for parameters: how much of it is used, and that nobody waits for what somebody holds.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cstring>
#include <map>
#include <optional>
#include <vector>

#include "fabric/core/parameter_buffers.h"

using namespace luwu;

namespace {

constexpr std::uint64_t kRoot = 4096;
constexpr std::uint64_t kTable = 100 * 4096;
constexpr std::uint64_t kHead = 200 * 4096;
constexpr std::uint64_t kLayer = 8 * 4096;

// A window whose blocks arrive at once, filled with their own number.
class Rig {
  public:
    explicit Rig(fabric::MapMode mode, std::uint32_t layers = 12) : bytes_{kRoot, kTable} {
        bytes_.insert(bytes_.end(), layers, kLayer);
        bytes_.push_back(kHead);
        store::StoreShape shape;
        for (const std::uint64_t bytes : bytes_)
            shape.blocks.push_back({"b", bytes / 4, true, kernels::Dtype::float32});
        std::vector<bool> held(bytes_.size(), false);
        held[0] = true;
        const auto plan = schedule::plan_minimum(store::Layout(shape, 1), 1, held);
        window_.emplace(plan, held, bytes_, mode, [this](std::uint32_t block, bool, std::span<std::byte> into) {
            std::memset(into.data(), static_cast<int>(block), into.size());
            window_->fetched(block, true);
        });
        memory_.emplace(window_->descriptor(), fabric::MapMode::shared);
    }

    // Pulls a block, which must not have to wait.
    std::uint64_t pull(std::uint32_t block) {
        std::optional<std::int64_t> place;
        window_->pull(block, false, [&](bool ok, std::int64_t offset) {
            if (ok) place = offset;
        });
        REQUIRE(place.has_value());
        return static_cast<std::uint64_t>(*place);
    }
    void release(std::uint32_t block) { CHECK(window_->release(block)); }
    [[nodiscard]] bool is_whole(std::uint32_t block, std::uint64_t offset) const {
        const std::byte* begin = memory_->data() + offset;
        return std::all_of(begin, begin + bytes_[block], [&](std::byte value) { return value == std::byte(block); });
    }
    [[nodiscard]] std::uint64_t used_bytes() const {
        struct stat info{};
        REQUIRE(fstat(window_->descriptor(), &info) == 0);
        return static_cast<std::uint64_t>(info.st_blocks) * 512;
    }
    [[nodiscard]] std::uint32_t head() const { return static_cast<std::uint32_t>(bytes_.size()) - 1; }
    // Uses all blocks forward and backward, and pulls each before the one before it is released; returns what the
    // window uses at most.
    std::uint64_t step() {
        std::uint64_t most = 0;
        pull(0);
        std::vector<std::uint32_t> order;
        for (std::uint32_t block = 1; block <= head(); ++block) order.push_back(block);
        for (std::uint32_t block = head() - 1; block >= 1; --block) order.push_back(block);
        std::uint64_t offset = pull(order.front());
        for (std::size_t i = 0; i < order.size(); ++i) {
            const std::uint64_t next = i + 1 < order.size() ? pull(order[i + 1]) : 0;
            CHECK(is_whole(order[i], offset));
            most = std::max(most, used_bytes());
            release(order[i]);
            offset = next;
        }
        release(0);
        return most;
    }

  private:
    std::vector<std::uint64_t> bytes_;
    std::optional<fabric::ParameterBuffers> window_;
    std::optional<fabric::Mapping> memory_;
};

}  // namespace

TEST_CASE("a worker's memory is set by its largest block and not by the sum of the large ones") {
    for (const std::uint32_t layers : {4, 12}) {  // four have places of their own, twelve take turns
        Rig rig(fabric::MapMode::private_copy, layers);
        for (int i = 0; i < 3; ++i) CHECK(rig.step() <= kRoot + 4 * kLayer + kHead);
    }
}

TEST_CASE("two large blocks may be held at once, and then their memory is given back") {
    Rig rig(fabric::MapMode::private_copy);
    for (int i = 0; i < 3; ++i) {
        const std::uint64_t table = rig.pull(1);
        const std::uint64_t head = rig.pull(rig.head());
        CHECK(rig.is_whole(1, table));
        CHECK(rig.is_whole(rig.head(), head));
        rig.release(i == 1 ? rig.head() : 1);
        rig.release(i == 1 ? 1 : rig.head());
        CHECK(rig.used_bytes() <= kHead);
    }
    CHECK(rig.step() <= kRoot + 4 * kLayer + kHead);
}

TEST_CASE("memory that a device copies from is never given back") {
    Rig rig(fabric::MapMode::shared);
    const std::uint64_t table = rig.pull(1);
    rig.release(1);
    const std::uint64_t head = rig.pull(rig.head());
    CHECK(rig.is_whole(1, table));
    CHECK(rig.is_whole(rig.head(), head));
    rig.release(rig.head());
    const std::uint64_t used = rig.used_bytes();
    CHECK(rig.pull(1) == table);
    CHECK(rig.used_bytes() == used);
}
