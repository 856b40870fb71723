#include <doctest/doctest.h>
#include <sys/socket.h>

#include <array>
#include <cstdlib>
#include <filesystem>

#include "network.h"

using namespace luwu;
using fabric::Drop;
using luwu::test::Scratch;
using luwu::test::Trainee;

namespace {

constexpr auto kLow = kernels::Dtype::bfloat16;

// Certificates of two authorities, made with the openssl command.
class Certificates {
  public:
    Certificates() : folder_(scratch_.folder("certificates")) {
        for (const std::string authority : {"ours", "theirs"}) {
            made_ = made_ && make("-keyout " + path(authority + ".key") + " -out " + path(authority + ".pem") +
                                  " -subj /CN=" + authority);
        }
        made_ = made_ && sign("server", "ours", "IP:127.0.0.1,DNS:parameters.example") &&
                sign("worker", "ours", "DNS:w") && sign("elsewhere", "ours", "DNS:elsewhere.example") &&
                sign("stranger", "theirs", "IP:127.0.0.1");
    }
    [[nodiscard]] bool made() const { return made_; }
    [[nodiscard]] fabric::TlsSettings of(const std::string& name, const std::string& authority = "ours",
                                         const std::string& server_name = "") const {
        return {path(name + ".pem"), path(name + ".key"), path(authority + ".pem"), server_name};
    }

  private:
    [[nodiscard]] std::string path(const std::string& name) const { return folder_ + "/" + name; }
    [[nodiscard]] static bool make(const std::string& arguments) {
        const std::string command =
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 " + arguments +
            " >/dev/null 2>&1";
        return std::system(command.c_str()) == 0;
    }
    [[nodiscard]] bool sign(const std::string& name, const std::string& authority, const std::string& names) const {
        return make("-keyout " + path(name + ".key") + " -out " + path(name + ".pem") + " -subj /CN=" + name + " -CA " +
                    path(authority + ".pem") + " -CAkey " + path(authority + ".key") +
                    " -addext basicConstraints=CA:FALSE -addext subjectAltName=" + names);
    }

    Scratch scratch_;
    std::string folder_;
    bool made_ = true;
};

// False, said aloud, where there is nothing to test with.
bool ready(const Certificates& certificates) {
    if (fabric::tls_built_in() && certificates.made()) return true;
    MESSAGE("SKIPPED: this build has no OpenSSL, or the openssl command (3.0 or newer) makes no certificates here");
    return false;
}

struct Pair {
    std::unique_ptr<fabric::TcpServer> server;
    fabric::TcpWorkerSettings worker;
};

Pair make_pair(const Scratch& scratch, const fabric::TlsSettings& server, const fabric::TlsSettings& worker,
               fabric::TcpSettings tcp = test::tcp_settings()) {
    tcp.tls = server;
    auto started = test::start_server(test::server_settings(scratch.folder(), kLow, 1), tcp);
    auto settings = test::tcp_worker_settings(*started, started->port(), 0);
    settings.links[0].tls = worker;
    return {std::move(started), std::move(settings)};
}

std::string refusal_of(fabric::TcpServer& server, const fabric::TcpWorkerSettings& settings) {
    try {
        const Trainee worker(server, settings);
    } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::server);
        return error.what();
    }
    return "no error";
}

}  // namespace

TEST_CASE("workers train over TLS, bit for bit, also when the link breaks") {
    const Certificates certificates;
    if (!ready(certificates)) return;
    const Scratch scratch;
    {
        auto pair = make_pair(scratch, certificates.of("server"), certificates.of("worker"));
        test::Proxy proxy(pair.server->port());
        pair.worker.links[0].port = proxy.port();
        std::vector<std::unique_ptr<Trainee>> workers;
        workers.push_back(std::make_unique<Trainee>(*pair.server, pair.worker));
        workers[0]->initialise();
        test::train(workers, 1, 1);
        proxy.cut_after(25'000, 19'000);
        test::train(workers, 2, 3);
        CHECK(proxy.cuts() > 2);
    }
    CHECK(test::equal(test::stored_contents({scratch.folder()}, kLow), test::expected_contents(kLow, 1, 3)));
}

