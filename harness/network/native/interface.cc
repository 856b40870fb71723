#include "interface.h"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <net/if.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>

namespace luwu::wire {
namespace {

constexpr std::uint32_t kBlockBytes = 1 << 20;
constexpr std::size_t kBatch = 64;

[[noreturn]] void fail(const std::string& what) { throw std::system_error(errno, std::system_category(), what); }

template <typename Value>
void set_option(int descriptor, int option, const Value& value, const char* name) {
    if (setsockopt(descriptor, SOL_PACKET, option, &value, sizeof(value)) != 0) fail(name);
}

}  // namespace

Interface::Interface(const std::string& name, std::uint64_t frame_bytes, std::uint64_t ring_bytes) {
    descriptor_ = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);  // protocol 0: nothing comes before bind
    if (descriptor_ < 0) fail("a packet socket");
    try {
        make_ring(frame_bytes, ring_bytes);
        bind_to(name);
    } catch (...) {
        close(descriptor_);
        throw;
    }
}

Interface::~Interface() {
    munmap(ring_, ring_bytes_);
    close(descriptor_);
}

// Version 2 of the ring hands over each frame at once; version 3 would save calls at the price of a millisecond.
void Interface::make_ring(std::uint64_t frame_bytes, std::uint64_t ring_bytes) {
    set_option(descriptor_, PACKET_VERSION, static_cast<int>(TPACKET_V2), "PACKET_VERSION");
    set_option(descriptor_, PACKET_IGNORE_OUTGOING, 1, "PACKET_IGNORE_OUTGOING");
    constexpr std::uint64_t headroom = TPACKET2_HDRLEN + 64;  // the header, the address, and where IP is to begin
    slot_bytes_ = static_cast<std::uint32_t>(TPACKET_ALIGN(frame_bytes + headroom));
    slots_per_block_ = kBlockBytes / slot_bytes_;
    block_bytes_ = kBlockBytes;
    tpacket_req request{};
    request.tp_block_size = block_bytes_;
    request.tp_block_nr = static_cast<std::uint32_t>(std::max<std::uint64_t>(1, ring_bytes / kBlockBytes));
    request.tp_frame_size = slot_bytes_;
    request.tp_frame_nr = slots_ = request.tp_block_nr * slots_per_block_;
    set_option(descriptor_, PACKET_RX_RING, request, "PACKET_RX_RING");
    ring_bytes_ = std::uint64_t{request.tp_block_nr} * block_bytes_;
    void* memory = mmap(nullptr, ring_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
    if (memory == MAP_FAILED) fail("mapping the ring");
    ring_ = static_cast<std::uint8_t*>(memory);
}

void Interface::bind_to(const std::string& name) const {
    sockaddr_ll address{};
    address.sll_family = AF_PACKET;
    address.sll_protocol = htons(ETH_P_ALL);
    address.sll_ifindex = static_cast<int>(if_nametoindex(name.c_str()));
    if (address.sll_ifindex == 0) fail("interface " + name);
    packet_mreq everything{};
    everything.mr_ifindex = address.sll_ifindex;
    everything.mr_type = PACKET_MR_PROMISC;
    set_option(descriptor_, PACKET_ADD_MEMBERSHIP, everything, "PACKET_MR_PROMISC");
    set_option(descriptor_, PACKET_QDISC_BYPASS, 1, "PACKET_QDISC_BYPASS");
    if (bind(descriptor_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) fail("bind to " + name);
}

tpacket2_hdr* Interface::header(std::uint32_t place) const {
    const std::uint32_t slot = (oldest_ + place) % slots_;
    const std::uint64_t block = slot / slots_per_block_;
    return reinterpret_cast<tpacket2_hdr*>(ring_ + block * block_bytes_ +
                                           std::uint64_t{slot % slots_per_block_} * slot_bytes_);
}

bool Interface::peek(std::uint32_t place, Received& frame) const {
    tpacket2_hdr* found = header(place);
    const std::uint32_t status = std::atomic_ref(found->tp_status).load(std::memory_order_acquire);
    if ((status & TP_STATUS_USER) == 0) return false;
    frame.bytes = {reinterpret_cast<std::uint8_t*>(found) + found->tp_mac, found->tp_snaplen};
    frame.length = found->tp_len;
    frame.checksum_missing = (status & TP_STATUS_CSUMNOTREADY) != 0;
    return true;
}

void Interface::give_back(std::uint32_t count) {
    for (std::uint32_t place = 0; place < count; ++place) {
        std::atomic_ref(header(place)->tp_status).store(TP_STATUS_KERNEL, std::memory_order_release);
    }
    oldest_ = (oldest_ + count) % slots_;
}

std::uint64_t Interface::send(const std::vector<std::span<const std::uint8_t>>& frames) const {
    std::uint64_t refused = 0;
    for (std::size_t sent = 0; sent < frames.size();) {
        mmsghdr messages[kBatch]{};
        iovec pieces[kBatch];
        const std::size_t count = std::min(kBatch, frames.size() - sent);
        for (std::size_t index = 0; index < count; ++index) {
            const auto& frame = frames[sent + index];
            pieces[index] = {const_cast<std::uint8_t*>(frame.data()), frame.size()};
            messages[index].msg_hdr.msg_iov = &pieces[index];
            messages[index].msg_hdr.msg_iovlen = 1;
        }
        const int done = sendmmsg(descriptor_, messages, static_cast<unsigned>(count), 0);
        if (done > 0) {
            sent += static_cast<std::size_t>(done);
        } else if (errno != EINTR) {
            ++refused;
            ++sent;
        }
    }
    return refused;
}

std::uint64_t Interface::missed() {
    tpacket_stats statistics{};
    socklen_t size = sizeof(statistics);
    if (getsockopt(descriptor_, SOL_PACKET, PACKET_STATISTICS, &statistics, &size) == 0) {
        missed_ += statistics.tp_drops;  // the kernel forgets them with each call
    }
    return missed_;
}

void Interface::clear_error() const {
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(descriptor_, SOL_SOCKET, SO_ERROR, &error, &size);
}

}  // namespace luwu::wire
