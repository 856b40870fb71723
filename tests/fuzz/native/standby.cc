// Bytes of a server whose token is good, to its standby: nothing but a whole commit changes what the standby's store
// has.
#include <poll.h>

#include <memory>
#include <thread>

#include "folder.h"
#include "kernels/crc32c.h"
#include "standby/receiver_session.h"
#include "store/reader.h"
#include "store/writer.h"
#include "stream.h"

namespace {

using namespace luwu;
using namespace std::chrono_literals;
using fabric::FrameKind;
using fuzz::require;

constexpr store::Uuid kUuid{1, 2, 3};
constexpr std::uint64_t kAttempt = 7;  // of the server
constexpr std::size_t kMostBytes = 256 << 10;
constexpr int kSocketBytes = 1 << 20;
constexpr auto kSilence = 2000ms;
constexpr int kPatience = 100;  // milliseconds that an answer to a commit may take, before the rest comes
enum : std::uint8_t { kHasValues = 1 };
enum Piece : std::uint8_t { kRecord, kStep, kCommit, kWord, kFrames, kPieces };

store::Layout layout() {
    store::StoreShape shape;
    shape.chunk_elements = store::kChunkStep;
    shape.blocks = {{"root", 40, true}, {"b", 60, true}, {"frozen", 30, false}};
    return {shape, 1};
}

float value_of(std::uint64_t count) { return static_cast<float>(count) + 0.25F; }

// Every value of the store, after each was compared with what its update count stands for.
std::vector<float> values_of(const store::ChunkStore& store) {
    std::vector<float> all;
    if (!store.initialised()) return all;
    for (const store::ChunkPlace& place : store.layout().chunks()) {
        const store::ChunkContents contents = store::read_chunk(store, place, true);
        const auto* values = reinterpret_cast<const float*>(contents.parameters.data());
        all.insert(all.end(), values, values + place.elements);
        for (const float value : std::span(values, place.elements)) {
            require(value == value_of(store.committed().counts[place.block]), "a value is of the commit's count");
        }
        for (const auto& state : contents.states) all.insert(all.end(), state.begin(), state.end());
    }
    return all;
}

// A standby without a port. It is made anew when a commit has changed it.
struct Standby {
    explicit Standby(bool has_values)
        : store({folder.path()}, layout(), kUuid, store::OpenMode::create), applier(store, [this] {
              const std::lock_guard lock(mutex);
              if (bell) bell->ring();
          }) {
        if (!has_values) return;
        store::CommitRecord record;
        for (const store::ChunkPlace& place : store.layout().chunks()) {
            const std::vector<float> values(place.elements, value_of(0));
            store::write_chunk(store, place, 0, values.data());
        }
        record.counts.resize(store.layout().block_count());
        store.commit(record);
    }

    void hear(fabric::Bell* rung) {
        const std::lock_guard lock(mutex);
        bell = rung;
    }

    fuzz::Folder folder;
    store::ChunkStore store;
    std::mutex mutex;
    fabric::Bell* bell = nullptr;
    standby::Applier applier;
};

std::unique_ptr<Standby>& standby_for(bool has_values) {
    static std::array<std::unique_ptr<Standby>, 2> standbys;
    auto& standby = standbys[has_values ? 1 : 0];
    if (standby == nullptr) standby = std::make_unique<Standby>(has_values);
    return standby;
}

// Pieces of what a server sends, each up to where it waits for an answer.
class Server {
  public:
    explicit Server(const store::ChunkStore& store) : store_(store), pieces_(1) {}

    [[nodiscard]] std::vector<std::vector<std::byte>> pieces(fuzz::Input& input) {
        while (!input.empty() && total_ < kMostBytes) add(input);
        return std::move(pieces_);
    }

