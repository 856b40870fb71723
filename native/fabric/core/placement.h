// Placement of each block's elements on a job's servers.
#pragma once

#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "store/layout.h"

namespace luwu::fabric {

// Elements of one block that one server has, as a block of its own.
struct Piece {
    std::uint32_t server = 0;
    std::uint32_t block = 0;  // its number there
    std::uint64_t first = 0;  // element of the model's block
    std::uint64_t elements = 0;
};

class Placement {
  public:
    using Cut = std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>;  // server, first element, elements

    // The cuts of each block. A server numbers its pieces in the order of the model's blocks. Throws Error(invalid)
    // where they are not all of a block, or a server has two of one block, or none of any.
    Placement(const store::StoreShape& shape, const std::vector<std::vector<Cut>>& cuts);

    [[nodiscard]] std::uint32_t servers() const { return static_cast<std::uint32_t>(of_servers_.size()); }
    [[nodiscard]] std::span<const Piece> pieces(std::uint32_t block) const { return of_blocks_[block]; }
    [[nodiscard]] const Piece& piece(std::uint32_t server, std::uint32_t block) const {
        return of_servers_[server][block].piece;
    }
    // Part of the model on one server.
    [[nodiscard]] store::StoreShape part(const store::StoreShape& shape, std::uint32_t server) const;

  private:
    struct Owned {
        Piece piece;
        std::uint32_t of;  // the model's block
    };
    std::vector<std::vector<Piece>> of_blocks_;
    std::vector<std::vector<Owned>> of_servers_;
};

}  // namespace luwu::fabric
