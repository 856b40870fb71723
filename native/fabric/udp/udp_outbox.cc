#include "fabric/udp/udp_outbox.h"

#include <netinet/udp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "fabric/core/clock.h"

namespace luwu::fabric {

namespace {

constexpr std::size_t kMostPieces = 1024;       // queued, and of one message: the kernel's limit (UIO_MAXIOV)
constexpr std::size_t kMostRuns = 512;          // queued; half the pieces, for a head and a body each
constexpr std::size_t kHeadsBytes = 128 << 10;  // of all queued heads; more than the longest datagram
constexpr std::size_t kRoomBytes = 1 << 20;     // at first
constexpr std::size_t kRoomStep = 64;           // a cache line
constexpr std::uint32_t kMostSegments = 64;     // of a message: UDP_MAX_SEGMENTS of the kernels before 6.9
constexpr std::uint32_t kMostRunBytes = 65'000;
static_assert(kHeadsBytes > kMostPayloadIpv6Bytes);

// Errors by which a kernel or a device refuses to cut a message into datagrams (udp_send_skb in net/ipv4/udp.c), though
// it may take the datagrams one by one.
bool may_refuse_segments(int error_number) {
    return error_number == EIO || error_number == EINVAL || error_number == EMSGSIZE;
}

}  // namespace

UdpOutbox::UdpOutbox(UdpSocket& socket, std::chrono::nanoseconds longest_wait, SendCall send_call)
    : socket_(socket),
      stats_(socket.stats()),
      longest_wait_(longest_wait),
      send_call_(send_call),
      segmenting_(socket.segments()),
      runs_(kMostRuns),
      headers_(kMostRuns),
      addresses_(kMostRuns),
      controls_(kMostRuns),
      pieces_(kMostPieces),
      heads_(std::make_unique_for_overwrite<std::byte[]>(kHeadsBytes)),
      room_(kRoomBytes) {
    for (std::size_t i = 0; i < kMostRuns; ++i) {
        auto* note = reinterpret_cast<cmsghdr*>(controls_[i].bytes.data());
        note->cmsg_level = IPPROTO_UDP;
        note->cmsg_type = UDP_SEGMENT;
        note->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
        headers_[i].msg_hdr.msg_name = &addresses_[i];
        headers_[i].msg_hdr.msg_namelen = sizeof(sockaddr_in6);
    }
    single_pieces_.reserve(kMostPieces + kMostSegments);
}

void UdpOutbox::send(const Address& to, std::span<const std::byte> head, std::span<const std::byte> body) {
    if (head.size() + body.size() > kMostPayloadIpv6Bytes) return count_refused(1, EMSGSIZE);
    const auto bytes = static_cast<std::uint32_t>(head.size() + body.size());
    if (queued_ == kMostRuns || piece_count_ + 2 > kMostPieces || head_bytes_ + head.size() > kHeadsBytes) drain();
    if (joins_last_run(to, bytes)) {
        ++runs_[queued_ - 1].segments;
        runs_[queued_ - 1].bytes += bytes;
    } else {
        begin_run(to, bytes);
    }
    if (!head.empty()) {
        std::byte* copy = heads_.get() + head_bytes_;
        std::memcpy(copy, head.data(), head.size());
        head_bytes_ += head.size();
        add_piece(copy, head.size());
    }
    if (!body.empty()) add_piece(body.data(), body.size());
}

bool UdpOutbox::joins_last_run(const Address& to, std::uint32_t bytes) const {
    if (!segmenting_ || queued_ == 0 || bytes == 0) return false;
    const Run& run = runs_[queued_ - 1];
    const bool open = run.bytes == run.segments * run.segment_bytes;  // no shorter one has ended it
    return open && bytes <= run.segment_bytes && run.segments < kMostSegments && run.bytes + bytes <= kMostRunBytes &&
           Address{addresses_[queued_ - 1]} == to;
}

void UdpOutbox::begin_run(const Address& to, std::uint32_t bytes) {
    runs_[queued_] = {1, bytes, bytes};
    addresses_[queued_] = to.value;
    headers_[queued_].msg_hdr.msg_iov = &pieces_[piece_count_];
    headers_[queued_].msg_hdr.msg_iovlen = 0;
    ++queued_;
}

void UdpOutbox::add_piece(const std::byte* data, std::size_t bytes) {
    msghdr& message = headers_[queued_ - 1].msg_hdr;
    if (message.msg_iovlen > 0) {
        iovec& last = pieces_[piece_count_ - 1];
        if (static_cast<std::byte*>(last.iov_base) + last.iov_len == data) {
            last.iov_len += bytes;
            return;
        }
    }
    pieces_[piece_count_++] = {const_cast<std::byte*>(data), bytes};  // the kernel only reads it
    ++message.msg_iovlen;
}

std::byte* UdpOutbox::room(std::size_t bytes) {
    if (room_bytes_ + bytes > room_.size()) {
        flush();
        if (bytes > room_.size()) room_.resize(bytes);
    }
    std::byte* given = room_.data() + room_bytes_;
    room_bytes_ = std::min(room_.size(), (room_bytes_ + bytes + kRoomStep - 1) / kRoomStep * kRoomStep);
    return given;
}

void UdpOutbox::flush() {
    drain();
    room_bytes_ = 0;
}

// Memory from room() stays given out: a body that was sent to one address may yet be sent to others.
void UdpOutbox::drain() {
    wait_until_ns_ = 0;
    for (std::size_t i = 0; i < queued_; ++i) {
        const bool several = runs_[i].segments > 1;
        const auto segment_bytes = static_cast<std::uint16_t>(runs_[i].segment_bytes);
        headers_[i].msg_hdr.msg_control = several ? controls_[i].bytes.data() : nullptr;
        headers_[i].msg_hdr.msg_controllen = several ? sizeof controls_[i].bytes : 0;
        std::memcpy(CMSG_DATA(reinterpret_cast<cmsghdr*>(controls_[i].bytes.data())), &segment_bytes,
                    sizeof segment_bytes);
    }
    std::size_t next = 0;
    while (next < queued_) {
        int error_number = 0;
        const std::size_t sent = transmit(std::span(headers_).subspan(next, queued_ - next), error_number);
        for (const std::size_t end = next + sent; next < end; ++next) {
            stats_.datagrams_sent += runs_[next].segments;
            stats_.bytes_sent += runs_[next].bytes;
        }
        if (error_number == 0) continue;
        if (error_number == EAGAIN) {
            for (; next < queued_; ++next) stats_.dropped_full += runs_[next].segments;
        } else if (runs_[next].segments > 1 && may_refuse_segments(error_number)) {
            // Not where the datagrams are too long for the way to this one address: others may take runs.
            if (send_one_by_one(next++)) segmenting_ = false;
        } else {
            count_refused(runs_[next++].segments, error_number);
        }
    }
    queued_ = piece_count_ = head_bytes_ = 0;
}

// Returns how many went out before the first that did not; its error, 0 where all did.
std::size_t UdpOutbox::transmit(std::span<mmsghdr> messages, int& error_number) {
    error_number = 0;
    std::size_t done = 0;
    while (done < messages.size()) {
        ++stats_.send_calls;
        const int sent = send_call_(socket_.descriptor(), messages.data() + done,
                                    static_cast<unsigned>(messages.size() - done), MSG_DONTWAIT);
        if (sent > 0) {
            done += static_cast<std::size_t>(sent);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            if (wait_for_room()) continue;
            error_number = EAGAIN;
            break;
        } else if (errno != EINTR) {
            error_number = errno;
            break;
        }
    }
    return done;
}

bool UdpOutbox::wait_for_room() {
    const std::uint64_t now = monotonic_ns();
    if (wait_until_ns_ == 0) wait_until_ns_ = now + static_cast<std::uint64_t>(longest_wait_.count());
    if (now >= wait_until_ns_) return false;
    const std::uint64_t left = wait_until_ns_ - now;
    const timespec timeout{static_cast<time_t>(left / 1'000'000'000), static_cast<long>(left % 1'000'000'000)};
    pollfd waited{socket_.descriptor(), POLLOUT, 0};
    ++stats_.wait_calls;
    ppoll(&waited, 1, &timeout, nullptr);
    return true;
}

// Returns whether the first datagram went out.
bool UdpOutbox::send_one_by_one(std::size_t index) {
    ++stats_.segmenting_refused;
    const std::size_t segment_bytes = runs_[index].segment_bytes;
    const msghdr& message = headers_[index].msg_hdr;
    std::array<mmsghdr, kMostSegments> singles{};
    std::size_t count = 0;
    std::size_t left = 0;  // of the single that is being filled
    single_pieces_.clear();
    for (iovec piece : std::span(message.msg_iov, message.msg_iovlen)) {
        while (piece.iov_len > 0) {
            if (left == 0) {
                singles[count].msg_hdr.msg_name = message.msg_name;
                singles[count].msg_hdr.msg_namelen = message.msg_namelen;
                singles[count++].msg_hdr.msg_iov = single_pieces_.data() + single_pieces_.size();
                left = segment_bytes;
            }
            const std::size_t bytes = std::min(left, piece.iov_len);
            single_pieces_.push_back({piece.iov_base, bytes});
            ++singles[count - 1].msg_hdr.msg_iovlen;
            piece = {static_cast<std::byte*>(piece.iov_base) + bytes, piece.iov_len - bytes};
            left -= bytes;
        }
    }
    bool first_sent = false;
    for (std::size_t next = 0; next < count;) {
        int error_number = 0;
        const std::size_t sent = transmit(std::span(singles).subspan(next, count - next), error_number);
        if (next == 0) first_sent = sent > 0;
        for (const std::size_t end = next + sent; next < end; ++next) {
            ++stats_.datagrams_sent;
            stats_.bytes_sent += singles[next].msg_len;
        }
        if (error_number == EAGAIN) {
            stats_.dropped_full += count - next;
            break;
        }
        if (error_number != 0) count_refused(1, error_number), ++next;
    }
    return first_sent;
}

void UdpOutbox::count_refused(std::uint32_t datagrams, int error_number) {
    stats_.dropped_refused += datagrams;
    stats_.last_refusal = error_number;
}

}  // namespace luwu::fabric
