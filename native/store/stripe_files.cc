#include "store/stripe_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>
#include <utility>

#include "store/aligned_buffer.h"
#include "store/io_engine.h"

namespace luwu::store {

namespace {

constexpr std::array<const char*, kVersions> kVersionNames{"/version-0.luwu", "/version-1.luwu"};
constexpr std::array<const char*, kVersions> kSpareNames{"/spare-0.luwu", "/spare-1.luwu"};
constexpr const char* kFrozenName = "/frozen.luwu";
constexpr const char* kFormat1 = "/chunks.luwu";  // both versions of all chunks, side by side

// The value in the file header: of one element, 0 where blocks differ.
std::uint32_t parameter_bytes_of(const Layout& layout) {
    const auto size = static_cast<std::uint32_t>(layout.parameter_size(0));
    for (std::uint32_t block = 1; block < layout.block_count(); ++block) {
        if (layout.parameter_size(block) != size) return 0;
    }
    return size;
}

void write_header(const File& file, const FileHeader& header) {
    const AlignedBuffer page(kPage);
    std::memcpy(page.data(), &header, sizeof header);
    write_now(file, page.data(), kPage, 0);
}

File make(const std::string& path, const FileHeader& header, bool with_room, bool* direct = nullptr) {
    File file = open_file(path, true, false, direct);
    with_room ? reserve(file, header.file_bytes) : extend(file, header.file_bytes);
    write_header(file, header);
    return file;
}

// True if a header is right but for its format's number: a newer LuWu would have sealed it with its own number.
bool only_format_damaged(FileHeader header) {
    for (header.version = kOldestFormat; header.version <= kFormatVersion; ++header.version) {
        if (valid(header)) return true;
    }
    return false;
}

// A random name beside `path` that no other process uses. Process ids would not do: two containers may use the same
// one.
std::string partial_path(const std::string& path) {
    std::random_device device;
    std::array<char, 24> number{};
    std::snprintf(number.data(), number.size(), ".%08x%08x", device(), device());
    return path + number.data() + kPartial;
}

// Makes a file that is whole when it gets its name; it replaces the file that had the name. False if another process
// removed it before it got the name, as remove_partials() does.
bool make_whole(const std::string& path, const FileHeader& header, bool with_room) {
    const std::string partial = partial_path(path);
    try {
        make(partial, header, with_room).sync();
        if (rename(partial.c_str(), path.c_str()) == 0) return true;
        if (errno == ENOENT) return false;
        throw system_error("rename", partial, errno);
    } catch (...) {
        unlink(partial.c_str());
        throw;
    }
}

// Removes unfinished files that crashes left.
void remove_partials(const std::string& folder) {
    std::error_code error;
    for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error)) {
        const std::string name = "/" + entry->path().filename().string();
        const auto begins = [&name](const char* one) { return name.starts_with(one + std::string(".")); };
        const bool ours = std::any_of(kSpareNames.begin(), kSpareNames.end(), begins) ||
                          std::any_of(kVersionNames.begin(), kVersionNames.end(), begins) || begins(kFrozenName);
        if (ours && name.ends_with(kPartial)) unlink((folder + name).c_str());
    }
}

}  // namespace

FileHeader file_header(const Layout& layout, std::uint32_t stripe, const Uuid& uuid, bool frozen) {
    FileHeader header;
    header.stripe = stripe;
    header.stripes = layout.stripes();
    header.parameter_bytes = parameter_bytes_of(layout);
    header.chunk_elements = layout.shape().chunk_elements;
    header.file_bytes = frozen ? layout.frozen_bytes(stripe) : layout.version_bytes(stripe);
    header.uuid = uuid;
    header.optimizer = layout.shape().optimizer->number;
    header.frozen = frozen ? 1 : 0;
    seal(header);
    return header;
}

StripeFiles::StripeFiles(std::string folder, const Layout& layout, std::uint32_t stripe, const Uuid& uuid)
    : folder_(std::move(folder)),
      version_header_(file_header(layout, stripe, uuid, false)),
      frozen_header_(file_header(layout, stripe, uuid, true)) {}

std::string StripeFiles::version_path(std::uint32_t version) const { return folder_ + kVersionNames[version]; }
std::string StripeFiles::spare_path(std::uint32_t version) const { return folder_ + kSpareNames[version]; }

void StripeFiles::create() {
    for (std::uint32_t version = 0; version < kVersions; ++version) {
        versions_[version] = make(version_path(version), version_header_, true, &direct_);
        versions_[version].sync();
    }
    frozen_ = make(folder_ + kFrozenName, frozen_header_, true);
    frozen_.sync();
}

