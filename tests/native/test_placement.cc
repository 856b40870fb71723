#include <doctest/doctest.h>

#include "fabric/placement.h"
#include "network.h"

using namespace luwu;

TEST_CASE("each server numbers its blocks in the model's order") {
    const fabric::Placement placement({0, 1, 1, 0, 1});
    CHECK(placement.servers() == 2);
    const std::vector<std::uint32_t> locals{0, 0, 1, 1, 2};
    for (std::uint32_t block = 0; block < locals.size(); ++block) {
        CHECK(placement.local(block) == locals[block]);
        CHECK(placement.block(placement.server(block), placement.local(block)) == block);
    }
    const auto shape = test::small_shape(kernels::Dtype::float32);
    std::vector<std::uint32_t> homes(shape.blocks.size(), 1);
    homes[2] = homes[4] = 0;
    const auto part = fabric::Placement(homes).part(shape, 0);
    REQUIRE(part.blocks.size() == 2);
    CHECK(part.blocks[1].name == shape.blocks[4].name);
    CHECK(part.chunk_elements == shape.chunk_elements);
}

TEST_CASE("a server without a block is refused") {
    const Error error = test::failure_of([] { (void)fabric::Placement({0, 2}); });
    CHECK(error.kind() == ErrorKind::invalid);
    CHECK(std::string(error.what()).find("server 1 has no block") != std::string::npos);
}
