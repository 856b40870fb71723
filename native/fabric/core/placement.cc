#include "fabric/core/placement.h"

#include <string>

#include "store/error.h"

namespace luwu::fabric {

Placement::Placement(const store::StoreShape& shape, const std::vector<std::vector<Cut>>& cuts) {
    const auto refuse = [](const std::string& text) { throw Error(ErrorKind::invalid, text); };
    if (cuts.size() != shape.blocks.size()) {
        refuse("cuts: expected those of " + std::to_string(shape.blocks.size()) + " blocks, found " +
               std::to_string(cuts.size()));
    }
    for (std::uint32_t block = 0; block < cuts.size(); ++block) {
        of_blocks_.emplace_back();
        std::uint64_t end = 0;
        for (const auto& [server, first, elements] : cuts[block]) {
            if (server >= of_servers_.size()) of_servers_.resize(server + 1);
            auto& own = of_servers_[server];
            if (first != end || elements == 0 || (!own.empty() && own.back().of == block)) break;
            end += elements;
            own.push_back({{server, static_cast<std::uint32_t>(own.size()), first, elements}, block});
            of_blocks_.back().push_back(own.back().piece);
        }
        if (end != shape.blocks[block].elements) {
            refuse("cuts of block '" + shape.blocks[block].name + "': expected its " +
                   std::to_string(shape.blocks[block].elements) + " elements in order, found " + std::to_string(end));
        }
    }
    for (std::size_t server = 0; server < of_servers_.size(); ++server) {
        if (of_servers_[server].empty()) {
            refuse("server " + std::to_string(server) + " has no part of any block; name fewer servers");
        }
    }
}

store::StoreShape Placement::part(const store::StoreShape& shape, std::uint32_t server) const {
    store::StoreShape part = shape;
    part.blocks.clear();
    for (const Owned& owned : of_servers_[server]) {
        part.blocks.push_back(shape.blocks[owned.of]);
        part.blocks.back().elements = owned.piece.elements;
    }
    return part;
}

}  // namespace luwu::fabric
