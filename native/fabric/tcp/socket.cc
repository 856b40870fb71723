#include "fabric/tcp/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>

#include "store/files.h"

namespace luwu::fabric {

namespace {

constexpr int kSocketBufferBytes = 16 << 20;
constexpr int kBacklog = 128;

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// Throws Broken.
Addresses resolve(const std::string& address, std::uint16_t port, int flags) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags;
    addrinfo* found = nullptr;
    const int code = getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found);
    if (code != 0) throw Broken(gai_strerror(code));
    return {found, &freeaddrinfo};
}

void set_option(int socket, int level, int name, int value) { setsockopt(socket, level, name, &value, sizeof value); }

// A size that is set turns off the growth of the buffer by the kernel, so it is set only where the limit allows a large
// one.
void enlarge_buffer(int socket, int name, const char* limit_path) {
    std::int64_t limit = 0;
    std::ifstream(limit_path) >> limit;
    if (limit >= kSocketBufferBytes) set_option(socket, SOL_SOCKET, name, kSocketBufferBytes);
}

void enlarge_buffers(int socket) {
    enlarge_buffer(socket, SO_SNDBUF, "/proc/sys/net/core/wmem_max");
    enlarge_buffer(socket, SO_RCVBUF, "/proc/sys/net/core/rmem_max");
}

Descriptor connect_once(const addrinfo& place, const Bell& bell, Clock::time_point deadline) {
    Descriptor socket(::socket(place.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, place.ai_protocol));
    if (socket.get() < 0) throw Broken(std::strerror(errno));
    enlarge_buffers(socket.get());
    if (connect(socket.get(), place.ai_addr, place.ai_addrlen) == 0) return socket;
    if (errno != EINPROGRESS) throw Broken(std::strerror(errno));
    for (pollfd ready{socket.get(), POLLOUT, 0}; poll(&ready, 1, 0) == 0;) {
        wait_for(socket.get(), POLLOUT, bell, deadline);
    }
    int error_number = 0;
    socklen_t size = sizeof error_number;
    getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error_number, &size);
    if (error_number != 0) throw Broken(std::strerror(error_number));
    return socket;
}

}  // namespace

Bell::Bell() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (event_.get() < 0) throw store::system_error("make", "an event descriptor", errno);
}

void Bell::ring() const { eventfd_write(event_.get(), 1); }

void Bell::stop() {
    stopped_ = true;
    ring();
}

void Bell::quiet() const {
    eventfd_t count = 0;
    eventfd_read(event_.get(), &count);
}

void wait_for(int socket, short events, const Bell& bell, Clock::time_point deadline) {
    if (bell.stopped()) throw Broken("stopped");
    std::array<pollfd, 2> entries{{{bell.descriptor(), POLLIN, 0}, {socket, events, 0}}};
    int timeout = -1;
    if (deadline != Clock::time_point::max()) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
        if (left <= 0) throw TimedOut("its time was over");
        timeout = static_cast<int>(std::min<std::int64_t>(left, std::numeric_limits<int>::max()));
    }
    const int ready = poll(entries.data(), events == 0 ? 1 : 2, timeout);
    if (ready == 0) throw TimedOut("its time was over");
    if ((entries[0].revents & POLLIN) != 0) bell.quiet();
}

Descriptor listen_at(const std::string& address, std::uint16_t port) {
    const auto refuse = [&](const std::string& reason) {
        return Error(ErrorKind::invalid, "cannot listen at " + name_of(address, port) + ": " + reason +
                                             "; name an address of this host and a free port, or port 0 for any");
    };
    try {
        const Addresses places = resolve(address, port, AI_PASSIVE);
        Descriptor socket(::socket(places->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        if (socket.get() < 0) throw refuse(std::strerror(errno));
        set_option(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
        if (places->ai_family == AF_INET6) set_option(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
        enlarge_buffers(socket.get());  // connections inherit them
        if (bind(socket.get(), places->ai_addr, places->ai_addrlen) != 0 || listen(socket.get(), kBacklog) != 0) {
            throw refuse(std::strerror(errno));
        }
        return socket;
    } catch (const Broken& broken) {
        throw refuse(broken.what());
    }
}

std::uint16_t bound_port(const Descriptor& listener) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size);
    if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port);
    return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

Descriptor connect_to(const std::string& address, std::uint16_t port, const Bell& bell, Clock::time_point deadline) {
    const Addresses places = resolve(address, port, 0);
    for (const addrinfo* place = places.get();; place = place->ai_next) {
        try {
            return connect_once(*place, bell, deadline);
        } catch (const Broken&) {
            if (place->ai_next == nullptr) throw;
        }
    }
}

void tune(const Descriptor& socket, const Timing& timing) {
    constexpr int kProbes = 4;  // within the time of silence
    const auto milliseconds = static_cast<int>(timing.silence.count());
    const int interval = std::max(1, milliseconds / 1000 / kProbes);
    set_option(socket.get(), IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(socket.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(socket.get(), IPPROTO_TCP, TCP_KEEPIDLE, interval);
    set_option(socket.get(), IPPROTO_TCP, TCP_KEEPINTVL, interval);
    set_option(socket.get(), IPPROTO_TCP, TCP_KEEPCNT, kProbes);
    set_option(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, milliseconds);
}

std::chrono::milliseconds unacknowledged_for(const Descriptor& socket) {
    constexpr unsigned kLostProbes = 2;  // one may be on its way
    tcp_info info{};
    socklen_t length = sizeof info;
    if (getsockopt(socket.get(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return {};
    const bool waits = info.tcpi_unacked > 0 || info.tcpi_probes >= kLostProbes;
    return std::chrono::milliseconds(waits ? info.tcpi_last_ack_recv : 0);
}

std::string name_of(const std::string& address, std::uint16_t port) {
    const bool is_v6 = address.find(':') != std::string::npos;
    return (is_v6 ? "[" + address + "]" : address) + ":" + std::to_string(port);
}

void block_sigpipe() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

}  // namespace luwu::fabric