  private:
    void add(fuzz::Input& input) {
        const auto chunks = static_cast<std::uint32_t>(store_.layout().chunks().size());
        switch (input.number() % kPieces) {
            case kRecord: {
                const std::uint32_t chunk = input.number() % (chunks + 1);
                const std::uint64_t count = input.number();
                return add_record(chunk % chunks, count, input);
            }
            case kStep: {
                const std::uint64_t count = input.number();
                for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) {
                    if (!trainable(chunk) && store_.initialised()) continue;
                    add_record(chunk, trainable(chunk) ? count : 0, none_);
                }
                return add_commit(count, none_);
            }
            case kCommit: {
                const std::uint64_t count = input.number();
                return add_commit(count, input);
            }
            case kWord: {
                const auto kind = static_cast<std::uint32_t>(FrameKind::record_parameters) + input.number() % 8U;
                return add_frame({static_cast<FrameKind>(kind), input.number(), input.number(), 0}, {});
            }
            default: {
                fuzz::Input some(input.bytes(input.number()));
                return append(fuzz::stream_of(some));
            }
        }
    }

    [[nodiscard]] bool trainable(std::uint32_t chunk) const { return store_.layout().chunks()[chunk].trainable; }

    // Damage: an offset in the record and what is there instead, then whether checksums are made for it after all.
    void add_record(std::uint32_t chunk, std::uint64_t count, fuzz::Input& input) {
        const store::ChunkPlace& place = store_.layout().chunks()[chunk];
        std::vector<std::byte> record(place.record_bytes());
        auto* values = reinterpret_cast<float*>(record.data());
        std::fill(values, values + place.elements, value_of(count));
        std::byte* states = record.data() + place.parameter_bytes;
        store::ChunkHeader header;
        header.block = place.block;
        header.chunk = place.chunk;
        header.planes = place.state_planes;
        header.elements = place.elements;
        header.count = count;
        header.uuid = kUuid;
        header.attempt = kAttempt + input.number() % 2U;
        header.parameter_crc = kernels::crc32c(0, record.data(), place.elements * sizeof(float));
        for (std::uint32_t plane = 0; plane < place.state_planes; ++plane) {
            header.state_crc[plane] = kernels::crc32c(0, states + place.plane_offset(plane), place.plane_bytes[plane]);
        }
        store::seal(header);
        std::memcpy(states, &header, sizeof header);
        const auto damage = input.number();
        if (damage != 0) {
            const std::size_t at = (damage % 2 != 0 ? place.parameter_bytes : 0) + input.number() % sizeof header;
            record[at] ^= std::byte{damage};
            if (damage % 4 == 3) {
                std::memcpy(&header, states, sizeof header);
                store::seal(header);
                std::memcpy(states, &header, sizeof header);
            }
        }
        const auto all = std::span<const std::byte>(record);
        const std::uint64_t sequence = count;
        add_frame({FrameKind::record_parameters, chunk, sequence, place.parameter_bytes},
                  all.first(place.parameter_bytes));
        add_frame({FrameKind::record_states, chunk, sequence + input.number() / 255U, place.state_bytes()},
                  all.subspan(place.parameter_bytes));
    }

    void add_commit(std::uint64_t count, fuzz::Input& input) {
        store::CommitRecord record;
        record.step = record.attempts = count;
        record.has_values = input.number() % 8 != 1;
        for (const store::BlockShape& block : store_.layout().shape().blocks) {
            record.counts.push_back((block.trainable ? count : 0) + input.number() % 4U);
        }
        std::vector<std::byte> payload(store::commit_slot_bytes(store_.layout()));
        store::encode_commit(record, store_.layout(), kUuid, payload);
        const fuzz::Bytes note = input.bytes(input.number());
        if (const auto damage = input.number()) payload[damage % 128U] ^= std::byte{1};
        payload.insert(payload.end(), note.begin(), note.end());
        add_frame({FrameKind::commit, 0, record.step, payload.size()}, payload);
        pieces_.emplace_back();
    }

