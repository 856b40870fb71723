#include <doctest/doctest.h>

#include <algorithm>

#include "schedule/residency.h"
#include "store/error.h"

using namespace luwu;

namespace {

store::Layout layout_of(std::uint32_t blocks, std::uint64_t elements, kernels::Dtype dtype) {
    store::StoreShape shape;
    shape.chunk_elements = 4 * store::kChunkStep;
    for (std::uint32_t i = 0; i < blocks; ++i) shape.blocks.push_back({"b" + std::to_string(i), elements, true, dtype});
    return {shape, 1};
}

std::vector<bool> first_held(std::uint32_t blocks) {
    std::vector<bool> held(blocks, false);
    held[0] = true;
    return held;
}

}  // namespace

TEST_CASE("chunks are equal, aligned, disjoint and cover every block of a version") {
    const auto layout = layout_of(5, 30001, kernels::Dtype::bfloat16);
    std::uint64_t end = store::kPage;
    for (const auto& place : layout.chunks()) {
        CHECK(place.offset == end);
        end += place.record_bytes();
        CHECK(place.first_element % store::kChunkStep == 0);
    }
    CHECK(end == layout.version_bytes(0));
    CHECK(layout.frozen_bytes(0) == store::kPage);
    CHECK(layout.file_bytes(0) == 2 * end + store::kPage);
    std::uint64_t elements = 0;
    for (const auto& place : layout.chunks_of(2)) elements += place.elements;
    CHECK(elements == 30001);
}

TEST_CASE("stripes take turns, frozen chunks have one version and no states") {
    store::StoreShape shape;
    shape.chunk_elements = store::kChunkStep;
    shape.blocks = {{"a", 3 * store::kChunkStep, true}, {"f", 2 * store::kChunkStep, false}};
    const store::Layout layout(shape, 2);
    std::vector<std::uint32_t> stripes;
    for (const auto& place : layout.chunks()) stripes.push_back(place.stripe);
    CHECK(stripes == std::vector<std::uint32_t>{0, 1, 0, 1, 0});
    const auto& frozen = layout.chunks_of(1)[0];
    CHECK(frozen.state_bytes() == store::kPage);
    CHECK(frozen.offset == store::kPage);
    CHECK(layout.frozen_bytes(1) == store::kPage + frozen.record_bytes());
}

TEST_CASE("with clipping the same memory holds gradients before states, at any budget") {
    for (const auto dtype : {kernels::Dtype::float32, kernels::Dtype::bfloat16}) {
        for (const auto kept : {kernels::Dtype::float32, kernels::Dtype::bfloat16}) {
            const auto layout = layout_of(20, 50001, dtype);
            const auto minimum = schedule::plan_residency(layout, 1U << 30, 2, first_held(20)).minimum_bytes;
            bool had_states = false;
            for (std::uint64_t budget = minimum; !had_states || budget < 4 * minimum; budget += minimum / 16) {
                const auto plan = schedule::plan_residency(layout, budget, 2, first_held(20));
                const auto clipping = schedule::plan_clipping(layout, plan, std::vector(20, kept));
                CHECK(clipping.plan.total_bytes <= budget);
                CHECK(clipping.plan.window_bytes == plan.window_bytes);
                std::uint64_t gradients = 0;
                std::uint64_t states = 0;
                bool all = true;
                for (std::size_t chunk = 0; chunk < layout.chunks().size(); ++chunk) {
                    const auto& place = layout.chunks()[chunk];
                    if (clipping.kept.pinned[chunk]) gradients += schedule::kept_bytes(place, kept);
                    if (clipping.plan.state_pinned[chunk]) states += place.state_bytes();
                    all = all && clipping.kept.pinned[chunk];
                }
                CHECK(clipping.kept.pinned_bytes == gradients);
                CHECK(clipping.plan.pinned_state_bytes == states);
                CHECK((all || clipping.kept.buffers > 0));
                CHECK((clipping.plan.state_buffers > 0 || clipping.plan.pinned_state_bytes > 0));
                if (states > 0) CHECK(all);
                had_states = had_states || states > 0;
            }
        }
    }
}

