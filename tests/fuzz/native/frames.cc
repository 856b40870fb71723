// Frames out of a stream: those that are read, written again, are the stream's beginning.
#include "stream.h"

namespace {

using namespace luwu::fabric;
using luwu::fuzz::require;

constexpr std::uint64_t kLongest = 8192;  // payload that is read here
constexpr std::size_t kUnused = 28;       // where a frame's head has four bytes without a meaning

struct Reading {
    std::vector<std::byte> again;  // what was read, written again
    std::optional<Drop> dropped;
};

class Rewriter {
  public:
    Rewriter() : ends_(luwu::fuzz::connected()), channel_(std::move(ends_.first), bell_, nullptr, "") {}
    void write(const Frame& frame, luwu::fuzz::Bytes payload, std::vector<std::byte>& into) {
        FrameWriter writer;
        writer.start(frame, payload);
        require(writer.write_some(channel_), "a frame finds room in an empty socket");
        std::array<std::byte, kLongest + kFrameBytes + 4> bytes;
        const ssize_t count = recv(ends_.second.get(), bytes.data(), bytes.size(), 0);
        require(count >= static_cast<ssize_t>(kFrameBytes), "what was written comes out");
        into.insert(into.end(), bytes.begin(), bytes.begin() + count);
    }

  private:
    std::pair<Descriptor, Descriptor> ends_;
    Bell bell_;
    Channel channel_;
};

Reading read(Channel& channel) {
    Reading reading;
    Rewriter rewriter;
    FrameReader reader;
    try {
        while (true) {
            const auto frame = reader.read_header(channel);
            if (!frame) break;
            if (frame->bytes > kLongest) throw Dropped(Drop::oversized);
            std::vector<std::byte> payload(frame->bytes);
            if (!payload.empty() && !reader.read_payload(channel, payload)) break;
            rewriter.write(*frame, payload, reading.again);
        }
    } catch (const Dropped& dropped) {
        reading.dropped = dropped.reason();
    } catch (const Broken&) {
    }
    return reading;
}

}  // namespace

LUWU_FUZZ_TARGET("frames") {
    luwu::fuzz::Input input(data);
    std::vector<std::byte> stream = luwu::fuzz::stream_of(input);
    auto [ours, theirs] = luwu::fuzz::connected();
    luwu::fuzz::send_all(theirs, stream);
    shutdown(theirs.get(), SHUT_WR);
    Bell bell;
    Channel channel(std::move(ours), bell, nullptr, "");
    const Reading reading = read(channel);
    require(reading.again.size() <= stream.size(), "no more is read than was sent");
    // Heads have four bytes that nobody looks at.
    for (std::size_t at = 0; at + kFrameBytes <= reading.again.size();) {
        std::fill_n(stream.begin() + static_cast<std::ptrdiff_t>(at + kUnused), 4, std::byte{});
        std::uint64_t bytes = 0;
        std::memcpy(&bytes, &reading.again[at + 16], sizeof bytes);
        at += kFrameBytes + bytes + (bytes > 0 ? 4 : 0);
    }
    require(std::equal(reading.again.begin(), reading.again.end(), stream.begin()), "frames are as they were sent");
    if (!reading.dropped) return;
    const Drop why = *reading.dropped;
    require(why == Drop::checksum || why == Drop::malformed || why == Drop::oversized,
            "a frame is refused for what is wrong with it");
}
