// Bytes of a standby, or somebody in its place, to its server: a commit counts without it, or with its answer.
#include <poll.h>

#include <thread>

#include "folder.h"
#include "standby/sender.h"
#include "standby/standing.h"
#include "store/writer.h"
#include "stream.h"

namespace {

using namespace luwu;
using namespace std::chrono_literals;
using fabric::FrameKind;
using fuzz::require;

constexpr store::Uuid kUuid{1, 2, 3};
constexpr std::uint64_t kStep = 2;
constexpr fabric::Timing kTiming{
    .hello = 2000ms, .silence = 2000ms, .reconnect = 0ms, .backoff = 1ms, .longest_backoff = 1ms, .farewell = 1ms};
constexpr int kPatience = 50;  // milliseconds until the server's commit has come
enum : std::uint8_t { kCommitFirst = 1, kOtherWelcome = 2, kStanding = 4 };

struct Port {
    Port() : listener(fabric::listen_at("127.0.0.1", 0)), number(fabric::bound_port(listener)) {}
    fabric::Descriptor listener;
    std::uint16_t number;
};

// The server's store, at its second step.
struct Made {
    Made() : store({folder.path()}, layout(), kUuid, store::OpenMode::create) {
        for (std::uint64_t step = 0; step <= kStep; ++step) {
            store::CommitRecord record;
            record.step = record.attempts = step;
            for (const store::ChunkPlace& place : store.layout().chunks()) {
                const std::vector<float> values(place.elements, static_cast<float>(step));
                if (place.trainable || step == 0) store::write_chunk(store, place, step, values.data());
            }
            for (const store::BlockShape& block : store.layout().shape().blocks) {
                record.counts.push_back(block.trainable ? step : 0);
            }
            store.commit(record);
        }
    }

    static store::Layout layout() {
        store::StoreShape shape;
        shape.chunk_elements = store::kChunkStep;
        shape.blocks = {{"root", 40, true}, {"frozen", 30, false}};
        return {shape, 1};
    }

    fuzz::Folder folder;
    store::ChunkStore store;
};

// A record of some step, the digest of this store or another one, and damage.
std::vector<std::byte> standing_of(const store::ChunkStore& store, fuzz::Input& input) {
    std::vector<std::byte> bytes = standby::encode_standing(store);
    const std::uint64_t slot = store::commit_slot_bytes(store.layout());
    store::CommitRecord record = store.committed();
    record.step = record.attempts = input.number() % 4U;
    record.rolled_back = input.number() / 128U;
    for (std::uint64_t& count : record.counts) count = input.number() % 4U;
    store::encode_commit(record, store.layout(), kUuid, {bytes.data(), slot});
    if (const auto damage = input.number()) bytes[slot - 1 + damage % 5U] ^= std::byte{1};
    bytes.resize(bytes.size() - std::min<std::size_t>(bytes.size(), input.number()));
    return bytes;
}

std::vector<std::byte> framed(const fabric::Frame& frame, fuzz::Bytes payload) {
    std::vector<std::byte> bytes(fabric::kFrameBytes + payload.size() + (payload.empty() ? 0 : sizeof(std::uint32_t)));
    const auto head = fabric::encode(frame);
    std::copy(head.begin(), head.end(), bytes.begin());
    if (payload.empty()) return bytes;
    std::copy(payload.begin(), payload.end(), bytes.begin() + fabric::kFrameBytes);
    const std::uint32_t crc = kernels::crc32c(0, payload.data(), payload.size());
    std::memcpy(&bytes[fabric::kFrameBytes + payload.size()], &crc, sizeof crc);
    return bytes;
}

// Reads what the server sends until its commit, or until the connection ends.
void await_commit(const fabric::Descriptor& socket) {
    std::vector<std::byte> came;
    std::array<std::byte, 64 << 10> piece{};
    std::size_t at = fabric::kHelloBytes;
    while (true) {
        pollfd entry{socket.get(), POLLIN, 0};
        if (poll(&entry, 1, kPatience) != 1) return;
        const ssize_t count = recv(socket.get(), piece.data(), piece.size(), 0);
        if (count <= 0) return;
        came.insert(came.end(), piece.begin(), piece.begin() + count);
        while (came.size() >= at + fabric::kFrameBytes) {
            const auto frame =
                fabric::decode_frame(std::span(came).subspan(at).first<fabric::kFrameBytes>());  // throws: a finding
            if (frame.kind == FrameKind::commit || frame.kind == FrameKind::failure) return;
            at += fabric::kFrameBytes + frame.bytes + (frame.bytes == 0 ? 0 : sizeof(std::uint32_t));
        }
    }
}

void play_standby(const fabric::Descriptor& listener, fuzz::Bytes welcome, fuzz::Bytes rest, bool commit_first) {
    pollfd entry{listener.get(), POLLIN, 0};
    if (poll(&entry, 1, -1) != 1) return;
    const fabric::Descriptor socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    fuzz::send_all(socket, welcome);
    if (commit_first) await_commit(socket);
    fuzz::send_all(socket, rest);
    shutdown(socket.get(), SHUT_WR);
    std::array<std::byte, 4096> unread{};
    do {
        pollfd other{socket.get(), POLLIN, 0};
        static_cast<void>(poll(&other, 1, -1));
    } while (recv(socket.get(), unread.data(), unread.size(), 0) > 0);
}

void check_standing(fuzz::Bytes bytes, const store::ChunkStore& store) {
    fuzz::error_of({ErrorKind::invalid}, [&] {
        const auto standing = standby::decode_standing(bytes, store);
        require(standing.has_value() == !bytes.empty(), "no bytes are a store without values");
        if (standing) require(standing->record.counts.size() == store.layout().block_count(), "a count for each block");
    });
}

}  // namespace

LUWU_FUZZ_TARGET("standby_link") {
    static const Port port;
    static const Made made;
    fuzz::Input input(data);
    const auto mode = input.number();
    std::vector<std::byte> standing;
    if ((mode & kStanding) != 0) standing = standing_of(made.store, input);
    check_standing(standing, made.store);
    std::vector<std::byte> welcome;
    if ((mode & kOtherWelcome) == 0) welcome = framed({FrameKind::welcome, 0, 0, standing.size()}, standing);
    const std::vector<std::byte> rest = fuzz::stream_of(input);
    std::thread standby([&] { play_standby(port.listener, welcome, rest, (mode & kCommitFirst) != 0); });
    {
        standby::Sender sender(
            {.timing = kTiming, .answer = kTiming.hello, .tls = {}, .required = false, .patience = 1h});
        const auto refused =
            fuzz::error_of({ErrorKind::server}, [&] { sender.connect({"127.0.0.1", port.number, {}}); });
        if (!refused) sender.commit(made.store);
        sender.give_back();
        const standby::SenderView view = sender.view();
        require(!view.required, "nobody but the server's owner makes a standby required");
        require(view.step == 0 || view.step == kStep, "a standby has a commit that was made, or none");
        require(!view.waits, "a commit that has returned waits no longer");
        require(!refused || !view.connected, "a standby that was refused is not there");
    }
    standby.join();
}
