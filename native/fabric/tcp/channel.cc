#include "fabric/tcp/channel.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace luwu::fabric {

namespace {

std::size_t moved(ssize_t result) {
    if (result > 0) return static_cast<std::size_t>(result);
    if (result == 0) throw Broken("the other side closed the connection");
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return 0;
    throw Broken(std::strerror(errno));
}

}  // namespace

Channel::Channel(Descriptor socket, Bell& bell, const TlsContext* tls, const std::string& address)
    : socket_(std::move(socket)), bell_(bell), read_events_(POLLIN), write_events_(POLLOUT) {
    if (tls != nullptr) tls_.emplace(*tls, socket_.get(), address);
}

void Channel::handshake() {
    if (!tls_) return;
    while (const short events = tls_->handshake()) wait_for(socket_.get(), events, bell_, deadline_);
}

std::size_t Channel::read_some(std::span<std::byte> into) {
    read_events_ = POLLIN;
    if (tls_) return tls_->read(into, read_events_);
    return moved(recv(socket_.get(), into.data(), into.size(), 0));
}

std::size_t Channel::write_some(std::span<const std::byte> from, bool more) {
    write_events_ = POLLOUT;
    if (tls_) return tls_->write(from, write_events_);
    return moved(send(socket_.get(), from.data(), from.size(), MSG_NOSIGNAL | (more ? MSG_MORE : 0)));
}

void Channel::wait(bool writing) {
    const int events = read_events_ | (writing ? write_events_ : 0);
    wait_for(socket_.get(), static_cast<short>(events), bell_, deadline_);
}

void Channel::abort() {
    shutdown(socket_.get(), SHUT_RDWR);
    bell_.stop();
}

void Channel::finish(Clock::time_point deadline) {
    const auto until = std::min(deadline, deadline_.load());
    shutdown(socket_.get(), SHUT_WR);
    std::array<std::byte, 4096> unread{};
    try {
        while (Clock::now() < until) {  // beneath TLS, which may have failed
            if (moved(recv(socket_.get(), unread.data(), unread.size(), 0)) > 0) continue;
            wait_for(socket_.get(), POLLIN, bell_, until);
        }
    } catch (const Broken&) {  // closed, or its time was over
    }
}

void Channel::wait_for_bell() { wait_for(socket_.get(), 0, bell_, deadline_); }

}  // namespace luwu::fabric
