#include "fabric/tcp/tcp_server.h"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "fabric/core/refusals.h"

namespace luwu::fabric {

namespace {

// A peer that speaks our language is told why it is refused; others are not.
bool is_told(Drop reason) { return reason != Drop::stranger && reason != Drop::malformed && reason != Drop::checksum; }

Frame refusal_for(Drop reason) { return {FrameKind::refused, static_cast<std::uint32_t>(reason), 0, 0}; }

// Throws Dropped for a hello that is not this member's. With the member's mutex held.
void check_token(const Hello& hello, const TcpMember& member) {
    const bool another = member.incarnation != 0 && member.incarnation != hello.incarnation;
    if (!member.token || !equal(*member.token, hello.token) || hello.incarnation == 0 || another) {
        throw Dropped(Drop::token);
    }
}

}  // namespace

TcpServer::TcpServer(ServerSettings server, const TcpSettings& settings)
    : settings_(settings),
      // TLS speaks before the hello.
      lobby_(listen_at(settings.address, settings.port), settings.most_silent, settings.tls ? 1 : kHelloBytes,
             settings.timing.hello, settings.timing.backoff),
      port_(bound_port(lobby_.listener())),
      crowd_(settings.most_greeting) {
    if (settings_.tls) tls_.emplace(*settings_.tls, TlsContext::Side::server);
    core_ = std::make_unique<ParameterServer>(std::move(server), [this](const Error& error) { failed(error); });
    for (std::uint32_t rank = 0; rank < settings_.readers.value_or(core_->settings().workers); ++rank) {
        members_.push_back(std::make_unique<TcpMember>(*core_, rank));
    }
    acceptor_ = std::thread([this] { accept_connections(); });
}

TcpServer::~TcpServer() {
    core_->fail(pipeline::server_closed());
    closing_ = true;
    bell_.ring();
    acceptor_.join();
    for (Served& served : served_) {
        if (served.admitted) {
            served.connection->channel.limit(Clock::now() + settings_.timing.farewell);
            served.connection->bell.ring();
        } else {
            served.connection->channel.abort();  // a stranger hears no farewell
        }
    }
    for (Served& served : served_) served.thread.join();
    core_.reset();
}

void TcpServer::allow_worker(std::uint32_t rank, const Token& token) {
    check_worker(rank, members_.size());
    part_from(*members_[rank], token);
    // Before anybody has the token, so no push of the new worker comes meanwhile.
    if (!settings_.readers) core_->joined(rank);
}

std::optional<std::uint64_t> TcpServer::lose_worker(std::uint32_t rank) {
    check_worker(rank, members_.size());
    part_from(*members_[rank], {});
    return core_->lose(rank);
}

// Returns when the worker that was there has no connection; the pipeline's lock must not be held, because its replies
// take the member's with it held.
void TcpServer::part_from(TcpMember& member, const std::optional<Token>& token) {
    std::unique_lock lock(member.mutex);
    member.token = token;
    member.incarnation = 0;
    member.abort_connections();
    member.left.wait(lock, [&member] { return member.active[0] == nullptr && member.active[1] == nullptr; });
    member.asked = member.taken = 0;
}

// With the pipeline's lock held.
void TcpServer::failed(const Error&) {
    failed_ = true;
    const std::lock_guard lock(served_mutex_);
    for (const Served& served : served_) served.connection->bell.ring();
}

void TcpServer::accept_connections() {
    pthread_setname_np(pthread_self(), "luwu-accept");
    while (!closing_) {
        join_ended();
        abandoned_.release(*core_);
        try {
            look_into_lobby();
            std::this_thread::sleep_until(lobby_.rests_until());
            wait_for(lobby_.descriptor(), POLLIN, bell_, lobby_.deadline());
        } catch (const TimedOut&) {
        }
    }
}

void TcpServer::look_into_lobby() {
    for (Lobby::Guest& guest : lobby_.look(Clock::now())) accept_one(std::move(guest));
    const Lobby::Stats before = std::exchange(seen_, lobby_.stats());
    drops_[static_cast<std::size_t>(Drop::crowded)] += seen_.crowded - before.crowded;
    drops_[static_cast<std::size_t>(Drop::timeout)] += seen_.silent - before.silent;
    drops_[static_cast<std::size_t>(Drop::closed)] += seen_.closed - before.closed;
}

// Reads the hello of a connection without TLS, where it is whole. True: it was refused, told the reason, and closed.
// This costs a stranger's hello no thread.
bool TcpServer::refused_at_once(const Descriptor& socket) {
    std::array<std::byte, kHelloBytes> bytes{};
    const auto whole = static_cast<ssize_t>(bytes.size());
    if (tls_ || recv(socket.get(), bytes.data(), bytes.size(), MSG_PEEK) != whole) return false;
    try {
        const Hello hello = checked(bytes);
        TcpMember& member = *members_[hello.rank];
        const std::lock_guard lock(member.mutex);
        check_token(hello, member);
        return false;
    } catch (const Dropped& dropped) {
        count(dropped.reason());
        if (is_told(dropped.reason())) {
            // close() sends a reset where bytes are unread, and the peer would not get the reason: so read them.
            recv(socket.get(), bytes.data(), bytes.size(), 0);
            const auto refusal = encode(refusal_for(dropped.reason()));
            send(socket.get(), refusal.data(), refusal.size(), MSG_NOSIGNAL);
        }
        return true;
    }
}

void TcpServer::accept_one(Lobby::Guest guest) {
    if (refused_at_once(guest.socket)) return;
    // Threads of connections that had to go may need a moment to end; this limits how many there are meanwhile.
    if (greeting_ >= 2 * settings_.most_greeting) return count(Drop::crowded);
    tune(guest.socket, settings_.timing);
    try {
        auto connection = std::make_shared<TcpConnection>(std::move(guest.socket), tls_ ? &*tls_ : nullptr);
        const std::lock_guard lock(served_mutex_);
        Served& served = served_.emplace_back();
        served.connection = std::move(connection);
        served.number = next_number_++;
        if (const auto goes = crowd_.enter(served.number, guest.origin)) {
            const auto found = std::find_if(served_.begin(), served_.end(),
                                            [&goes](const Served& each) { return each.number == *goes; });
            found->evicted = true;
            found->connection->channel.abort();
        }
        ++greeting_;
        try {
            served.thread = std::thread([this, &served] { serve(served); });
        } catch (...) {
            --greeting_;
            crowd_.leave(served.number);
            served_.pop_back();
            throw;
        }
    } catch (const std::exception&) {  // no descriptor, memory or thread left for one more
        count(Drop::crowded);
    }
}

void TcpServer::join_ended() {
    std::list<Served> ended;
    {
        const std::lock_guard lock(served_mutex_);
        for (auto served = served_.begin(); served != served_.end();) {
            const auto next = std::next(served);
            if (served->ended) ended.splice(ended.end(), served_, served);
            served = next;
        }
    }
    for (Served& served : ended) served.thread.join();
}

void TcpServer::serve(Served& served) {
    pthread_setname_np(pthread_self(), "luwu-tcp");
    block_sigpipe();
    greet_and_serve(served);
    served.connection->channel.abort();
    served.ended = true;
    bell_.ring();
}

void TcpServer::greet_and_serve(Served& served) {
    const std::shared_ptr<TcpConnection> connection = served.connection;
    Hello hello;
    try {
        connection->channel.limit(Clock::now() + settings_.timing.hello);
        hello = greet(*connection);
        admit(hello, served);
        --greeting_;
    } catch (const Broken& broken) {
        served.evicted ? count(Drop::crowded) : refuse(*connection, broken);
        leave_crowd(served);  // not earlier: it may have to go while it is told the reason
        --greeting_;
        return;
    }
    TcpMember& member = *members_[hello.rank];
    try {
        const TcpSession::Rules rules{!settings_.readers, settings_.timing};
        TcpSession session(*core_, member, connection, failed_, rules, [this](std::uint32_t block) {
            abandoned_.add(block);
            bell_.ring();
        });
        session.serve(hello.stream);
    } catch (const Dropped& dropped) {
        count(dropped.reason());
    } catch (const Broken&) {  // the worker connects again, or is lost: the control plane knows
    }
    leave(member, hello.stream);
}

Hello TcpServer::greet(TcpConnection& connection) const {
    connection.channel.handshake();
    return checked(receive_hello(connection.channel));
}

// Throws Dropped for a hello of another job or of a rank that there is not.
Hello TcpServer::checked(std::span<const std::byte, kHelloBytes> bytes) const {
    const Hello hello = decode_hello(bytes);
    if (hello.job != settings_.job) throw Dropped(Drop::job);
    if (hello.rank >= members_.size() || hello.workers != members_.size()) throw Dropped(Drop::rank);
    return hello;
}

// Makes the connection the only one of its worker on its stream: the one before it, if any, is gone when this returns.
void TcpServer::admit(const Hello& hello, Served& served) {
    const std::shared_ptr<TcpConnection>& connection = served.connection;
    TcpMember& member = *members_[hello.rank];
    std::unique_lock lock(member.mutex);
    check_token(hello, member);
    member.incarnation = hello.incarnation;
    leave_crowd(served);
    auto& active = member.active[static_cast<std::size_t>(hello.stream)];
    if (active != nullptr) active->channel.abort();
    if (!member.left.wait_for(lock, settings_.timing.hello, [&active] { return active == nullptr; })) {
        throw TimedOut("the connection before this one does not end");
    }
    if (member.incarnation != hello.incarnation) throw Dropped(Drop::token);  // replaced while this waited
    active = connection;
    served.admitted = true;
    connection->channel.limit(closing_ ? Clock::now() + settings_.timing.farewell : Clock::time_point::max());
}

// Removes a connection from the crowd: it is admitted, or it ends.
void TcpServer::leave_crowd(const Served& served) {
    const std::lock_guard lock(served_mutex_);
    crowd_.leave(served.number);
}

void TcpServer::leave(TcpMember& member, Stream stream) {
    {
        const std::lock_guard lock(member.mutex);
        member.active[static_cast<std::size_t>(stream)] = nullptr;
    }
    member.left.notify_all();
}

void TcpServer::refuse(TcpConnection& connection, const Broken& broken) {
    const auto* dropped = dynamic_cast<const Dropped*>(&broken);
    if (dropped == nullptr) {
        const bool timed_out = dynamic_cast<const TimedOut*>(&broken) != nullptr;
        const bool tls = dynamic_cast<const TlsRefused*>(&broken) != nullptr;
        count(tls ? Drop::tls : timed_out ? Drop::timeout : Drop::closed);
        if (tls) connection.channel.finish(Clock::now() + settings_.timing.farewell);  // OpenSSL has told it
        return;
    }
    const Drop reason = dropped->reason();
    count(reason);
    if (!is_told(reason)) return;
    try {
        FrameWriter writer;
        writer.start(refusal_for(reason), {});
        writer.write(connection.channel);
        connection.channel.finish(Clock::now() + settings_.timing.farewell);
    } catch (const Broken&) {
    }
}

}  // namespace luwu::fabric
