#include "fabric/tcp/lobby.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "store/files.h"

namespace luwu::fabric {

namespace {
constexpr std::size_t kAtATime = 64;
constexpr std::uint64_t kFew = 1;  // new connections in a rest

bool watch(const Descriptor& events, int operation, const Descriptor& socket, std::uint32_t what,
           std::uint64_t number) {
    epoll_event event{};
    event.events = what;
    event.data.u64 = number;
    return epoll_ctl(events.get(), operation, socket.get(), &event) == 0;
}
// The socket counts as readable when so many bytes are there, or when no more will come. (Where the kernel refuses, one
// byte is enough.)
void readable_at(const Descriptor& socket, int bytes) {
    setsockopt(socket.get(), SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes);
}
}  // namespace

Lobby::Lobby(Descriptor listener, std::size_t most, std::size_t first_bytes, std::chrono::milliseconds patience,
             std::chrono::milliseconds pause)
    : listener_(std::move(listener)),
      events_(epoll_create1(EPOLL_CLOEXEC)),
      waits_for_more_(first_bytes > 1),
      patience_(patience),
      pause_(pause),
      crowd_(most) {
    if (events_.get() < 0) throw store::system_error("make", "an event queue", errno);
    if (!watch(events_, EPOLL_CTL_ADD, listener_, EPOLLIN, 0)) {
        throw store::system_error("watch", "a listening socket", errno);
    }
    if (waits_for_more_) readable_at(listener_, static_cast<int>(first_bytes));  // accepted sockets inherit it
}

Clock::time_point Lobby::deadline() const {
    const auto first = waiting_.empty() ? Clock::time_point::max() : waiting_.begin()->second.until;
    return pauses_until_ == Clock::time_point::min() ? first : std::min(first, pauses_until_);
}

std::vector<Lobby::Guest> Lobby::look(Clock::time_point now) {
    if (pauses_until_ != Clock::time_point::min() && now >= pauses_until_) listen(true);
    for (; !waiting_.empty() && waiting_.begin()->second.until <= now; ++stats_.silent) {
        crowd_.leave(waiting_.begin()->first);
        waiting_.erase(waiting_.begin());
    }
    std::vector<Guest> spoke;
    std::array<epoll_event, kAtATime> events{};
    bool all = true;
    const std::uint64_t first_new = next_;
    const int count = epoll_wait(events_.get(), events.data(), static_cast<int>(events.size()), 0);
    for (int i = 0; i < count; ++i) {
        const std::uint64_t number = events[static_cast<std::size_t>(i)].data.u64;
        if (number == 0) {
            all = accept_some(now);
            continue;
        }
        const auto found = waiting_.find(number);
        if (found == waiting_.end()) continue;  // was closed for a connection that came just now
        Guest guest = std::move(found->second.guest);
        crowd_.leave(number);
        waiting_.erase(found);
        std::byte first{};
        if (recv(guest.socket.get(), &first, sizeof first, MSG_PEEK) != 1) {
            ++stats_.closed;
            continue;
        }
        if (waits_for_more_) readable_at(guest.socket, 1);
        spoke.push_back(std::move(guest));
    }
    if (count > 0 && count < static_cast<int>(events.size()) && all) {
        rests_until_ = now + (next_ - first_new > kFew ? kCrowdedRest : kRest);
    }
    return spoke;
}

bool Lobby::accept_some(Clock::time_point now) {
    for (std::size_t i = 0; i < kAtATime; ++i) {
        sockaddr_storage address{};
        socklen_t length = sizeof address;
        Descriptor socket(
            accept4(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (socket.get() < 0) {
            // Descriptors or memory have run out, which passes: the listening socket would stay ready, so do not watch
            // it.
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
                listen(false);
                pauses_until_ = now + pause_;
            }
            return true;
        }
        const std::uint64_t number = next_++;
        const Origin origin = origin_of(address);
        // Once: it leaves the lobby at its first event, and the queue forgets it when it is closed.
        if (!watch(events_, EPOLL_CTL_ADD, socket, EPOLLIN | EPOLLRDHUP | EPOLLONESHOT, number)) continue;
        waiting_.emplace(number, Waiting{{std::move(socket), origin}, now + patience_});
        if (const auto goes = crowd_.enter(number, origin)) {
            waiting_.erase(*goes);
            ++stats_.crowded;
        }
    }
    return false;
}

void Lobby::listen(bool listens) {
    watch(events_, EPOLL_CTL_MOD, listener_, listens ? EPOLLIN : 0U, 0);
    if (listens) pauses_until_ = Clock::time_point::min();
}

}  // namespace luwu::fabric
