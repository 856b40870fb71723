#include "fabric/core/refusals.h"

#include "kernels/trimmed_mean.h"
#include "step/agreement.h"

namespace luwu::fabric {

void check_worker(std::uint32_t worker, std::uint64_t workers) {
    if (worker < workers) return;
    throw Error(ErrorKind::invalid, step::name_of(worker) + " is not one of this server's " + std::to_string(workers));
}

void check_trims(std::uint32_t trims, std::uint32_t workers, bool one_stream) {
    if (trims == 0) return;
    if (one_stream) throw Error(ErrorKind::invalid, "trims: expected 0 where gradients come as one sum");
    if (!kernels::can_trim(workers, trims)) {
        throw Error(ErrorKind::invalid, "trims: expected more than " + std::to_string(2 * std::uint64_t{trims}) +
                                            " workers and at most " + std::to_string(kernels::kMostTrimmed) +
                                            ", found " + std::to_string(workers));
    }
}

void check_no_values(bool initialised) {
    if (initialised) throw Error(ErrorKind::order, "the store is initialised already");
}

void check_network(bool started) {
    if (!started) throw Error(ErrorKind::order, "a step began before the network did");
}

std::optional<Error> unknown_block(const std::string& who, std::uint32_t block, std::uint64_t blocks) {
    if (block < blocks) return std::nullopt;
    return Error(ErrorKind::invalid, who + " named block " + std::to_string(block) + " of " + std::to_string(blocks));
}

Error frozen_push(const std::string& who, const std::string& block, const std::string& or_else) {
    return {ErrorKind::invalid, who + " pushed block '" + block + "', which is frozen" + or_else};
}

}  // namespace luwu::fabric
