// Which of a job's servers has each block of the model, and as which of its own blocks.
#pragma once

#include <cstdint>
#include <vector>

#include "store/layout.h"

namespace luwu::fabric {

class Placement {
  public:
    // `homes`: the server of each block, from 0. A server numbers its blocks in the order of the model's. Throws
    // Error(invalid) where a server has none.
    explicit Placement(const std::vector<std::uint32_t>& homes);

    [[nodiscard]] std::uint32_t servers() const { return static_cast<std::uint32_t>(blocks_.size()); }
    [[nodiscard]] std::uint32_t server(std::uint32_t block) const { return homes_[block].server; }
    [[nodiscard]] std::uint32_t local(std::uint32_t block) const { return homes_[block].local; }
    [[nodiscard]] std::uint32_t block(std::uint32_t server, std::uint32_t local) const {
        return blocks_[server][local];
    }
    // What one server has of the model's.
    [[nodiscard]] store::StoreShape part(const store::StoreShape& shape, std::uint32_t server) const;

  private:
    struct Home {
        std::uint32_t server;
        std::uint32_t local;
    };
    std::vector<Home> homes_;
    std::vector<std::vector<std::uint32_t>> blocks_;  // of each server
};

}  // namespace luwu::fabric
