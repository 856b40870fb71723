#include "fabric/protocol/wiring.h"

#include <string>

#include "store/error.h"

namespace luwu::fabric {

const Wiring& check(const Wiring& wiring) {
    const auto refuse = [](const std::string& text) { throw Error(ErrorKind::invalid, text); };
    if (wiring.payload_bytes == 0 || wiring.payload_bytes % LUWU_PAYLOAD_STEP != 0 ||
        wiring.payload_bytes > LUWU_MOST_PAYLOAD) {
        refuse("packets of " + std::to_string(wiring.payload_bytes) + " bytes; expected a multiple of " +
               std::to_string(LUWU_PAYLOAD_STEP) + " up to " + std::to_string(LUWU_MOST_PAYLOAD));
    }
    if (wiring.workers == 0 || wiring.workers > kernels::kFixedMostWorkers) {
        refuse("a job of " + std::to_string(wiring.workers) + " workers; expected 1 to " +
               std::to_string(kernels::kFixedMostWorkers));
    }
    if (wiring.form != LUWU_INT16 && wiring.form != LUWU_INT32 && wiring.form != LUWU_FLOAT32) {
        refuse("gradients of form " + std::to_string(wiring.form) + "; expected int16, int32 or float32");
    }
    if (wiring.incarnation >= kMostIncarnations) {
        refuse("incarnation " + std::to_string(wiring.incarnation) + " of a participant; expected less than " +
               std::to_string(kMostIncarnations));
    }
    for (const std::uint32_t window : wiring.window) {
        if (window == 0) refuse("a stream's window of no packets; expected at least one");
        const std::uint64_t bytes = std::uint64_t{window} * wiring.payload_bytes;
        if (window > kMostWindow || bytes > kMostWindowBytes) {
            refuse("a stream's window of " + std::to_string(window) + " packets, " + std::to_string(bytes) +
                   " bytes; expected at most " + std::to_string(kMostWindow) + " packets and " +
                   std::to_string(kMostWindowBytes) + " bytes");
        }
    }
    return wiring;
}

std::vector<WireBlock> wire_blocks(const store::StoreShape& shape) {
    std::vector<WireBlock> blocks;
    for (const store::BlockShape& block : shape.blocks)
        blocks.push_back({block.elements, block.trainable, block.dtype});
    return blocks;
}

}  // namespace luwu::fabric
