#include "bindings/network_parts.h"

#include <cmath>
#include <cstring>
#include <utility>

namespace nb = nanobind;

namespace luwu::bindings {

namespace {
constexpr std::chrono::milliseconds kSignalCheck{100};  // how soon Ctrl-C is seen while a worker connects
}  // namespace

fabric::Token make_token(const nb::bytes& bytes) {
    fabric::Token token{};
    if (bytes.size() != token.size()) {
        throw Error(ErrorKind::invalid, "a worker's token has " + std::to_string(token.size()) + " bytes; found " +
                                            std::to_string(bytes.size()));
    }
    std::memcpy(token.data(), bytes.data(), token.size());
    return token;
}

std::optional<fabric::TlsSettings> make_tls(const std::optional<TlsFiles>& files) {
    if (!files) return std::nullopt;
    const auto& [certificate, key, authority] = *files;
    return fabric::TlsSettings{certificate, key, authority, ""};
}

fabric::TcpWorkerSettings make_tcp_worker_settings(const WorkerParts& parts) {
    const store::StoreShape shape = make_shape(parts.blocks);
    fabric::TcpWorkerSettings settings{shape, {}, {}, fabric::Placement(shape, parts.cuts)};
    if (parts.shared_window) settings.window_mode = fabric::MapMode::shared;
    for (const BlockSpec& block : parts.blocks) settings.held.push_back(block.held);
    if (settings.placement.servers() != parts.servers.size()) {
        throw Error(ErrorKind::invalid, "cuts: expected " + std::to_string(parts.servers.size()) + " servers, found " +
                                            std::to_string(settings.placement.servers()));
    }
    fabric::Timing timing = parts.timing;
    timing.reconnect = milliseconds("reconnect_seconds", parts.reconnect_seconds);
    for (const ServerLink& server : parts.servers) {
        settings.links.push_back({server.address, server.port, server.job, parts.rank, parts.workers, server.token,
                                  make_tls(parts.tls), timing});
        settings.initialised.push_back(server.initialised);
    }
    return settings;
}

void wait_connected(fabric::TcpWorker& worker) {
    while (true) {
        {
            const nb::gil_scoped_release release;
            if (worker.wait_connected(kSignalCheck)) return;
        }
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
}

nb::dict link_stats_of(const fabric::TcpWorker& worker) {
    const fabric::TcpLinkStats stats = worker.stats();
    nb::dict result;
    result["bytes_received"] = stats.bytes_received;
    result["bytes_sent"] = stats.bytes_sent;
    result["reconnects"] = stats.reconnects;
    const auto seconds = [](const std::vector<std::chrono::milliseconds>& times) {
        nb::list all;
        for (const auto time : times) all.append(std::chrono::duration<double>(time).count());
        return all;
    };
    result["broken_seconds"] = seconds(worker.broken_for());
    result["silent_seconds"] = seconds(worker.silent_for());
    return result;
}

nb::dict tcp_stats_of(const fabric::TcpServer& server) {
    nb::dict stats = stats_of(server.core());
    nb::dict drops;
    for (std::size_t reason = 0; reason < fabric::kDrops; ++reason) {
        const auto drop = static_cast<fabric::Drop>(reason);
        drops[fabric::name_of(drop)] = server.dropped(drop);
    }
    stats["drops"] = drops;
    return stats;
}

}  // namespace luwu::bindings
