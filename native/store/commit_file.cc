#include "store/commit_file.h"

#include <algorithm>
#include <utility>

#include "store/aligned_buffer.h"
#include "store/io_engine.h"

namespace luwu::store {

CommitFile CommitFile::create(const std::string& path, const Layout& layout, const Uuid& uuid) {
    CommitFile made(open_file(path, true, false), layout, uuid);
    const std::uint64_t bytes = 2 * commit_slot_bytes(layout);
    reserve(made.file_, bytes);
    const AlignedBuffer empty(bytes);
    write_now(made.file_, empty.data(), bytes, 0);
    return made;
}

Commits CommitFile::read() const {
    const std::uint64_t slot_bytes = commit_slot_bytes(*layout_);
    if (file_.bytes() < 2 * slot_bytes) {
        throw Error(ErrorKind::corrupt, path() + " is truncated: expected " + std::to_string(2 * slot_bytes) +
                                            " bytes, found " + std::to_string(file_.bytes()));
    }
    const AlignedBuffer buffer(2 * slot_bytes);
    read_now(file_, buffer.data(), 2 * slot_bytes, 0);
    Commits commits;
    std::uint32_t damaged_slots = 0;
    for (std::uint64_t slot = 0; slot < 2; ++slot) {
        const auto decoded = decode_commit({buffer.data() + slot * slot_bytes, slot_bytes}, uuid_, *layout_);
        using State = DecodedCommit::State;
        if (decoded.state == State::other_format) throw other_format(path(), slot * slot_bytes, decoded.format);
        if (decoded.state == State::damaged || decoded.state == State::other_store) ++damaged_slots;
        if (decoded.state != State::valid) continue;
        CommitRecord older = decoded.record;
        if (older.sequence > commits.newest.sequence) std::swap(older, commits.newest);
        if (older.sequence > 0) commits.before = std::move(older);
    }
    // One damaged slot is what a crash in the middle of a commit leaves; the other one holds.
    // If it is the very first commit, the store counts as not initialised, which it was.
    if (commits.newest.sequence == 0 && damaged_slots == 2) {
        throw Error(ErrorKind::corrupt, path() +
                                            " at offset 0: neither of the two commit records is valid; the "
                                            "store cannot tell which step it holds");
    }
    commits.newest.counts.resize(layout_->block_count());
    return commits;
}

void CommitFile::write(const CommitRecord& record) const {
    const std::uint64_t slot_bytes = commit_slot_bytes(*layout_);
    const AlignedBuffer slot(slot_bytes);
    encode_commit(record, *layout_, uuid_, {slot.data(), slot_bytes});
    write_slot(record.sequence, slot.data());
}

void CommitFile::erase(std::uint64_t sequence) const {
    const AlignedBuffer empty(commit_slot_bytes(*layout_));
    write_slot(sequence, empty.data());
}

void CommitFile::write_slot(std::uint64_t sequence, void* slot) const {
    const std::uint64_t slot_bytes = commit_slot_bytes(*layout_);
    write_now(file_, slot, slot_bytes, (sequence & 1U) * slot_bytes);
    file_.sync();
}

bool holds_commit(const std::string& path) {
    if (!file_exists(path)) return false;
    const File file = open_file(path, false, true);
    const std::uint64_t bytes = file.bytes() / kPage * kPage;
    if (bytes == 0) return false;
    const AlignedBuffer buffer(bytes);
    read_now(file, buffer.data(), bytes, 0);
    return std::any_of(buffer.data(), buffer.data() + bytes, [](std::byte b) { return b != std::byte{0}; });
}

}  // namespace luwu::store
