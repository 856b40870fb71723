// A store whose files were damaged: it is refused with an error that says so, or it has the values that were written.
#include <array>
#include <map>

#include "folder.h"
#include "kernels/crc32c.h"
#include "store/reader.h"
#include "store/writer.h"
#include "target.h"

namespace {

using namespace luwu::store;
using luwu::ErrorKind;
using luwu::fuzz::require;

constexpr Uuid kUuid{1, 2, 3};
constexpr std::size_t kMostDamages = 24;
constexpr std::uint64_t kRecordBytes = 96 + 3 * sizeof(std::uint64_t);  // of a commit, before its checksum
enum : std::uint8_t {
    kFile = 3,
    kSealsFile = 4,
    kSealsChunk = 8,
    kSealsRecord = 16,
    kCuts = 32,
    kRemoves = 64,
    kReplaces = 128
};

const std::array<std::string, 4> kNames{"commit.luwu", "version-0.luwu", "version-1.luwu", "frozen.luwu"};

Layout layout() {
    StoreShape shape;
    shape.chunk_elements = kChunkStep;
    shape.optimizer = &luwu::kernels::adamw_8bit;
    shape.blocks = {{"root", 100, true}, {"large", 3000, true}, {"frozen", 50, false}};
    shape.blocks[1].dtype = luwu::kernels::Dtype::bfloat16;
    return {shape, 1};
}

std::vector<std::byte> values_of(const ChunkStore& store) {
    std::vector<std::byte> all;
    for (std::uint32_t block = 0; block < store.layout().block_count(); ++block) {
        for (const ChunkPlace& place : store.layout().chunks_of(block)) {
            const ChunkContents contents = read_chunk(store, place, true);
            all.insert(all.end(), contents.parameters.begin(), contents.parameters.end());
            for (const auto& state : contents.states) {
                const auto bytes = std::as_bytes(std::span(state));
                all.insert(all.end(), bytes.begin(), bytes.end());
            }
        }
    }
    return all;
}

using Files = std::map<std::string, std::vector<std::byte>>;

// A store with first values and one step after them, made once.
struct Made {
    Made() {
        const std::string path = folder.path() + "/made";
        std::filesystem::create_directory(path);
        std::filesystem::create_directory(folder.path() + "/damaged");
        ChunkStore store({path}, layout(), kUuid, OpenMode::create);
        for (std::uint64_t count = 0; count < contents.size(); ++count) {
            commit(store, count);
            contents[count] = values_of(store);
        }
        for (const std::string& name : kNames) files[name] = folder.read("made/" + name);
    }

    static void commit(ChunkStore& store, std::uint64_t count) {
        CommitRecord record;
        record.step = record.attempts = count;
        for (const ChunkPlace& place : store.layout().chunks()) {
            const std::vector<float> values(place.elements, static_cast<float>(count) + 0.5F);
            if (place.trainable || count == 0) write_chunk(store, place, count, values.data());
        }
        for (const BlockShape& block : store.layout().shape().blocks)
            record.counts.push_back(block.trainable ? count : 0);
        store.commit(record);
    }

    luwu::fuzz::Folder folder;
    std::array<std::vector<std::byte>, 2> contents;  // by step
    Files files;
};

// Values that a damaged store may have: forged ones pass every check, as they should.
struct Damage {
    bool of_values = false;
    bool seals_chunks = false;
};

void patch(std::vector<std::byte>& file, std::uint8_t how, luwu::fuzz::Input& input, Damage& damage) {
    const std::size_t page = input.number() * kPage;
    const std::size_t at = page + input.number<std::uint16_t>() % kPage;
    const luwu::fuzz::Bytes bytes = input.bytes(input.number() % 32U);
    if (page + kPage > file.size() || at + bytes.size() > file.size()) return;
    std::copy(bytes.begin(), bytes.end(), file.begin() + static_cast<std::ptrdiff_t>(at));
    const auto seal_at = [&](std::size_t covered) {
        const std::uint32_t crc = luwu::kernels::crc32c(0, &file[page], covered);
        std::memcpy(&file[page + covered], &crc, sizeof crc);
    };
    if ((how & kSealsFile) != 0) seal_at(offsetof(FileHeader, crc));
    if ((how & kSealsChunk) != 0) seal_at(offsetof(ChunkHeader, crc));
    if ((how & kSealsRecord) != 0) seal_at(kRecordBytes);
    damage.seals_chunks = damage.seals_chunks || (how & (kSealsFile | kSealsChunk | kSealsRecord)) != 0;
    damage.of_values = damage.of_values || at >= page + sizeof(ChunkHeader) ||
                       std::memcmp(&file[page], ChunkHeader{}.magic.data(), ChunkHeader{}.magic.size()) != 0;
}

Damage damage(Files& files, luwu::fuzz::Input& input) {
    Damage damage;
    for (std::size_t done = 0; done < kMostDamages && !input.empty(); ++done) {
        const auto how = input.number();
        const std::string& name = kNames[how & kFile];
        const auto found = files.find(name);
        if (found == files.end()) continue;
        if ((how & kRemoves) != 0) {
            files.erase(found);
        } else if ((how & kCuts) != 0) {
            found->second.resize(std::min<std::size_t>(found->second.size(), input.number<std::uint16_t>() * 8U));
        } else if ((how & kReplaces) != 0) {
            const std::size_t by = input.number() % (kNames.size() + 1);
            const auto other = by == kNames.size() ? files.end() : files.find(kNames[by]);
            if (other != files.end()) found->second = other->second;
            if (by == kNames.size()) std::fill(found->second.begin(), found->second.end(), std::byte{});
        } else {
            patch(found->second, how, input, damage);
        }
    }
    return damage;
}

// Opens the store and reads it; nothing where it is refused, or says that it has no values.
std::optional<std::vector<std::byte>> read(const std::string& path, OpenMode mode, std::vector<std::string>& findings) {
    std::optional<std::vector<std::byte>> values;
    luwu::fuzz::error_of({ErrorKind::corrupt, ErrorKind::format}, [&] {
        const ChunkStore store({path}, layout(), kUuid, mode);
        findings = store.findings();
        if (store.initialised()) values = values_of(store);
    });
    return values;
}

}  // namespace

LUWU_FUZZ_TARGET("store") {
    static const Made made;
    luwu::fuzz::Input input(data);
    const bool to_write = input.number() % 2 != 0;
    Files files = made.files;
    const Damage damaged = damage(files, input);
    for (const std::string& name : kNames) {
        std::filesystem::remove(made.folder.path() + "/damaged/" + name);
        if (files.contains(name)) made.folder.write("damaged/" + name, files[name]);
    }
    const std::string path = made.folder.path() + "/damaged";
    const auto known = [&](const std::vector<std::byte>& values) {
        return (damaged.of_values && damaged.seals_chunks) || values == made.contents[0] || values == made.contents[1];
    };
    std::vector<std::string> findings;
    const auto values = read(path, OpenMode::read_only, findings);
    require(!values || known(*values), "a store that is read has the values that were written");
    if (!to_write) return;
    const auto opened = read(path, OpenMode::open, findings);
    require(!opened || known(*opened), "a store that is opened has the values that were written");
    if (!opened) return;
    require(values.has_value(), "what can be written to can be read");
    const auto again = read(path, OpenMode::read_only, findings);
    require(again == opened && findings.empty(), "a store that was opened for writing is mended");
}
