#include "fabric/tcp/door.h"

#include <netdb.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <random>

#include "store/files.h"

namespace luwu::fabric {

namespace {

constexpr std::size_t kRoomBytes = 64 << 10;
constexpr int kReadsInATurn = 16;  // reads of one connection before the others have their turn
constexpr std::chrono::milliseconds kSweep{200};
constexpr std::uint64_t kNoLimit = ~std::uint64_t{0} >> 1;
constexpr std::uint64_t kWake = 0;
constexpr std::uint64_t kLobby = 1;
constexpr std::uint64_t kFirstVisitor = 2;

// Identifies events: a visitor's number and one of its two ends.
std::uint64_t tag(std::uint64_t number, bool inside) { return kFirstVisitor + 2 * number + (inside ? 1 : 0); }

std::string text_of(const Descriptor& socket) {
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    std::array<char, NI_MAXHOST> host{};
    std::array<char, NI_MAXSERV> port{};
    const auto* known = reinterpret_cast<const sockaddr*>(&address);
    if (getpeername(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
        getnameinfo(known, length, host.data(), host.size(), port.data(), port.size(),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        return "gone";
    }
    const bool is_v6 = std::strchr(host.data(), ':') != nullptr;
    return (is_v6 ? "[" + std::string(host.data()) + "]" : std::string(host.data())) + ":" + port.data();
}

// Connects to the server inside, from an end with this name; no descriptor if that server takes no more connections.
Descriptor connect_inside(const std::string& path, const std::string& name) {
    Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un own{};
    own.sun_family = AF_UNIX;
    std::memcpy(own.sun_path + 1, name.data(), name.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    sockaddr_un server{};
    server.sun_family = AF_UNIX;
    std::memcpy(server.sun_path, path.data(), path.size());
    if (socket.get() < 0 || bind(socket.get(), reinterpret_cast<const sockaddr*>(&own), length) != 0 ||
        connect(socket.get(), reinterpret_cast<const sockaddr*>(&server), sizeof server) != 0) {
        return {};
    }
    return socket;
}

// All users of the host share the names of the abstract namespace, so the prefix is random and cannot be guessed.
std::string unique_prefix() {
    std::random_device random;
    return "luwu-door-" + std::to_string(random()) + "-" + std::to_string(random()) + "-";
}

bool passes() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

Door::Door(const DoorSettings& settings)
    : settings_(settings),
      prefix_(unique_prefix()),
      lobby_(std::in_place, listen_at(settings.address, settings.port), settings.most_silent, 1, settings.patience,
             settings.timing.backoff),
      port_(bound_port(lobby_->listener())),
      events_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      strangers_(settings.most_strangers),
      pace_(settings.burst, settings.per_second),
      room_(kRoomBytes) {
    if (settings.inside.size() >= sizeof(sockaddr_un::sun_path)) {
        throw Error(ErrorKind::invalid, settings.inside + ": too long for the path of a Unix socket");
    }
    if (events_.get() < 0 || wake_.get() < 0) throw store::system_error("make", "an event queue", errno);
    const std::array<std::pair<int, std::uint64_t>, 2> always{{{wake_.get(), kWake}, {lobby_->descriptor(), kLobby}}};
    for (const auto& [descriptor, number] : always) {
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.u64 = number;
        if (epoll_ctl(events_.get(), EPOLL_CTL_ADD, descriptor, &event) != 0) {
            throw store::system_error("watch", "a listening socket", errno);
        }
    }
    thread_ = std::thread([this] { run(); });
}

Door::~Door() { close(); }

void Door::close() {
    if (!thread_.joinable()) return;
    shut();
    stops_at_ = Clock::now() + settings_.timing.farewell;
    eventfd_write(wake_.get(), 1);
    thread_.join();
    const std::lock_guard lock(mutex_);
    visitors_.clear();
}

bool Door::admit(const std::string& name) {
    const std::lock_guard lock(mutex_);
    const auto number = number_of(name);
    if (!number) return false;
    Visitor& visitor = visitors_.at(*number);
    if (!visitor.admitted) pace_.give_back(visitor.origin);
    visitor.admitted = true;
    strangers_.leave(*number);
    return true;
}

std::optional<std::string> Door::peer(const std::string& name) {
    const std::lock_guard lock(mutex_);
    const auto number = number_of(name);
    return number ? std::optional(visitors_.at(*number).peer) : std::nullopt;
}

void Door::shut() {
    const std::lock_guard lock(mutex_);
    lobby_.reset();  // closed descriptors leave the queue of events by themselves
}

Door::Stats Door::stats() {
    const std::lock_guard lock(mutex_);
    if (lobby_) stats_.lobby = lobby_->stats();
    stats_.strangers = strangers_.size();
    stats_.visitors = visitors_.size();
    return stats_;
}

std::string Door::name_of_visitor(std::uint64_t number) const { return prefix_ + std::to_string(number); }

std::optional<std::uint64_t> Door::number_of(const std::string& name) const {
    if (name.compare(0, prefix_.size(), prefix_) != 0) return std::nullopt;
    std::uint64_t number = 0;
    const char* end = name.data() + name.size();
    if (std::from_chars(name.data() + prefix_.size(), end, number).ptr != end) return std::nullopt;
    return visitors_.contains(number) ? std::optional(number) : std::nullopt;
}

void Door::run() {
    pthread_setname_np(pthread_self(), "luwu-door");
    while (turn()) {
    }
}

bool Door::turn() {
    std::array<epoll_event, 64> events{};
    const int count =
        epoll_wait(events_.get(), events.data(), static_cast<int>(events.size()), static_cast<int>(waits_.count()));
    const std::lock_guard lock(mutex_);
    const auto now = Clock::now();
    for (int i = 0; i < count; ++i) {
        const std::uint64_t what = events[static_cast<std::size_t>(i)].data.u64;
        if (what == kWake) {
            eventfd_t rung = 0;
            eventfd_read(wake_.get(), &rung);
        }
        if (what == kWake || what == kLobby) continue;
        const std::uint64_t number = (what - kFirstVisitor) / 2;
        const auto found = visitors_.find(number);
        if (found == visitors_.end()) continue;
        if (serve(found->second, now)) {
            watch(number, found->second);
        } else {
            remove(number);
        }
    }
    if (lobby_ && now >= lobby_->rests_until()) {
        for (Lobby::Guest& guest : lobby_->look(now)) let_in(std::move(guest), now);
        watch_lobby(now >= lobby_->rests_until());
    }
    waits_ =
        lobby_ && !watches_lobby_ ? std::chrono::ceil<std::chrono::milliseconds>(lobby_->rests_until() - now) : kSweep;
    if (now >= swept_at_ + kSweep) sweep(now);
    const auto stops_at = stops_at_.load();
    return stops_at == Clock::time_point::max() || (!visitors_.empty() && now < stops_at);
}

void Door::let_in(Lobby::Guest guest, Clock::time_point now) {
    if (!pace_.take(guest.origin, now)) {
        ++stats_.hasty;
        return;
    }
    const std::uint64_t number = next_++;
    Visitor visitor;
    visitor.origin = guest.origin;
    visitor.peer = text_of(guest.socket);
    visitor.inside = connect_inside(settings_.inside, name_of_visitor(number));
    if (visitor.inside.get() < 0) return;
    tune(guest.socket, settings_.timing);
    visitor.outside = std::move(guest.socket);
    visitor.until = now + settings_.patience;
    const auto place = visitors_.emplace(number, std::move(visitor)).first;
    if (const auto goes = strangers_.enter(number, guest.origin)) {
        ++stats_.evicted;
        remove(*goes);
    }
    watch(number, place->second);
}

bool Door::serve(Visitor& visitor, Clock::time_point now) {
    if (visitor.leaving) {  // discards what the client still sends
        const ssize_t count = recv(visitor.outside.get(), room_.data(), room_.size(), 0);
        return count > 0 || (count < 0 && passes());
    }
    const std::uint64_t most = visitor.admitted ? kNoLimit : settings_.most_bytes;
    if (!pass(visitor.outside, visitor.inside, visitor.in, most)) return false;
    if (visitor.in.moved > most) {
        ++stats_.talkative;
        return false;
    }
    if (!pass(visitor.inside, visitor.outside, visitor.out, kNoLimit)) return false;
    if (visitor.in.ended && visitor.in.left.empty()) return false;
    if (visitor.out.ended && visitor.out.left.empty()) {
        shutdown(visitor.outside.get(), SHUT_WR);
        visitor.leaving = true;
        visitor.until = now + settings_.timing.farewell;
    }
    return true;
}

// Passes on the bytes that are there now and find room, until more than `most` have come in all. False: an end is
// broken.
bool Door::pass(const Descriptor& from, const Descriptor& to, Pipe& pipe, std::uint64_t most) {
    for (int reads = 0; reads < kReadsInATurn && pipe.moved <= most; ++reads) {
        while (!pipe.left.empty()) {
            const ssize_t sent = send(to.get(), pipe.left.data(), pipe.left.size(), MSG_NOSIGNAL);
            if (sent < 0) return passes();
            pipe.left.erase(pipe.left.begin(), pipe.left.begin() + sent);
        }
        if (pipe.ended) return true;
        // Reads up to one byte too many, so that serve() notices a client that sends too much.
        const std::uint64_t wanted = std::min<std::uint64_t>(room_.size(), most - pipe.moved + 1);
        const ssize_t count = recv(from.get(), room_.data(), wanted, 0);
        if (count < 0) return passes();
        if (count == 0) {
            pipe.ended = true;
            return true;
        }
        pipe.moved += static_cast<std::uint64_t>(count);
        pipe.left.assign(room_.begin(), room_.begin() + count);
    }
    return true;
}

void Door::watch(std::uint64_t number, Visitor& visitor) {
    const auto wants = [&visitor](const Pipe& reads, const Pipe& writes) -> std::uint32_t {
        if (visitor.leaving) return EPOLLIN;
        return (reads.left.empty() && !reads.ended ? EPOLLIN : 0U) | (writes.left.empty() ? 0U : EPOLLOUT);
    };
    const auto set = [this, number](const Descriptor& socket, bool inside, std::uint32_t& watched,
                                    std::uint32_t wanted) {
        if (wanted == watched) return;
        epoll_event event{};
        event.events = wanted;
        event.data.u64 = tag(number, inside);
        const int operation = watched == 0 ? EPOLL_CTL_ADD : wanted == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
        epoll_ctl(events_.get(), operation, socket.get(), &event);
        watched = wanted;
    };
    set(visitor.outside, false, visitor.watched_outside, wants(visitor.in, visitor.out));
    set(visitor.inside, true, visitor.watched_inside, visitor.leaving ? 0U : wants(visitor.out, visitor.in));
}

void Door::watch_lobby(bool watches) {
    if (watches == watches_lobby_) return;
    epoll_event event{};
    event.events = watches ? EPOLLIN : 0U;
    event.data.u64 = kLobby;
    epoll_ctl(events_.get(), EPOLL_CTL_MOD, lobby_->descriptor(), &event);
    watches_lobby_ = watches;
}

void Door::remove(std::uint64_t number) {
    strangers_.leave(number);
    visitors_.erase(number);
}

void Door::sweep(Clock::time_point now) {
    swept_at_ = now;
    pace_.forget_full(now);
    for (auto entry = visitors_.begin(); entry != visitors_.end();) {
        const auto& [number, visitor] = *entry;
        const bool over = visitor.until <= now && (visitor.leaving || !visitor.admitted);
        if (over && !visitor.leaving) ++stats_.late;
        if (over) strangers_.leave(number);
        entry = over ? visitors_.erase(entry) : std::next(entry);
    }
}

}  // namespace luwu::fabric
