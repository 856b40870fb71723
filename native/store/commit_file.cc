#include "store/commit_file.h"

#include <unistd.h>

#include <algorithm>

#include "store/io_engine.h"

namespace luwu::store {

namespace {

using State = DecodedCommit::State;

constexpr std::uint32_t kCopies = 2;
constexpr std::uint64_t kCopyDistance = 1U << 16U;  // so large that damage of a few pages cannot reach both copies

bool newer(const CommitRecord& record, const CommitRecord& than) {
    return std::pair(record.sequence, record.opening) > std::pair(than.sequence, than.opening);
}

}  // namespace

std::uint64_t CommitFile::offset_of(std::uint32_t copy, std::uint32_t slot) const {
    return copy * round_up(kSlots * slot_bytes(), kCopyDistance) + slot * slot_bytes();
}

CommitFileContents CommitFile::read() const {
    CommitFileContents contents;
    contents.exists = file_exists(path_);
    if (!contents.exists) return contents;
    const File file = open_file(path_, false, true);
    const std::uint64_t format_2_slot = commit_slot_bytes(*layout_, kOldestFormat);
    const std::uint64_t found_bytes = file.bytes();
    const std::uint64_t bytes = std::min(found_bytes, file_bytes()) / kPage * kPage;
    const AlignedBuffer buffer(std::max(bytes, kPage));
    if (bytes > 0) read_now(file, buffer.data(), bytes, 0);
    const auto decode = [&](std::uint64_t offset, std::uint64_t slot) {
        if (offset >= bytes) return DecodedCommit{};
        return decode_commit({buffer.data() + offset, std::min(slot, bytes - offset)}, uuid_, *layout_);
    };
    // A file of a later format that was cut off at this size still has its format's number in one of the slots.
    contents.format_2 = found_bytes == kSlots * format_2_slot;
    for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
        if (decode(slot * format_2_slot, format_2_slot).format > kOldestFormat) contents.format_2 = false;
    }
    const std::uint32_t copies = contents.format_2 ? 1 : kCopies;
    const auto place_of = [&](std::uint32_t copy, std::uint32_t slot) {
        return contents.format_2 ? slot * format_2_slot : offset_of(copy, slot);
    };
    std::optional<Error> other;
    std::uint32_t empty = 0;
    std::uint32_t valid = 0;
    for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
        bool written = false;
        for (std::uint32_t copy = 0; copy < copies; ++copy) {
            const std::uint64_t offset = place_of(copy, slot);
            DecodedCommit found = decode(offset, contents.format_2 ? format_2_slot : slot_bytes());
            if (found.state == State::other_format && !other) other = other_format(path_, offset, found.format);
            if (found.state == State::empty) ++empty;
            if (found.state == State::valid) {
                ++valid;
                std::optional<CommitRecord>& best = contents.slots[slot];
                if (!best || newer(found.record, *best)) best = std::move(found.record);
            } else if (!contents.format_2 || found.state != State::empty) {
                written = true;
                contents.findings.push_back(path_ + " at offset " + std::to_string(offset) + ": " +
                                            (found.state == State::other_store
                                                 ? "the commit record is another store's"
                                                 : "a copy of a commit record is damaged"));
            }
        }
        contents.damaged[slot] = written && !contents.slots[slot];
    }
    if (other && valid == 0) throw *other;
    contents.never_written = contents.format_2 && empty == kSlots;
    return contents;
}

AlignedBuffer CommitFile::encode(const CommitRecord& record) const {
    AlignedBuffer slot(slot_bytes());
    encode_commit(record, *layout_, uuid_, {slot.data(), slot_bytes()});
    return slot;
}

void CommitFile::make(const CommitRecord& record, const std::optional<CommitRecord>& before) {
    const std::string partial = path_ + kPartial;
    unlink(partial.c_str());
    try {
        const File made = open_file(partial, true, false);
        extend(made, file_bytes());  // the gap between the copies takes no room
        for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
            const AlignedBuffer encoded = encode(before && record.sequence % kSlots != slot ? *before : record);
            for (std::uint32_t copy = 0; copy < kCopies; ++copy) {
                write_now(made, encoded.data(), slot_bytes(), offset_of(copy, slot));
            }
        }
        made.sync();
        rename_file(partial, path_);
    } catch (...) {
        unlink(partial.c_str());
        throw;
    }
    sync_folder(folder_of(path_));
    open();
}

void CommitFile::open() {
    file_ = File();
    if (file_exists(path_)) file_ = open_file(path_, false, false);
}

bool CommitFile::has_to_be_made() const {
    return file_.descriptor() < 0 || file_.names() != 1 || file_.bytes() < file_bytes();
}

void CommitFile::write(const CommitRecord& record) {
    const AlignedBuffer encoded = encode(record);
    for (std::uint32_t copy = 0; copy < kCopies; ++copy) {
        const auto slot = static_cast<std::uint32_t>(record.sequence % kSlots);
        write_now(file_, encoded.data(), slot_bytes(), offset_of(copy, slot));
    }
}

void CommitFile::rewrite(const CommitRecord& record, std::uint32_t slot) {
    const AlignedBuffer encoded = encode(record);
    const AlignedBuffer found(slot_bytes());
    std::array<std::uint32_t, kCopies> order{0, 1};
    read_now(file_, found.data(), slot_bytes(), offset_of(1, slot));
    // Overwrites the valid copy last.
    if (decode_commit({found.data(), slot_bytes()}, uuid_, *layout_).state != State::valid) order = {1, 0};
    for (const std::uint32_t copy : order) {
        write_now(file_, encoded.data(), slot_bytes(), offset_of(copy, slot));
        file_.sync();
    }
}

}  // namespace luwu::store