TEST_CASE("gradients of a step's tail get what everything else leaves, or a quarter beyond the least") {
    const auto layout = layout_of(20, 50001, kernels::Dtype::bfloat16);
    const std::vector kept(20, kernels::Dtype::bfloat16);
    const auto held = first_held(20);
    const auto minimum = schedule::plan_residency(layout, 1U << 30, 2, held).minimum_bytes;
    std::uint64_t gradients = 0;
    for (const auto& place : layout.chunks()) gradients += schedule::kept_bytes(place, kept[0]);
    bool all_kept = false;
    for (std::uint64_t budget = minimum; !all_kept; budget += minimum / 16) {
        const auto plan = schedule::plan_with_tail(layout, budget, 2, held, std::nullopt, kept);
        const auto plain = schedule::plan_residency(layout, budget, 2, held);
        const auto tail = schedule::plan_tail(layout, plan, kept);
        const std::uint64_t bytes = tail.buffers * tail.buffer_bytes;
        CHECK(plan.budget_bytes == budget);
        CHECK(plan.total_bytes + bytes <= budget);
        CHECK_FALSE(tail.to_disk);
        CHECK(tail.pinned_bytes == 0);
        const bool all = tail.buffers == layout.chunks().size();
        const std::uint64_t share = plain.everything_resident() ? 0 : std::min(gradients, (budget - minimum) / 4);
        CHECK(bytes + tail.buffer_bytes > share);
        if (plain.everything_resident()) CHECK(plan.total_bytes == plain.total_bytes);
        all_kept = plain.everything_resident() && all;
    }
}

TEST_CASE("a unit with trainable and frozen parameters has a place in the window for both") {
    store::StoreShape shape;
    shape.chunk_elements = 4 * store::kChunkStep;
    for (std::uint32_t i = 0; i < 20; ++i) {
        shape.blocks.push_back({"b" + std::to_string(i), 50000, i % 2 == 0, kernels::Dtype::bfloat16});
    }
    const store::Layout mixed(shape, 1);
    const auto plain = layout_of(20, 50000, kernels::Dtype::bfloat16);
    for (const std::uint32_t workers : {1U, 3U}) {
        const auto slots = [&](const store::Layout& layout) {
            const auto minimum = schedule::plan_residency(layout, 1U << 30, workers, first_held(20)).minimum_bytes;
            return schedule::plan_residency(layout, minimum, workers, first_held(20)).slots;
        };
        CHECK(slots(plain) == 2 * workers + 2);
        CHECK(slots(mixed) == 4 * workers + 2);
    }
}

TEST_CASE("a large budget keeps everything, the minimum works, less is refused with the minimum named") {
    const auto layout = layout_of(20, 50000, kernels::Dtype::bfloat16);
    const auto held = first_held(20);
    const auto all = schedule::plan_residency(layout, 1U << 30, 1, held);
    CHECK(all.everything_resident());
    CHECK(all.total_bytes <= 1U << 30);

    const auto least = schedule::plan_residency(layout, all.minimum_bytes, 1, held);
    CHECK_FALSE(least.everything_resident());
    CHECK(least.total_bytes <= all.minimum_bytes);
    CHECK(least.pinned_offset[0] >= 0);
    CHECK(least.slots >= 3);
    CHECK(least.state_buffers >= 2);

    try {
        (void)schedule::plan_residency(layout, all.minimum_bytes - 1, 1, held);
        FAIL("expected an error");
    } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::memory_budget);
        CHECK(std::string(error.what()).find("at least") != std::string::npos);
    }
    CHECK_THROWS_WITH_AS((void)schedule::plan_residency(layout, 20'000, 1, held),
                         doctest::Contains("budget is 19.6 KiB"), Error);
}