void StripeFiles::open(bool read_only) {
    for (std::uint32_t version = 0; version < kVersions; ++version) {
        const std::string path = version_path(version);
        if (!file_exists(path)) {
            damages_[version] = missing(version);
            continue;
        }
        bool direct = false;
        versions_[version] = open_file(path, false, read_only, &direct);
        direct_ = direct_ && direct;
        damages_[version] = look(versions_[version], version_header_);
    }
    const std::string path = folder_ + kFrozenName;
    if (!file_exists(path)) require(0);  // no store at all, or an old one
    if (!file_exists(path)) throw Error(ErrorKind::corrupt, path + " is missing; put it back from a copy of the store");
    frozen_ = open_checked(path, frozen_header_, read_only);
}

File StripeFiles::open_checked(const std::string& path, const FileHeader& expected, bool read_only) {
    bool direct = false;
    File file = open_file(path, false, read_only, &direct);
    direct_ = direct_ && direct;
    if (const std::optional<Error> damage = look(file, expected)) throw Error(*damage);
    return file;
}

void StripeFiles::remove(const std::string& folder) {
    for (const char* name : kVersionNames) unlink((folder + name).c_str());
    for (const char* name : kSpareNames) unlink((folder + name).c_str());
    unlink((folder + kFrozenName).c_str());
}

bool StripeFiles::holds_chunks(const std::string& folder) {
    return file_exists(folder + kVersionNames[0]) || file_exists(folder + kVersionNames[1]) ||
           file_exists(folder + kFrozenName) || file_exists(folder + kFormat1);
}

void StripeFiles::require(std::uint32_t version) const {
    if (!damages_[version]) return;
    if (versions_[version].descriptor() < 0 && file_exists(folder_ + kFormat1)) {
        throw other_format(folder_ + kFormat1, 0, 1);
    }
    throw Error(*damages_[version]);
}

Error StripeFiles::missing(std::uint32_t version) const {
    const std::string what = version_path(version) + " is missing; ";
    if (file_exists(folder_ + kFrozenName)) {
        return {ErrorKind::corrupt,
                what +
                    "the values of the committed step are in it: put it back from a copy of the store of the same "
                    "step, or go back to a snapshot (luwu snapshot restore)"};
    }
    return {ErrorKind::corrupt, what + "expected one stripe of the store in each of its " +
                                    std::to_string(version_header_.stripes) +
                                    " folders: name the same folders, in the same order, as when it was made"};
}

bool StripeFiles::lost(std::uint32_t version) const {
    if (!damages_[version]) return false;
    const File& file = versions_[version];
    return file.descriptor() < 0 || file.bytes() < version_header_.file_bytes;
}

std::string StripeFiles::finding(std::uint32_t version) const {
    const bool there = versions_[version].descriptor() >= 0;
    const char* const what = !there          ? " is missing"
                             : lost(version) ? " is truncated"
                                             : " at offset 0: the file header is damaged";
    return version_path(version) + what + "; nothing that is committed is in this file" +
           (lost(version) ? ", and the step before the committed one is lost" : "");
}

bool StripeFiles::mend(std::uint32_t version) {
    if (!damages_[version]) return false;
    const std::string path = version_path(version);
    const bool anew = lost(version);
    if (anew) {
        while (!make_whole(path, version_header_, false)) {
        }
        versions_[version] = open_checked(path, version_header_, false);
    } else {
        write_header(versions_[version], version_header_);
        versions_[version].sync();
    }
    damages_[version].reset();
    return anew;
}