TEST_CASE("a certificate of another authority or for another name is refused on both sides") {
    const Certificates certificates;
    if (!ready(certificates)) return;
    const Scratch scratch;
    const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
    SUBCASE("a worker of another authority") {
        auto pair = make_pair(scratch, certificates.of("server"), certificates.of("stranger", "ours"));
        CHECK(has(refusal_of(*pair.server, pair.worker), "TLS: "));
        test::wait_until([&] { return pair.server->dropped(Drop::tls) > 0; });
    }
    SUBCASE("a server of another authority") {
        auto pair = make_pair(scratch, certificates.of("stranger"), certificates.of("worker"));
        CHECK(has(refusal_of(*pair.server, pair.worker), "certificate verify failed"));
    }
    SUBCASE("a server for another name") {
        auto pair = make_pair(scratch, certificates.of("elsewhere"), certificates.of("worker"));
        CHECK(has(refusal_of(*pair.server, pair.worker), "IP address mismatch"));
        pair.worker.links[0].tls->server_name = "elsewhere.example";
        CHECK(refusal_of(*pair.server, pair.worker) == "no error");
    }
    SUBCASE("a worker that expects another name") {
        auto pair = make_pair(scratch, certificates.of("server"), certificates.of("worker", "ours", "other.example"));
        CHECK(has(refusal_of(*pair.server, pair.worker), "hostname mismatch"));
        pair.worker.links[0].tls->server_name = "parameters.example";
        CHECK(refusal_of(*pair.server, pair.worker) == "no error");
    }
    SUBCASE("a worker without TLS") {
        auto pair = make_pair(scratch, certificates.of("server"), certificates.of("worker"));
        pair.worker.links[0].tls.reset();
        pair.worker.links[0].timing.reconnect = std::chrono::milliseconds(100);
        CHECK(has(refusal_of(*pair.server, pair.worker), "was not reached"));
        CHECK(pair.server->dropped(Drop::tls) > 0);
    }
}

TEST_CASE("strangers who have begun a TLS handshake displace each other, and a worker comes in") {
    const Certificates certificates;
    if (!ready(certificates)) return;
    const Scratch scratch;
    fabric::Timing timing = test::kTiming;
    timing.hello = std::chrono::hours(1);  // no stranger is closed for its silence
    auto settings = test::tcp_settings(timing);
    settings.most_greeting = 4;
    auto pair = make_pair(scratch, certificates.of("server"), certificates.of("worker"), settings);
    constexpr std::array<char, 5> begun{0x16, 3, 1, 2, 0};  // a record of 512 bytes, which do not come
    const fabric::Bell bell;
    std::vector<fabric::Descriptor> strangers;
    for (int i = 0; i < 12; ++i) {
        const auto deadline = fabric::Clock::now() + std::chrono::seconds(10);
        strangers.push_back(fabric::connect_to("127.0.0.1", pair.server->port(), bell, deadline));
        REQUIRE(send(strangers.back().get(), begun.data(), begun.size(), MSG_NOSIGNAL) == begun.size());
    }
    test::wait_until([&] { return pair.server->dropped(Drop::crowded) == 8; });
    CHECK(refusal_of(*pair.server, pair.worker) == "no error");
}

TEST_CASE("TLS that cannot work is refused before anything is opened") {
    const Certificates certificates;
    const Scratch scratch;
    auto tcp = test::tcp_settings();
    tcp.tls = fabric::TlsSettings{"/nowhere.pem", "/nowhere.key", "/nowhere.ca", ""};
    try {
        const fabric::TcpServer server(test::server_settings(scratch.folder(), kLow, 1), tcp);
        FAIL("expected an error");
    } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::invalid);
        CHECK(std::string(error.what()).find(fabric::tls_built_in() ? "/nowhere.pem" : "without OpenSSL") !=
              std::string::npos);
    }
    CHECK(std::filesystem::is_empty(scratch.folder()));
}
