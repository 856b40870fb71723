#include "pipeline/kept_gradients.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/crc32c.h"
#include "store/scratch.h"

namespace luwu::pipeline {

KeptGradients::KeptGradients(const store::ChunkStore& store, const schedule::KeptPlan& plan,
                             std::vector<kernels::Dtype> dtypes, const schedule::NodePlan& nodes)
    : layout_(store.layout()),
      dtypes_(std::move(dtypes)),
      entries_(layout_.chunks().size()),
      memory_(plan.pinned_bytes + plan.buffers * plan.buffer_bytes + store::kPage),
      file_bytes_(layout_.stripes(), 0) {
    for (std::size_t chunk = 0; chunk < entries_.size(); ++chunk) {
        const store::ChunkPlace& place = layout_.chunks()[chunk];
        if (!place.trainable) continue;
        Entry& entry = entries_[chunk];
        entry.bytes = schedule::kept_bytes(place, dtypes_[place.block]);
        entry.pinned = plan.pinned[chunk];
        if (entry.pinned || !plan.to_disk) continue;
        entry.on_disk = true;
        entry.offset = file_bytes_[place.stripe];
        file_bytes_[place.stripe] += entry.bytes;
    }
    std::byte* next = place_pinned(nodes);
    nodes.place_between({next, memory_.data() + memory_.bytes()});
    for (std::uint32_t i = 0; i < plan.buffers; ++i, next += plan.buffer_bytes) free_buffers_.push_back(next);
    if (plan.buffers > 0 && plan.to_disk) files_ = store::make_scratch(store.folders());
}

std::byte* KeptGradients::place_pinned(const schedule::NodePlan& nodes) {
    std::byte* next = memory_.data();
    for (std::uint32_t node = 0; node < nodes.count(); ++node) {
        std::byte* const begin = next;
        for (std::size_t chunk = 0; chunk < entries_.size(); ++chunk) {
            if (!entries_[chunk].pinned || nodes.of_chunk(chunk) != node) continue;
            entries_[chunk].memory = next;
            next += entries_[chunk].bytes;
        }
        nodes.place({begin, next}, node);
    }
    return next;
}

void KeptGradients::reserve() const {
    for (std::size_t stripe = 0; stripe < files_.size(); ++stripe) {
        if (file_bytes_[stripe] > 0) store::reserve(files_[stripe], file_bytes_[stripe]);
    }
}

bool KeptGradients::take_buffer(std::uint32_t chunk) {
    if (free_buffers_.empty()) return false;
    entries_[chunk].memory = free_buffers_.back();
    free_buffers_.pop_back();
    return true;
}

void KeptGradients::give_buffer_back(std::uint32_t chunk) {
    Entry& entry = entries_[chunk];
    if (entry.pinned || entry.memory == nullptr) return;
    free_buffers_.push_back(entry.memory);
    entry.memory = nullptr;
}

store::IoRequest KeptGradients::read(std::uint32_t chunk) const {
    const Entry& entry = entries_[chunk];
    store::IoRequest request;
    request.file = files_[layout_.chunks()[chunk].stripe].descriptor();
    request.offset = entry.offset;
    request.add_part(entry.memory, entry.bytes);
    return request;
}

store::IoRequest KeptGradients::write(std::uint32_t chunk) const {
    store::IoRequest request = read(chunk);
    request.operation = store::IoRequest::Operation::write;
    return request;
}

std::uint32_t KeptGradients::checksum(std::uint32_t chunk) const {
    const store::ChunkPlace& place = layout_.chunks()[chunk];
    return kernels::crc32c(0, entries_[chunk].memory, place.elements * kernels::size_of(dtypes_[place.block]));
}

Error KeptGradients::failed(const store::IoRequest& request, std::uint32_t chunk) const {
    const bool reading = request.operation == store::IoRequest::Operation::read;
    return store::system_error(reading ? "read" : "write",
                               files_[layout_.chunks()[chunk].stripe].path() + " (gradients that wait for their norm)",
                               request.error, std::max(entries_[chunk].bytes, store::hole_bytes(request.file)));
}

Error KeptGradients::damaged(std::uint32_t chunk) const {
    const store::ChunkPlace& place = layout_.chunks()[chunk];
    return {ErrorKind::corrupt, files_[place.stripe].path() + " at offset " + std::to_string(entries_[chunk].offset) +
                                    " (gradient of block '" + layout_.shape().blocks[place.block].name + "', chunk " +
                                    std::to_string(place.chunk) +
                                    "): the checksum is wrong; the disk returned other bytes than were written"};
}

}  // namespace luwu::pipeline
