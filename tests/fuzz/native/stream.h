// A stream of frames made from a fuzzer's input, and two connected sockets that it goes through.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>

#include <array>
#include <stdexcept>
#include <utility>

#include "fabric/core/descriptor.h"
#include "fabric/tcp/frames.h"
#include "kernels/crc32c.h"
#include "target.h"

namespace luwu::fuzz {

inline constexpr std::size_t kMostStreamBytes = 64 << 10;  // what a socket takes without a reader

// Frames and noise. A frame is sealed, and so is its payload, unless its first byte says otherwise.
inline std::vector<std::byte> stream_of(Input& input) {
    enum : std::uint8_t { kNoise = 1, kUnsealed = 2, kPayloadUnsealed = 4, kOtherLength = 8, kTold = 16 };
    std::vector<std::byte> stream;
    const auto append = [&stream](Bytes bytes) { stream.insert(stream.end(), bytes.begin(), bytes.end()); };
    while (!input.empty() && stream.size() < kMostStreamBytes / 2) {
        const auto how = input.number();
        if ((how & kNoise) != 0) {
            append(input.bytes(input.number()));
            continue;
        }
        fabric::Frame frame;
        frame.kind = static_cast<fabric::FrameKind>(input.number());
        frame.block = input.number();
        frame.sequence = input.number();
        const std::size_t length = input.number<std::uint16_t>();
        const Bytes payload = (how & kTold) != 0 ? Bytes() : input.bytes(length);
        // Body of a request for a whole block, without the bytes of one in the input.
        std::vector<std::byte> body = copy_of(payload);
        if ((how & kTold) != 0) body.resize(std::min<std::size_t>(length, kMostStreamBytes / 4));
        frame.bytes = (how & kOtherLength) != 0 ? input.number<std::uint64_t>() : body.size();
        auto head = fabric::encode(frame);
        if ((how & kUnsealed) != 0) head[24] ^= std::byte{1};
        append(head);
        if (body.empty()) continue;
        append(body);
        std::uint32_t crc = kernels::crc32c(0, body.data(), body.size());
        if ((how & kPayloadUnsealed) != 0) ++crc;
        append(std::as_bytes(std::span(&crc, 1)));
    }
    return stream;
}

inline std::pair<fabric::Descriptor, fabric::Descriptor> connected() {
    std::array<int, 2> ends{};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0) {
        throw std::runtime_error("no sockets");
    }
    return {fabric::Descriptor(ends[0]), fabric::Descriptor(ends[1])};
}

inline void send_all(const fabric::Descriptor& socket, Bytes bytes) {
    while (!bytes.empty()) {
        const ssize_t sent = send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (sent < 0) return;  // the other end has had enough
        bytes = bytes.subspan(static_cast<std::size_t>(sent));
    }
}

}  // namespace luwu::fuzz
