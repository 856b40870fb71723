#include "fabric/tcp/tcp_link.h"

#include <algorithm>
#include <random>
#include <utility>

namespace luwu::fabric {

namespace {

std::uint64_t random_incarnation() {
    std::random_device device;
    const std::uint64_t high = device();
    return (high << 32 | device()) | 1;  // 0 is none
}

std::optional<TlsContext>& open_tls(std::optional<TlsContext>& context, const TcpLinkSettings& settings) {
    if (settings.tls) context.emplace(*settings.tls, TlsContext::Side::client);
    return context;
}

}  // namespace

TcpLink::TcpLink(TcpLinkSettings settings, std::function<void(const Error&)> on_failure)
    : TcpLink(std::move(settings), std::move(on_failure), random_incarnation()) {}

TcpLink::TcpLink(TcpLinkSettings settings, std::function<void(const Error&)> on_failure, std::uint64_t incarnation)
    : settings_(std::move(settings)),
      pulls_(settings_, open_tls(tls_, settings_) ? &*tls_ : nullptr, Stream::parameters, incarnation, on_failure),
      pushes_(settings_, tls_ ? &*tls_ : nullptr, Stream::gradients, incarnation, on_failure) {}

void TcpLink::start() {
    pulls_.start();
    pushes_.start();
}

void TcpLink::post(TcpRequest request) {
    const bool pulls = request.kind == FrameKind::pull || request.kind == FrameKind::read;
    (pulls ? pulls_ : pushes_).post(std::move(request));
}

void TcpLink::ask_to_stop() {
    pulls_.ask_to_stop();
    pushes_.ask_to_stop();
}

void TcpLink::stop() {
    ask_to_stop();
    pulls_.stop();
    pushes_.stop();
}

bool TcpLink::wait_connected(Clock::time_point deadline) {
    return pulls_.wait_connected(deadline) && pushes_.wait_connected(deadline);
}

TcpLinkStats TcpLink::stats() const {
    const TcpLinkStats pulls = pulls_.stats();
    TcpLinkStats all = pushes_.stats();
    all.bytes_received += pulls.bytes_received;
    all.reconnects += pulls.reconnects;
    return all;
}

std::chrono::milliseconds TcpLink::broken_for() const { return std::max(pulls_.broken_for(), pushes_.broken_for()); }

std::chrono::milliseconds TcpLink::silent_for() const { return std::max(pulls_.silent_for(), pushes_.silent_for()); }

}  // namespace luwu::fabric
