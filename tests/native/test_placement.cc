#include <doctest/doctest.h>

#include "fabric/core/placement.h"
#include "network.h"

using namespace luwu;
using fabric::Placement;

namespace {

store::StoreShape three_blocks() {
    store::StoreShape shape = test::small_shape(kernels::Dtype::float32);
    shape.blocks.resize(3);
    for (store::BlockShape& block : shape.blocks) block.elements = 100;
    return shape;
}

std::string refusal(const std::vector<std::vector<Placement::Cut>>& cuts) {
    const Error error = test::failure_of([&] { (void)Placement(three_blocks(), cuts); });
    CHECK(error.kind() == ErrorKind::invalid);
    return error.what();
}

}  // namespace

TEST_CASE("each server numbers its pieces in the model's order") {
    const store::StoreShape shape = three_blocks();
    const Placement placement(shape, {{{0, 0, 64}, {1, 64, 36}}, {{1, 0, 100}}, {{1, 0, 32}, {0, 32, 68}}});
    CHECK(placement.servers() == 2);
    CHECK(placement.pieces(1).size() == 1);
    CHECK(placement.pieces(2)[1].server == 0);
    CHECK(placement.pieces(2)[1].block == 1);
    CHECK(placement.pieces(2)[1].first == 32);
    CHECK(placement.piece(0, 1).first == 32);
    CHECK(placement.piece(1, 2).elements == 32);
    const auto part = placement.part(shape, 1);
    REQUIRE(part.blocks.size() == 3);
    CHECK(part.blocks[0].elements == 36);
    CHECK(part.blocks[0].name == shape.blocks[0].name);
    CHECK(part.blocks[2].elements == 32);
    CHECK(part.chunk_elements == shape.chunk_elements);
}

TEST_CASE("cuts that are not all of every block are refused") {
    CHECK(refusal({{{0, 0, 100}}}) == "cuts: expected those of 3 blocks, found 1");
    const std::string expected = "expected its 100 elements in order, found ";
    CHECK(refusal({{{0, 0, 100}}, {{0, 0, 64}}, {{0, 0, 100}}}).find(expected + "64") != std::string::npos);
    CHECK(refusal({{{0, 0, 100}}, {{0, 0, 64}, {1, 60, 40}}, {{0, 0, 100}}}).find(expected + "64") !=
          std::string::npos);
    CHECK(refusal({{{0, 0, 64}, {0, 64, 36}}, {{0, 0, 100}}, {{0, 0, 100}}}).find(expected + "64") !=
          std::string::npos);
    CHECK(refusal({{{0, 0, 100}}, {{2, 0, 100}}, {{0, 0, 100}}}) ==
          "server 1 has no part of any block; name fewer servers");
}
