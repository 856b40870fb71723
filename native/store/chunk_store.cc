#include "store/chunk_store.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "store/aligned_buffer.h"

namespace luwu::store {

namespace {

constexpr const char* kDataName = "/chunks.luwu";
constexpr const char* kCommitName = "/commit.luwu";
constexpr const char* kLockName = "/lock";
constexpr const char* kScratchName = "/scratch.luwu";

void transfer(const File& file, IoRequest::Operation operation, void* data, std::uint64_t bytes, std::uint64_t offset) {
    IoRequest request;
    request.operation = operation;
    request.file = file.descriptor();
    request.offset = offset;
    request.add_part(data, bytes);
    transfer_now(request);
    if (request.error != 0) {
        const bool reading = operation == IoRequest::Operation::read;
        throw system_error(reading ? "read" : "write", file.path() + " at offset " + std::to_string(offset),
                           request.error);
    }
}

Error newer_format(const std::string& path, std::uint64_t offset, std::uint32_t version) {
    return {ErrorKind::format, path + " at offset " + std::to_string(offset) + " has store format " +
                                   std::to_string(version) + "; this LuWu reads up to " +
                                   std::to_string(kFormatVersion) + ": use the newer LuWu that wrote it"};
}

// As the file header has it: of one element, 0 where blocks differ.
std::uint32_t parameter_bytes_of(const Layout& layout) {
    const auto size = static_cast<std::uint32_t>(layout.parameter_size(0));
    for (std::uint32_t block = 1; block < layout.block_count(); ++block) {
        if (layout.parameter_size(block) != size) return 0;
    }
    return size;
}

bool holds_commit(const std::string& path) {
    if (!file_exists(path)) return false;
    const File file = open_file(path, false, true);
    const std::uint64_t bytes = file.bytes() / kPage * kPage;
    if (bytes == 0) return false;
    const AlignedBuffer buffer(bytes);
    transfer(file, IoRequest::Operation::read, buffer.data(), bytes, 0);
    return std::any_of(buffer.data(), buffer.data() + bytes, [](std::byte b) { return b != std::byte{0}; });
}

}  // namespace

ChunkStore::ChunkStore(const std::vector<std::string>& folders, const Layout& layout, const Uuid& uuid, OpenMode mode)
    : layout_(layout), uuid_(uuid), folders_(folders) {
    if (folders.size() != layout.stripes()) {
        throw Error(ErrorKind::invalid, "the layout has " + std::to_string(layout.stripes()) + " stripes but " +
                                            std::to_string(folders.size()) + " folders were named");
    }
    if (mode != OpenMode::read_only) {
        for (const std::string& folder : folders) locks_.push_back(lock_file(folder + kLockName));
    }
    if (mode == OpenMode::create) {
        create(folders);
    } else {
        open_existing(folders, mode == OpenMode::read_only);
    }
    committed_.counts.resize(layout_.block_count());
    read_commits();
}

// The commit file comes first and is empty until the first commit: while it is, nothing here is worth keeping.
void ChunkStore::create(const std::vector<std::string>& folders) {
    const std::string commit_path = folders[0] + kCommitName;
    if (holds_commit(commit_path)) {
        throw Error(ErrorKind::corrupt, folders[0] +
                                            " holds a store whose manifest is missing; put its manifest.json back "
                                            "or choose another folder (nothing was changed)");
    }
    const auto remove_all = [&] {
        unlink(commit_path.c_str());
        for (const std::string& folder : folders) unlink((folder + kDataName).c_str());
    };
    if (!file_exists(commit_path)) {
        for (const std::string& folder : folders) {
            if (file_exists(folder + kDataName)) {
                throw Error(ErrorKind::corrupt, folder + kDataName + " belongs to a store whose " + commit_path +
                                                    " is missing; choose another folder (nothing was changed)");
            }
        }
    }
    remove_all();
    try {
        commits_ = open_file(commit_path, true, false);
        const std::uint64_t bytes = 2 * commit_slot_bytes(layout_);
        reserve(commits_, bytes);
        const AlignedBuffer empty(bytes);
        transfer(commits_, IoRequest::Operation::write, empty.data(), bytes, 0);
        for (std::uint32_t stripe = 0; stripe < folders.size(); ++stripe) create_data_file(folders[stripe], stripe);
        for (const std::string& folder : folders) sync_folder(folder);
    } catch (...) {
        remove_all();
        throw;
    }
}

void ChunkStore::create_data_file(const std::string& folder, std::uint32_t stripe) {
    bool direct = false;
    files_.push_back(open_file(folder + kDataName, true, false, &direct));
    direct_ = direct_ && direct;
    reserve(files_.back(), layout_.file_bytes(stripe));
    FileHeader header;
    header.stripe = stripe;
    header.stripes = layout_.stripes();
    header.parameter_bytes = parameter_bytes_of(layout_);
    header.chunk_elements = layout_.shape().chunk_elements;
    header.file_bytes = layout_.file_bytes(stripe);
    header.uuid = uuid_;
    header.optimizer = layout_.shape().optimizer->number;
    seal(header);
    const AlignedBuffer page(kPage);
    std::memcpy(page.data(), &header, sizeof header);
    transfer(files_.back(), IoRequest::Operation::write, page.data(), kPage, 0);
}

void ChunkStore::open_existing(const std::vector<std::string>& folders, bool read_only) {
    for (std::uint32_t stripe = 0; stripe < folders.size(); ++stripe) {
        const std::string path = folders[stripe] + kDataName;
        if (!file_exists(path)) {
            throw Error(ErrorKind::corrupt,
                        path + " is missing; expected one stripe of the store in each of its " +
                            std::to_string(folders.size()) +
                            " folders: name the same folders, in the same order, as when it was made");
        }
        bool direct = false;
        files_.push_back(open_file(path, false, read_only, &direct));
        direct_ = direct_ && direct;
        check_file(files_.back(), stripe);
    }
    commits_ = open_file(folders[0] + kCommitName, false, read_only);
}

void ChunkStore::check_file(const File& file, std::uint32_t stripe) const {
    const std::uint64_t expected = layout_.file_bytes(stripe);
    const std::uint64_t found = file.bytes();
    if (found < kPage) {
        throw Error(ErrorKind::corrupt, file.path() + " is truncated: expected " + std::to_string(expected) +
                                            " bytes, found " + std::to_string(found));
    }
    const AlignedBuffer page(kPage);
    transfer(file, IoRequest::Operation::read, page.data(), kPage, 0);
    FileHeader header;
    std::memcpy(&header, page.data(), sizeof header);
    if (header.magic == FileHeader{}.magic && header.version > kFormatVersion) {
        throw newer_format(file.path(), 0, header.version);
    }
    if (!valid(header)) {
        throw Error(ErrorKind::corrupt, file.path() +
                                            " at offset 0: the file header's checksum is wrong; this is not a "
                                            "chunk file of a LuWu store, or its first page was damaged");
    }
    if (header.uuid != uuid_ || header.stripe != stripe || header.stripes != layout_.stripes()) {
        throw Error(ErrorKind::corrupt, file.path() + " is stripe " + std::to_string(header.stripe) + " of " +
                                            std::to_string(header.stripes) + " of " +
                                            (header.uuid == uuid_ ? "this store" : "another store") +
                                            "; expected stripe " + std::to_string(stripe) + " of " +
                                            std::to_string(layout_.stripes()) +
                                            " here: name the folders in the order in which the store was made");
    }
    if (header.chunk_elements != layout_.shape().chunk_elements ||
        header.parameter_bytes != parameter_bytes_of(layout_) || header.file_bytes != expected ||
        header.optimizer != layout_.shape().optimizer->number) {
        throw Error(ErrorKind::corrupt,
                    file.path() + " at offset 0 describes another layout or optimizer than the store's manifest");
    }
    if (found < expected) {
        throw Error(ErrorKind::corrupt, file.path() + " is truncated at offset " + std::to_string(found) +
                                            ": expected " + std::to_string(expected) + " bytes");
    }
}

void ChunkStore::read_commits() {
    const std::uint64_t slot_bytes = commit_slot_bytes(layout_);
    if (commits_.bytes() < 2 * slot_bytes) {
        throw Error(ErrorKind::corrupt, commits_.path() + " is truncated: expected " + std::to_string(2 * slot_bytes) +
                                            " bytes, found " + std::to_string(commits_.bytes()));
    }
    const AlignedBuffer buffer(2 * slot_bytes);
    transfer(commits_, IoRequest::Operation::read, buffer.data(), 2 * slot_bytes, 0);
    std::uint32_t damaged_slots = 0;
    for (std::uint64_t slot = 0; slot < 2; ++slot) {
        const auto decoded = decode_commit({buffer.data() + slot * slot_bytes, slot_bytes}, uuid_, layout_);
        using State = DecodedCommit::State;
        if (decoded.state == State::newer_format) {
            throw newer_format(commits_.path(), slot * slot_bytes, decoded.version);
        }
        if (decoded.state == State::damaged || decoded.state == State::other_store) ++damaged_slots;
        if (decoded.state != State::valid) continue;
        CommitRecord older = decoded.record;
        if (older.sequence > committed_.sequence) std::swap(older, committed_);
        if (older.sequence > 0) before_ = std::move(older);
    }
    // One damaged slot is what a crash in the middle of a commit leaves; the other one holds.
    // If it is the very first commit, the store counts as not initialised, which it was.
    if (committed_.sequence == 0 && damaged_slots == 2) {
        throw Error(ErrorKind::corrupt, commits_.path() +
                                            " at offset 0: neither of the two commit records is valid; the "
                                            "store cannot tell which step it holds");
    }
}

IoRequest ChunkStore::read_parameters(const ChunkPlace& place, std::uint64_t count, void* parameters,
                                      void* header) const {
    IoRequest request;
    request.file = files_[place.stripe].descriptor();
    request.offset = place.record_offset(count);
    request.add_part(parameters, place.parameter_bytes);
    request.add_part(header, kPage);
    return request;
}

IoRequest ChunkStore::read_states(const ChunkPlace& place, std::uint64_t count, void* states) const {
    IoRequest request;
    request.file = files_[place.stripe].descriptor();
    request.offset = place.record_offset(count) + place.parameter_bytes;
    request.add_part(states, place.state_bytes());
    return request;
}

IoRequest ChunkStore::write_record(const ChunkPlace& place, std::uint64_t count, void* parameters, void* states) const {
    IoRequest request;
    request.operation = IoRequest::Operation::write;
    request.file = files_[place.stripe].descriptor();
    request.offset = place.record_offset(count);
    request.add_part(parameters, place.parameter_bytes);
    request.add_part(states, place.state_bytes());
    return request;
}

ChunkHeader ChunkStore::make_header(const ChunkPlace& place, std::uint64_t count) const {
    ChunkHeader header;
    header.block = place.block;
    header.chunk = place.chunk;
    header.planes = place.state_planes;
    header.elements = place.elements;
    header.count = count;
    header.uuid = uuid_;
    return header;
}

void ChunkStore::check_header(const ChunkHeader& header, const ChunkPlace& place, std::uint64_t count) const {
    const std::string where = files_[place.stripe].path() + " at offset " +
                              std::to_string(place.record_offset(count) + place.parameter_bytes) + " (block '" +
                              layout_.shape().blocks[place.block].name + "', chunk " + std::to_string(place.chunk) +
                              ")";
    if (header.magic == ChunkHeader{}.magic && header.version > kFormatVersion) {
        throw newer_format(files_[place.stripe].path(), place.record_offset(count) + place.parameter_bytes,
                           header.version);
    }
    if (!valid(header)) throw Error(ErrorKind::corrupt, where + ": the chunk header's checksum is wrong");
    if (header.uuid != uuid_ || header.block != place.block || header.chunk != place.chunk ||
        header.elements != place.elements || header.count != count) {
        throw Error(ErrorKind::corrupt, where + ": expected update count " + std::to_string(count) + ", found block " +
                                            std::to_string(header.block) + ", chunk " + std::to_string(header.chunk) +
                                            ", update count " + std::to_string(header.count));
    }
}

Error ChunkStore::damaged(const ChunkPlace& place, std::uint64_t count, std::uint32_t plane) const {
    std::uint64_t offset = place.record_offset(count);
    if (plane > 0) offset += place.parameter_bytes + place.plane_offset(plane - 1);
    return {ErrorKind::corrupt, files_[place.stripe].path() + " at offset " + std::to_string(offset) + " (block '" +
                                    layout_.shape().blocks[place.block].name + "', chunk " +
                                    std::to_string(place.chunk) + ", plane " + std::to_string(plane) +
                                    "): the checksum is wrong; the disk returned other bytes than were written"};
}

Error ChunkStore::no_values() const {
    return {ErrorKind::empty, "the store at " + folders_[0] +
                                  " has no values yet: expected first values before anything is read; train or import "
                                  "into it first"};
}

Error ChunkStore::failed(const IoRequest& request, const ChunkPlace& place) const {
    const bool reading = request.operation == IoRequest::Operation::read;
    return system_error(reading ? "read" : "write",
                        files_[place.stripe].path() + " at offset " + std::to_string(request.offset), request.error);
}

void ChunkStore::sync() {
    for (const File& file : files_) {
        if (fdatasync(file.descriptor()) != 0) throw system_error("sync", file.path(), errno);
    }
}

void ChunkStore::commit(CommitRecord record) {
    sync();
    record.sequence = committed_.sequence + 1;
    const std::uint64_t slot_bytes = commit_slot_bytes(layout_);
    const AlignedBuffer slot(slot_bytes);
    encode_commit(record, layout_, uuid_, {slot.data(), slot_bytes});
    transfer(commits_, IoRequest::Operation::write, slot.data(), slot_bytes, (record.sequence & 1U) * slot_bytes);
    if (fdatasync(commits_.descriptor()) != 0) throw system_error("sync", commits_.path(), errno);
    before_ = std::exchange(committed_, std::move(record));
}

std::vector<File> ChunkStore::make_scratch(const std::vector<std::uint64_t>& bytes) const {
    std::vector<File> files;
    for (std::size_t stripe = 0; stripe < folders_.size(); ++stripe) {
        const std::string path = folders_[stripe] + kScratchName;
        unlink(path.c_str());  // of a process that was killed between the next two lines
        files.push_back(open_file(path, true, false));
        unlink(path.c_str());
        if (bytes[stripe] > 0) reserve(files.back(), bytes[stripe]);
    }
    return files;
}

// The record has to go, because the updates of the next step overwrite the versions that it speaks of.
void ChunkStore::go_back() {
    if (!before_) throw Error(ErrorKind::order, commits_.path() + " holds no commit before the last one");
    erase_slot(committed_.sequence);
    committed_ = *std::exchange(before_, std::nullopt);
}

void ChunkStore::erase_slot(std::uint64_t sequence) {
    const std::uint64_t slot_bytes = commit_slot_bytes(layout_);
    const AlignedBuffer empty(slot_bytes);
    transfer(commits_, IoRequest::Operation::write, empty.data(), slot_bytes, (sequence & 1U) * slot_bytes);
    if (fdatasync(commits_.descriptor()) != 0) throw system_error("sync", commits_.path(), errno);
}

void ChunkStore::fill_holes() {
    for (const File& file : files_) store::fill_holes(file);
}

std::uint64_t ChunkStore::compact() {
    const auto allocated = [this] {
        std::uint64_t bytes = 0;
        for (const File& file : files_) bytes += file.allocated_bytes();
        return bytes;
    };
    const std::uint64_t before = allocated();
    if (before_) {  // durably, before what it speaks of goes
        erase_slot(before_->sequence);
        before_.reset();
    }
    for (const ChunkPlace& place : layout_.chunks()) {
        if (!place.trainable) continue;
        const std::uint64_t other = place.record_offset(committed_.counts[place.block] + 1);
        punch_hole(files_[place.stripe], other, place.record_bytes());
    }
    sync();
    const std::uint64_t after = allocated();
    return before > after ? before - after : 0;
}

}  // namespace luwu::store