TEST_CASE("every budget between stays within itself and pins more as it grows") {
    const auto layout = layout_of(24, 70000, kernels::Dtype::float32);
    const auto held = first_held(24);
    const auto minimum = schedule::plan_residency(layout, 1U << 30, 2, held).minimum_bytes;
    std::uint64_t pinned_before = 0;
    for (std::uint64_t budget = minimum; budget < minimum * 4; budget += minimum / 16) {
        const auto plan = schedule::plan_residency(layout, budget, 2, held);
        CHECK(plan.total_bytes <= budget);
        const auto pinned = static_cast<std::uint64_t>(std::count_if(
            plan.pinned_offset.begin(), plan.pinned_offset.end(), [](auto offset) { return offset >= 0; }));
        CHECK(pinned + plan.pinned_state_bytes >= pinned_before);
        pinned_before = pinned;
        for (std::size_t block = 0; block < plan.pinned_offset.size(); ++block) {
            if (plan.pinned_offset[block] < 0) continue;
            CHECK(static_cast<std::uint64_t>(plan.pinned_offset[block]) +
                      layout.window_bytes(static_cast<std::uint32_t>(block)) <=
                  plan.window_bytes);
        }
    }
}

TEST_CASE("pinned chunks are spread evenly over the model") {
    const auto layout = layout_of(40, 8000, kernels::Dtype::bfloat16);
    const auto held = first_held(40);
    const auto minimum = schedule::plan_residency(layout, 1U << 30, 1, held).minimum_bytes;
    const auto plan = schedule::plan_residency(layout, minimum + 32 * 100000 + 40 * 16384, 1, held);
    const auto half = plan.state_pinned.begin() + 20;
    const auto first = std::count(plan.state_pinned.begin(), half, true);
    const auto second = std::count(half, plan.state_pinned.end(), true);
    CHECK(first > 0);
    CHECK(std::abs(first - second) <= 1);
}

TEST_CASE("parameters stay in memory only where enough states are in flight, and in a half of little memory") {
    const auto layout = layout_of(40, 8 * 4 * store::kChunkStep, kernels::Dtype::bfloat16);
    const auto held = first_held(40);
    const auto minimum = schedule::plan_residency(layout, 1U << 30, 1, held);
    const std::uint64_t buffer = minimum.state_buffer_bytes;
    const auto buffers = [&](std::uint64_t more) {
        return schedule::plan_residency(layout, minimum.minimum_bytes + more * buffer, 1, held).state_buffers;
    };
    CHECK(buffers(0) == 4);
    CHECK(buffers(12) == 8);   // half of the 16 that there is room for
    CHECK(buffers(60) == 24);  // more would not move the disk any faster
    const auto plan = schedule::plan_residency(layout, minimum.minimum_bytes + 60 * buffer, 1, held);
    CHECK(plan.slots > 0);  // parameters wanted that memory, too
}

TEST_CASE("blocks that are much larger than the rest do not make every slot as large") {
    store::StoreShape shape;
    shape.chunk_elements = 4 * store::kChunkStep;
    const auto add = [&](std::uint64_t elements) {
        shape.blocks.push_back({"b" + std::to_string(shape.blocks.size()), elements, true, kernels::Dtype::float32});
    };
    add(1024);    // the root
    add(102400);  // a table
    for (int i = 0; i < 12; ++i) add(10240);
    add(204800);  // another
    const store::Layout layout(shape, 1);
    const std::vector<bool> held = first_held(15);
    const auto plan = schedule::plan_minimum(layout, 1, held);
    CHECK(plan.slots == 4);
    CHECK(plan.slot_bytes == 40960);
    CHECK(plan.window_bytes == 4096 + 4 * (102400 + 204800) + 4 * 40960);
    for (const std::uint32_t block : {0U, 1U, 14U}) CHECK(plan.pinned_offset[block] >= 0);
    for (std::uint32_t block = 2; block < 14; ++block) CHECK(plan.pinned_offset[block] == -1);
    CHECK(plan.total_bytes == plan.minimum_bytes);

    shape.blocks.resize(14);  // one table of the size of ten layers: still
    CHECK(schedule::plan_minimum(store::Layout(shape, 1), 1, first_held(14)).slot_bytes == 40960);
    for (auto& block : shape.blocks)
        block.elements = std::min<std::uint64_t>(block.elements, 12288);  // a bit larger: no
    const auto even = schedule::plan_minimum(store::Layout(shape, 1), 1, first_held(14));
    CHECK(even.slot_bytes == 49152);
    CHECK(even.pinned_offset[1] == -1);
}
