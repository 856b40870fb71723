#include "store/commit_files.h"

#include <algorithm>
#include <array>
#include <utility>

#include "store/aligned_buffer.h"
#include "store/io_engine.h"

namespace luwu::store {

namespace {

constexpr auto kAsk = "put the file back from a copy of the store; a snapshot can be exported (luwu export --snapshot)";

constexpr std::uint64_t kMostRecordBytes = 1U << 30U;  // of a file whose layout is not known: 30 million blocks

Error none_valid(const std::string& path) {
    return {ErrorKind::corrupt, path +
                                    " at offset 0: none of the commit records is valid; the store cannot tell which "
                                    "step it holds: " +
                                    kAsk};
}

Error all_missing(const std::string& path) {
    return {ErrorKind::corrupt, path +
                                    " is missing, and so is the copy in each of the store's folders; the store "
                                    "cannot tell which step it holds: " +
                                    kAsk};
}

bool is_older(const CommitRecord& left, const CommitRecord& right) {
    return std::pair(left.sequence, left.opening) < std::pair(right.sequence, right.opening);
}

// The newest valid record of a file.
std::optional<CommitRecord> newest_in(const CommitFileContents& file) {
    std::optional<CommitRecord> newest;
    for (const std::optional<CommitRecord>& record : file.slots) {
        if (record && (!newest || is_older(*newest, *record))) newest = record;
    }
    return newest;
}

// The record before `newest` in a file whose newest record that is.
std::optional<CommitRecord> before_in(const CommitFileContents& file, const CommitRecord& newest) {
    for (const std::optional<CommitRecord>& record : file.slots) {
        if (record && record->sequence + 1 == newest.sequence) return record;
    }
    return std::nullopt;
}

// False if a file whose newest record is `own` was not there when `newest` was written. A commit that was cut short
// leaves the record before it, and an opening that was cut short leaves both with the number of an earlier opening.
bool of_one_time(const CommitRecord& own, const CommitRecord& newest, const std::optional<CommitRecord>& before) {
    if (own.sequence == newest.sequence) return !own.has_values || own.version_attempt == newest.version_attempt;
    if (own.sequence + 1 != newest.sequence) return false;
    return own.opening == newest.opening || !before || own.opening == before->opening;
}

}  // namespace

CommitFiles::CommitFiles(const std::vector<std::string>& folders, const std::string& name, const Layout& layout,
                         const Uuid& uuid) {
    for (const std::string& folder : folders) files_.emplace_back(folder + name, layout, uuid);
}

Commits CommitFiles::read() const {
    std::vector<CommitFileContents> found;
    for (const CommitFile& file : files_) found.push_back(file.read());
    const auto exists = [](const CommitFileContents& contents) { return contents.exists; };
    if (std::none_of(found.begin(), found.end(), exists)) throw all_missing(path());
    Commits commits;
    std::vector<CommitRecord> records;
    std::array<bool, kSlots> damaged{};
    std::array<bool, kSlots> valid{};
    for (std::size_t stripe = 0; stripe < found.size(); ++stripe) {
        const CommitFileContents& file = found[stripe];
        for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
            damaged[slot] = damaged[slot] || file.damaged[slot];
            valid[slot] = valid[slot] || file.slots[slot].has_value();
            if (file.slots[slot]) records.push_back(*file.slots[slot]);
        }
        commits.findings.insert(commits.findings.end(), file.findings.begin(), file.findings.end());
        // Format 2 has a file only in the first folder.
        if (!file.exists && !found.front().format_2) commits.findings.push_back(files_[stripe].path() + " is missing");
    }
    commits.never_written = found.front().never_written && records.empty();
    if (commits.never_written) return commits;
    if (records.empty()) throw none_valid(path());
    std::sort(records.begin(), records.end(), is_older);
    commits.newest = records.back();
    if (!commits.newest.has_values && (damaged[0] || damaged[1])) throw none_valid(path());
    look_for_other_times(found, commits);
    for (const CommitRecord& record : records) {
        if (record.sequence + 1 == commits.newest.sequence && record.has_values) commits.before = record;
    }
    for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
        if (!damaged[slot] || valid[slot]) continue;
        commits.findings.push_back(
            path() + ": no copy of one of the two commit records is left; the store stands at step " +
            std::to_string(commits.newest.step) + ", and if that record was of the step after it, this step is lost");
    }
    return commits;
}

void CommitFiles::look_for_other_times(const std::vector<CommitFileContents>& found, Commits& commits) const {
    std::optional<CommitRecord> before;
    for (const CommitFileContents& file : found) {
        const std::optional<CommitRecord> own = newest_in(file);
        if (own && !is_older(*own, commits.newest)) before = before_in(file, commits.newest);
    }
    for (std::size_t stripe = 0; stripe < found.size(); ++stripe) {
        if (found[stripe].damaged[0] || found[stripe].damaged[1]) continue;  // perhaps of the newest record
        const std::optional<CommitRecord> own = newest_in(found[stripe]);
        if (!own || of_one_time(*own, commits.newest, before)) continue;
        commits.other_time =
            files_[stripe].path() + ": its records end at step " + std::to_string(own->step) +
            ", those of another folder at step " + std::to_string(commits.newest.step) +
            ": one of the folders is of a copy from another time; name the folders that belong together, or, where "
            "this file alone was put there from a copy, remove it";
        commits.findings.push_back(commits.other_time);
    }
}

void CommitFiles::create(const CommitRecord& record) {
    for (CommitFile& file : files_) file.make(record);
}

void CommitFiles::open_for_writing(Commits& commits) {
    if (!commits.other_time.empty()) throw Error(ErrorKind::corrupt, commits.other_time + " (nothing was changed)");
    const CommitRecord& newest = commits.newest;
    const auto slot = static_cast<std::uint32_t>(newest.sequence % kSlots);
    for (CommitFile& file : files_) {
        file.open();
        if (file.has_to_be_made()) {
            file.make(newest, commits.before);
        } else {
            file.rewrite(newest, slot);
            file.rewrite(commits.before.value_or(newest), 1 - slot);
        }
    }
}

void CommitFiles::commit(const CommitRecord& record, const CommitRecord& before) {
    for (CommitFile& file : files_) {
        file.has_to_be_made() ? file.make(record, before) : file.write(record);
    }
    for (const CommitFile& file : files_) file.sync();
}

void CommitFiles::commit_alone(const CommitRecord& record) {
    const auto first = static_cast<std::uint32_t>(record.sequence % kSlots);
    for (const std::uint32_t slot : {first, 1 - first}) {
        for (CommitFile& file : files_) {
            file.has_to_be_made() ? file.make(record) : file.rewrite(record, slot);
        }
    }
}

bool says_no_values(const std::string& path) {
    const File file = open_file(path, false, true);
    const std::uint64_t bytes = file.bytes() / kPage * kPage;
    if (bytes > kMostRecordBytes) return false;
    const AlignedBuffer buffer(std::max(bytes, kPage));
    if (bytes > 0) read_now(file, buffer.data(), bytes, 0);
    return records_say_no_values({buffer.data(), bytes});
}

}  // namespace luwu::store
