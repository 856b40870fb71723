#include "fabric/tcp/frames.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/crc32c.h"

namespace luwu::fabric {

namespace {

constexpr std::uint64_t kPieceBytes = 256U << 10;  // summed and sent, or received and summed, while it is in the cache
static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");

template <typename Number>
void put(std::byte* bytes, Number value) {
    std::memcpy(bytes, &value, sizeof value);
}

template <typename Number>
Number get(const std::byte* bytes) {
    Number value{};
    std::memcpy(&value, bytes, sizeof value);
    return value;
}

bool known(FrameKind kind) {
    switch (kind) {
        case FrameKind::pull:
        case FrameKind::read:
        case FrameKind::push:
        case FrameKind::initialise:
        case FrameKind::finish_initialise:
        case FrameKind::parameters:
        case FrameKind::taken:
        case FrameKind::failure:
        case FrameKind::welcome:
        case FrameKind::refused:
        case FrameKind::record_parameters:
        case FrameKind::record_states:
        case FrameKind::commit:
        case FrameKind::committed:
        case FrameKind::in_sync:
        case FrameKind::released:
        case FrameKind::noted:
        case FrameKind::alive:
            return true;
    }
    return false;
}

}  // namespace

bool equal(const Token& left, const Token& right) {
    volatile unsigned difference = 0;
    for (std::size_t i = 0; i < left.size(); ++i) {
        difference = difference | std::to_integer<unsigned>(left[i] ^ right[i]);
    }
    return difference == 0;
}

const char* name_of(Drop reason) {
    constexpr std::array<const char*, kDrops> kNames{"crowded",  "timeout",   "closed",    "tls",
                                                     "stranger", "version",   "job",       "rank",
                                                     "token",    "malformed", "oversized", "checksum"};
    const auto index = static_cast<std::size_t>(reason);
    return index < kDrops ? kNames[index] : "unknown";
}

std::array<std::byte, kHelloBytes> encode(const Hello& hello) {
    std::array<std::byte, kHelloBytes> bytes{};
    put(&bytes[0], kTcpMagic);
    put(&bytes[8], kTcpVersion);
    put(&bytes[12], static_cast<std::uint32_t>(hello.stream));
    put(&bytes[16], hello.job);
    put(&bytes[24], hello.incarnation);
    put(&bytes[32], hello.rank);
    put(&bytes[36], hello.workers);
    std::copy(hello.token.begin(), hello.token.end(), bytes.begin() + 40);
    put(&bytes[76], kernels::crc32c(0, bytes.data(), 76));
    return bytes;
}

Hello decode_hello(std::span<const std::byte, kHelloBytes> bytes) {
    if (get<std::uint64_t>(&bytes[0]) != kTcpMagic) throw Dropped(Drop::stranger);
    if (get<std::uint32_t>(&bytes[8]) != kTcpVersion) throw Dropped(Drop::version);
    if (get<std::uint32_t>(&bytes[76]) != kernels::crc32c(0, bytes.data(), 76)) throw Dropped(Drop::checksum);
    const auto stream = get<std::uint32_t>(&bytes[12]);
    if (stream > static_cast<std::uint32_t>(Stream::gradients)) throw Dropped(Drop::malformed);
    Hello hello;
    hello.stream = static_cast<Stream>(stream);
    hello.job = get<std::uint64_t>(&bytes[16]);
    hello.incarnation = get<std::uint64_t>(&bytes[24]);
    hello.rank = get<std::uint32_t>(&bytes[32]);
    hello.workers = get<std::uint32_t>(&bytes[36]);
    std::copy_n(bytes.begin() + 40, hello.token.size(), hello.token.begin());
    return hello;
}

void send_hello(Channel& channel, const Hello& hello) {
    const auto bytes = encode(hello);
    for (std::size_t sent = 0; sent < bytes.size();) {
        const std::size_t count = channel.write_some(std::span(bytes).subspan(sent), false);
        sent += count;
        if (count == 0) channel.wait(true);
    }
}

std::array<std::byte, kHelloBytes> receive_hello(Channel& channel) {
    std::array<std::byte, kHelloBytes> bytes{};
    for (std::size_t received = 0; received < bytes.size();) {
        const std::size_t count = channel.read_some(std::span(bytes).subspan(received));
        received += count;
        if (count == 0) channel.wait(false);
    }
    return bytes;
}

std::array<std::byte, kFrameBytes> encode(const Frame& frame) {
    std::array<std::byte, kFrameBytes> bytes{};
    put(&bytes[0], static_cast<std::uint32_t>(frame.kind));
    put(&bytes[4], frame.block);
    put(&bytes[8], frame.sequence);
    put(&bytes[16], frame.bytes);
    put(&bytes[24], kernels::crc32c(0, bytes.data(), 24));
    return bytes;
}

Frame decode_frame(std::span<const std::byte, kFrameBytes> bytes) {
    if (get<std::uint32_t>(&bytes[24]) != kernels::crc32c(0, bytes.data(), 24)) throw Dropped(Drop::checksum);
    Frame frame;
    frame.kind = static_cast<FrameKind>(get<std::uint32_t>(&bytes[0]));
    frame.block = get<std::uint32_t>(&bytes[4]);
    frame.sequence = get<std::uint64_t>(&bytes[8]);
    frame.bytes = get<std::uint64_t>(&bytes[16]);
    if (!known(frame.kind)) throw Dropped(Drop::malformed);
    return frame;
}

void FrameWriter::start(const Frame& frame, std::span<const std::byte> payload) {
    head_ = encode(frame);
    payload_ = payload;
    sent_ = checked_ = 0;
    crc_ = 0;
}

// Sends `all` as far as the channel has room; `end` is where it ends within the frame. True: all of it is out.
bool FrameWriter::write_piece(Channel& channel, std::span<const std::byte> all, std::uint64_t end, bool more) {
    while (sent_ < end) {
        const std::size_t written = channel.write_some(all.last(end - sent_), more);
        if (written == 0) return false;
        sent_ += written;
    }
    return true;
}

bool FrameWriter::write_some(Channel& channel) {
    if (!write_piece(channel, head_, kFrameBytes, !payload_.empty())) return false;
    const bool checksum = !channel.encrypted() && !payload_.empty();
    while (sent_ < kFrameBytes + payload_.size()) {
        const std::uint64_t begin = (sent_ - kFrameBytes) / kPieceBytes * kPieceBytes;
        const std::uint64_t end = std::min<std::uint64_t>(begin + kPieceBytes, payload_.size());
        if (checksum && checked_ < end) crc_ = kernels::crc32c(crc_, payload_.data() + checked_, end - checked_);
        checked_ = std::max(checked_, end);
        const bool more = checksum || end < payload_.size();
        if (!write_piece(channel, payload_.subspan(begin, end - begin), kFrameBytes + end, more)) return false;
    }
    if (!checksum) return true;
    put(tail_.data(), crc_);
    return write_piece(channel, tail_, kFrameBytes + payload_.size() + tail_.size(), false);
}

void FrameWriter::write(Channel& channel) {
    while (!write_some(channel)) channel.wait(true);
}

std::optional<Frame> FrameReader::read_header(Channel& channel) {
    while (received_ < kFrameBytes) {
        const std::size_t count = channel.read_some(std::span(head_).subspan(received_));
        if (count == 0) return std::nullopt;
        received_ += count;
    }
    received_ = 0;
    crc_ = 0;
    return decode_frame(head_);
}

bool FrameReader::read_payload(Channel& channel, std::span<std::byte> into) {
    const bool checksum = !channel.encrypted();
    while (received_ < into.size()) {
        const std::uint64_t most = std::min<std::uint64_t>(kPieceBytes, into.size() - received_);
        const std::size_t count = channel.read_some(into.subspan(received_, most));
        if (count == 0) return false;
        if (checksum) crc_ = kernels::crc32c(crc_, into.data() + received_, count);
        received_ += count;
    }
    const std::uint64_t end = into.size() + (checksum ? tail_.size() : 0);
    while (received_ < end) {
        const std::size_t count = channel.read_some(std::span(tail_).subspan(received_ - into.size()));
        if (count == 0) return false;
        received_ += count;
    }
    received_ = 0;
    if (checksum && get<std::uint32_t>(tail_.data()) != crc_) throw Dropped(Drop::checksum);
    return true;
}

}  // namespace luwu::fabric