    void add_frame(const fabric::Frame& frame, fuzz::Bytes payload) {
        append(fabric::encode(frame));
        append(payload);
        if (payload.empty()) return;
        const std::uint32_t crc = kernels::crc32c(0, payload.data(), payload.size());
        append(std::as_bytes(std::span(&crc, 1)));
    }

    void append(fuzz::Bytes bytes) {
        total_ += bytes.size();
        pieces_.back().insert(pieces_.back().end(), bytes.begin(), bytes.end());
    }

    const store::ChunkStore& store_;
    fuzz::Input none_{fuzz::Bytes()};
    std::vector<std::vector<std::byte>> pieces_;
    std::size_t total_ = 0;
};

// Sends the pieces, each once the one before was answered, or has had its time.
void send_pieces(const fabric::Descriptor& socket, const std::vector<std::vector<std::byte>>& pieces) {
    for (std::size_t piece = 0; piece < pieces.size(); ++piece) {
        fuzz::send_all(socket, pieces[piece]);
        if (piece + 1 == pieces.size()) break;
        pollfd entry{socket.get(), POLLIN, 0};
        if (poll(&entry, 1, kPatience) != 1) continue;
        std::array<std::byte, 4 * fabric::kFrameBytes> answer{};
        if (recv(socket.get(), answer.data(), answer.size(), 0) <= 0) break;
    }
    shutdown(socket.get(), SHUT_WR);
}

// Returns the number of commits that were told.
std::uint64_t serve(Standby& standby, fabric::Descriptor socket) {
    fabric::Bell bell;
    std::uint64_t heard = 0;
    std::optional<std::uint64_t> to_note;
    standby.hear(&bell);
    {
        fabric::Channel channel(std::move(socket), bell, nullptr, "");
        standby::ReceiverSession session(standby.store, standby.applier, channel, kSilence,
                                         {.record = [](std::uint64_t) {},
                                          .sync = [&](bool, std::uint64_t word) { to_note = word; },
                                          .committed = [&](const standby::Applied&) { ++heard; },
                                          .noted = [&] { return std::exchange(to_note, std::nullopt); },
                                          .heard = [] {}});
        try {
            session.serve();
        } catch (const fabric::Broken&) {  // Dropped, too
        } catch (const Error& error) {
            const bool known = error.kind() == ErrorKind::corrupt || error.kind() == ErrorKind::order ||
                               error.kind() == ErrorKind::invalid;
            require(known, std::string("an error of a kind that fits: ") + error.what());
        }
    }
    if (standby.applier.begin_again()) ++heard;
    standby.hear(nullptr);
    return heard;
}

}  // namespace

LUWU_FUZZ_TARGET("standby") {
    fuzz::Input input(data);
    const bool has_values = (input.number() & kHasValues) != 0;
    std::unique_ptr<Standby>& standby = standby_for(has_values);
    const store::ChunkStore& store = standby->store;
    const std::vector<float> before = values_of(store);
    const store::CommitRecord stood = store.committed();
    const auto pieces = Server(store).pieces(input);
    auto [ours, theirs] = fuzz::connected();
    setsockopt(theirs.get(), SOL_SOCKET, SO_SNDBUF, &kSocketBytes, sizeof kSocketBytes);
    std::thread server([&socket = theirs, &pieces] { send_pieces(socket, pieces); });
    const std::uint64_t heard = serve(*standby, std::move(ours));
    server.join();
    const std::uint64_t commits = store.committed().sequence - stood.sequence;
    require(heard == commits, "every commit is told, once");
    if (commits == 0) require(values_of(store) == before, "without a commit nothing changes");
    const store::ChunkStore again({standby->folder.path()}, layout(), kUuid, store::OpenMode::read_only);
    require(again.findings().empty(), "the store can be opened");
    require(again.committed() == store.committed(), "the commit is on the disk");
    require(values_of(again) == values_of(store), "and so are its values");
    if (commits != 0) standby.reset();
}