std::optional<Error> StripeFiles::look(const File& file, const FileHeader& expected) const {
    const std::uint64_t found_bytes = file.bytes();
    if (found_bytes < kPage) {
        return Error(ErrorKind::corrupt, file.path() + " is truncated: expected " +
                                             std::to_string(expected.file_bytes) + " bytes, found " +
                                             std::to_string(found_bytes));
    }
    const AlignedBuffer page(kPage);
    read_now(file, page.data(), kPage, 0);
    FileHeader header;
    std::memcpy(&header, page.data(), sizeof header);
    if (header.magic == FileHeader{}.magic && !is_read(header.version)) {
        // Only damage if its own format's number makes it whole; an older or newer file is left alone.
        if (only_format_damaged(header)) return other_format(file.path(), 0, header.version);
        throw other_format(file.path(), 0, header.version);
    }
    FileHeader same_format = expected;
    same_format.version = header.version;
    seal(same_format);
    if (!valid(header)) {
        return Error(ErrorKind::corrupt, file.path() +
                                             " at offset 0: the file header's checksum is wrong; this is not a "
                                             "chunk file of a LuWu store, or its first page was damaged");
    }
    if (header.uuid != expected.uuid || header.stripe != expected.stripe || header.stripes != expected.stripes) {
        throw Error(ErrorKind::corrupt, file.path() + " is stripe " + std::to_string(header.stripe) + " of " +
                                            std::to_string(header.stripes) + " of " +
                                            (header.uuid == expected.uuid ? "this store" : "another store") +
                                            "; expected stripe " + std::to_string(expected.stripe) + " of " +
                                            std::to_string(expected.stripes) +
                                            " here: name the folders in the order in which the store was made");
    }
    if (header.crc != same_format.crc) {
        throw Error(ErrorKind::corrupt,
                    file.path() + " at offset 0 describes another layout or optimizer than the store's manifest");
    }
    if (found_bytes < expected.file_bytes) {
        return Error(ErrorKind::corrupt, file.path() + " is truncated at offset " + std::to_string(found_bytes) +
                                             ": expected " + std::to_string(expected.file_bytes) + " bytes");
    }
    return std::nullopt;
}

// Takes no lock on a file, because any process on the machine could hold one for any time. Processes that make a spare
// at the same time each make their own; the last one replaces the others, which are equal to it.
void StripeFiles::reserve_spare(std::uint32_t version) const {
    const std::string path = spare_path(version);
    try {
        while (names_of(path) != 1 &&
               !make_whole(path, version_header_, true)) {  // more names: a copy of the store has the spare, too
        }
    } catch (const Error& error) {
        if (names_of(path) == 1) return;  // another process made the spare, perhaps with the last room
        if (error.kind() != ErrorKind::no_space) throw;
        throw Error(ErrorKind::no_space,
                    std::string(error.what()) + "; training writes there, as a snapshot has " + version_path(version) +
                        ", too: free some space, or remove a snapshot (luwu snapshot remove)",
                    error.shortage());
    }
}

bool StripeFiles::unshare(std::uint32_t version) {
    if (versions_[version].names() == 0) {
        throw Error(ErrorKind::corrupt, version_path(version) +
                                            " was removed while the store is open, and what is written to it is lost; "
                                            "put a copy of the store back, or restore a snapshot");
    }
    if (!shared(version)) return false;
    reserve_spare(version);
    rename_file(spare_path(version), version_path(version));
    File now = open_checked(version_path(version), version_header_, false);
    replaced_ = std::exchange(versions_[version], std::move(now));
    return true;
}

bool StripeFiles::unshare_frozen() {
    if (!frozen_is_shared()) return false;
    const std::string path = folder_ + kFrozenName;
    while (!make_whole(path, frozen_header_, true)) {
    }
    frozen_ = open_checked(path, frozen_header_, false);
    return true;
}

void StripeFiles::make_room() {
    remove_partials(folder_);
    for (std::uint32_t version = 0; version < kVersions; ++version) {
        if (shared(version)) {
            reserve_spare(version);
        } else {
            unlink(spare_path(version).c_str());
            fill_holes(versions_[version]);
        }
    }
}

void StripeFiles::link_to(const std::string& folder, std::uint32_t version) const {
    link_file(version_path(version), folder + kVersionNames[version]);
    link_file(folder_ + kFrozenName, folder + kFrozenName);
}

void StripeFiles::take_over(const std::string& folder, std::uint32_t from, std::uint32_t to) {
    const std::string path = version_path(to);
    unlink((path + kPartial).c_str());
    link_file(folder + kVersionNames[from], path + kPartial);
    rename_file(path + kPartial, path);
    unlink((path + kPartial).c_str());  // still there where both were the same file: then renaming does nothing
    versions_[to] = open_checked(path, version_header_, false);
}

std::uint64_t StripeFiles::drop(std::uint32_t version) {
    const std::uint64_t before = shared(version) ? 0 : versions_[version].allocated_bytes();
    while (!make_whole(version_path(version), version_header_, false)) {
    }
    versions_[version] = open_checked(version_path(version), version_header_, false);
    for (const char* name : kSpareNames) unlink((folder_ + name).c_str());
    const std::uint64_t after = versions_[version].allocated_bytes();
    return before > after ? before - after : 0;
}

}  // namespace luwu::store
