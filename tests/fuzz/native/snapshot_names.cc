// Names in a store's folder of snapshots: remains are removed, and whatever belongs to the user stays, such as a folder
// whose name is a number and that has no record.
#include <fstream>
#include <set>

#include "folder.h"
#include "store/snapshots.h"
#include "target.h"

namespace {

using luwu::fuzz::require;

constexpr std::size_t kMostNames = 16;

bool digits(const std::string& text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

// NUMBER.NUMBER-NUMBER.partial, told in another way than the store does.
bool is_remains(const std::string& name) {
    const std::string ending = ".partial";
    if (!name.ends_with(ending)) return false;
    const std::string stem = name.substr(0, name.size() - ending.size());
    const auto dot = stem.find('.');
    const auto dash = stem.find('-');
    return dot != std::string::npos && dash != std::string::npos && dot < dash && digits(stem.substr(0, dot)) &&
           digits(stem.substr(dot + 1, dash - dot - 1)) && digits(stem.substr(dash + 1));
}

// A number as it is written, which fits into 64 bits.
bool is_step(const std::string& name) {
    const std::string most = "18446744073709551615";
    if (!digits(name) || (name.size() > 1 && name[0] == '0')) return false;
    return name.size() < most.size() || (name.size() == most.size() && name <= most);
}

}  // namespace

LUWU_FUZZ_TARGET("snapshot_names") {
    static const luwu::fuzz::Folder store;
    const std::string inside = store.path() + "/snapshots/";
    std::filesystem::remove_all(inside);
    std::filesystem::create_directory(inside);
    luwu::fuzz::Input input(data);
    std::set<std::string> names;
    std::set<std::string> recorded;
    while (names.size() < kMostNames && !input.empty()) {
        const auto chosen = input.number();
        const luwu::fuzz::Bytes given = input.bytes(chosen % 64U);
        const std::string name(reinterpret_cast<const char*>(given.data()), given.size());
        if (name.empty() || name == "." || name == ".." || name.find_first_of(std::string("/\0", 2)) != name.npos)
            continue;
        if (!std::filesystem::create_directory(inside + name)) continue;
        names.insert(name);
        if (chosen & 64U) continue;
        std::ofstream(inside + name + luwu::store::kSnapshotRecordName) << "a record";
        recorded.insert(name);
    }
    const std::vector<std::string> folders{store.path()};
    std::set<std::string> steps;
    for (const std::uint64_t step : luwu::store::snapshot_steps(folders)) steps.insert(std::to_string(step));
    for (const std::string& name : names) {
        const bool is_snapshot = is_step(name) && recorded.contains(name);
        require(steps.contains(name) == is_snapshot, "a number with a record is a step: " + name);
    }
    luwu::store::remove_remains(folders);
    for (const std::string& name : names) {
        require(std::filesystem::exists(inside + name) == !is_remains(name), "only remains are removed: " + name);
    }
    luwu::fuzz::error_of({luwu::ErrorKind::invalid}, [&] {
        luwu::store::require_snapshot(folders, 7);
        require(steps.contains("7"), "only a snapshot that is there is found");
    });
    if (!steps.empty()) luwu::store::require_snapshot(folders, std::stoull(*steps.begin()));
}
