#include "fabric/placement.h"

#include <string>

#include "store/error.h"

namespace luwu::fabric {

Placement::Placement(const std::vector<std::uint32_t>& homes) {
    for (const std::uint32_t server : homes) {
        if (server >= blocks_.size()) blocks_.resize(server + 1);
        homes_.push_back({server, static_cast<std::uint32_t>(blocks_[server].size())});
        blocks_[server].push_back(static_cast<std::uint32_t>(homes_.size() - 1));
    }
    for (std::size_t server = 0; server < blocks_.size(); ++server) {
        if (blocks_[server].empty()) {
            throw Error(ErrorKind::invalid, "server " + std::to_string(server) + " has no block; name fewer servers");
        }
    }
}

store::StoreShape Placement::part(const store::StoreShape& shape, std::uint32_t server) const {
    store::StoreShape part = shape;
    part.blocks.clear();
    for (const std::uint32_t block : blocks_[server]) part.blocks.push_back(shape.blocks[block]);
    return part;
}

}  // namespace luwu::fabric
