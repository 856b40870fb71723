// A job over UDP through switches, of conformance.h.
#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "conformance.h"
#include "fabric/core/address.h"
#include "fabric/udp/udp_server.h"
#include "fabric/udp/udp_worker.h"
#include "switch/udp_switch.h"
#include "switch_choice.h"
#include "tree_network.h"

namespace luwu::test {

namespace {

using fabric::Address;
using fabric::Endpoint;
using std::chrono::milliseconds;

// Places of the participants of a job over UDP: all on loopback, or each on a host of its own. TCP is between threads
// of this process in any case, on the server's host.
class Whereabouts {
  public:
    explicit Whereabouts(const JobOptions& options) {
        if (!switches_of_tests().empty()) network_ = &network_of(options.workers, options.fan_in);
    }
    // While this is open, what is made is made on that host.
    [[nodiscard]] std::optional<Namespace::Inside> enter(std::size_t host) const {
        return network_ == nullptr ? std::nullopt
                                   : std::optional<Namespace::Inside>(std::in_place, network_->host(host));
    }
    [[nodiscard]] Address address(std::size_t host) const {
        return network_ == nullptr ? fabric::parse_address("127.0.0.1", 0) : TreeNetwork::address(host);
    }
    // Interfaces of a switch, where it is one in the kernel.
    [[nodiscard]] std::vector<std::string> interfaces(std::size_t host, bool above_others) const {
        if (!switch_in_kernel(above_others)) return {};
        return network_->interfaces(host);
    }

  private:
    static const TreeNetwork& network_of(std::uint32_t workers, std::uint32_t fan_in) {
        static std::map<std::pair<std::uint32_t, std::uint32_t>, TreeNetwork> made;
        return made.try_emplace({workers, fan_in}, workers, fan_in).first->second;
    }

    const TreeNetwork* network_ = nullptr;
};

class UdpJob final : public UdpTestJob {
  public:
    explicit UdpJob(const JobOptions& options)
        : UdpTestJob(options), options_(options), where_(options), seats_(options.workers) {
        wiring_.job = kJob;
        wiring_.key = kPacketKey;
        wiring_.epoch = 1;
        wiring_.workers = options.workers;
        wiring_.payload_bytes = 1408;
        wiring_.form = options.form;
        wiring_.window = {256, 16, 16, 256};
        wiring_.timing = {500'000, 20'000'000, 50'000'000, 1'000'000'000, 5'000'000};
        std::vector<fabric::UdpSocket> sockets;
        for (std::uint32_t rank = 0; rank < options.workers; ++rank) sockets.push_back(socket_of(rank));
        const auto inside = where_.enter(0);
        server_ = std::make_unique<fabric::UdpServer>(settings_of(options), tcp_settings(), where_.address(0),
                                                      fabric::UdpSettings{});
        for (std::uint32_t rank = 0; rank < options.workers; ++rank) admit(rank, std::move(sockets[rank]));
        for (auto& seat : seats_) wait_until([&] { return seat.worker->remote().wait_connected(milliseconds(100)); });
        start_tree();
    }
    ~UdpJob() override { close_server(); }  // before the switches

    fabric::ParameterServer& core() override { return server_->side().core(); }
    Endpoint& endpoint(std::uint32_t rank) override { return *seats_[rank].endpoint; }
    void begin(std::uint32_t rank, const Groups& groups) override {
        const auto begun = server_->begin(rank, groups);
        seats_[rank].worker->begin_step(0, begun.epoch, begun.given_up);
    }
    void vote(std::uint32_t rank, bool roll_back) override { server_->vote(rank, roll_back, pushes(rank)); }
    std::optional<std::int64_t> outcome(std::uint32_t rank, milliseconds at_most) override {
        const auto result = server_->wait_for_end(rank, at_most);
        if (!result) return std::nullopt;
        seats_[rank].worker->end_step();
        return result->value;
    }
    void leave(std::uint32_t rank) override { server_->leave(rank); }
    void close_server() override { server_.reset(); }

    void lose(std::uint32_t rank) override {
        server_->lose_worker(rank);
        seats_[rank].endpoint.reset();
        seats_[rank].worker.reset();
    }
    void join(std::uint32_t rank) override {
        wait_until([&] { return core().wait_for_place(rank, milliseconds(100)); });
        Seat& seat = seats_[rank];
        const Address before = seat.address;
        fabric::UdpSocket socket = socket_of(rank);
        const auto inside = where_.enter(0);
        ++wiring_.incarnation;
        forget_pushes(rank);
        admit(rank, std::move(socket));
        wait_until([&] { return seat.worker->remote().wait_connected(milliseconds(100)); });
        for (Switch& above : switches_) {
            const auto child = std::find(above.children.begin(), above.children.end(), before);
            if (child == above.children.end()) continue;
            *child = seat.address;
            start(above);
        }
        seat.worker->start(0, wiring_, seat.parent, seat.number, options_.group);
    }

    std::vector<Address> sockets() const override {
        std::vector<Address> all{server_->bound()};
        for (const Seat& seat : seats_) all.push_back(seat.address);
        for (const Switch& each : switches_) all.push_back(each.node->bound());
        return all;
    }
    std::vector<fabric::PacketDrops> drops() override {
        std::vector<fabric::PacketDrops> all{server_stats().drops};
        for (const Seat& seat : seats_) all.push_back(seat.worker->node_stats(0).value().drops);
        for (const Switch& each : switches_) all.push_back(each.node->node_stats().value().drops);
        return all;
    }
    fabric::ServerNodeStats server_stats() override { return server_->node_stats().value(); }
    std::uint64_t copies() override {
        std::uint64_t sum = 0;
        for (const Switch& each : switches_) {
            sum += each.node->node_stats()->packets_out - each.node->node_stats()->sums_sent;
        }
        return sum;
    }

  private:
    struct Seat {
        std::unique_ptr<fabric::UdpWorker> worker;
        std::unique_ptr<Endpoint> endpoint;
        Address address;
        Address parent;
        std::uint16_t number = 0;
    };
    struct Switch {
        std::unique_ptr<switching::UdpSwitch> node;
        std::size_t host;
        std::vector<Address> children;
        Address parent;
        std::uint16_t number = 0;
    };
    // A participant that is still without a parent.
    struct Child {
        Address address;
        std::function<void(const Address& parent, std::uint16_t number)> start;
    };

    [[nodiscard]] fabric::UdpSocket socket_of(std::uint32_t rank) const {
        const auto inside = where_.enter(1 + rank);
        return fabric::UdpSocket(where_.address(1 + rank));
    }
    void admit(std::uint32_t rank, fabric::UdpSocket socket) {
        const fabric::Token token = token_of(rank, wiring_.incarnation);  // a lost worker may still try to come back
        server_->allow_worker(rank, token);
        auto settings = tcp_worker_settings(server_->side(), server_->side().port(), rank);
        settings.links[0].token = token;
        settings.links[0].workers = options_.workers;
        Seat& seat = seats_[rank];
        seat.address = socket.bound();
        std::vector<fabric::UdpSocket> own;
        own.push_back(std::move(socket));
        seat.worker = std::make_unique<fabric::UdpWorker>(settings, std::move(own));
        seat.endpoint = seat.worker->remote().endpoint();
    }
    void start(Switch& each) {
        const auto inside = where_.enter(each.host);
        each.node->start(wiring_, each.parent, each.number, each.children);
    }
    void start_tree() {
        std::vector<Child> level;
        for (Seat& seat : seats_) {
            level.push_back({seat.address, [this, &seat](const Address& parent, std::uint16_t number) {
                                 seat.parent = parent;
                                 seat.number = number;
                                 seat.worker->start(0, wiring_, parent, number, options_.group);
                             }});
        }
        while (options_.fan_in > 0 && (level.size() > 1 || switches_.empty())) {
            std::vector<Child> above;
            for (std::size_t first = 0; first < level.size(); first += options_.fan_in) {
                above.push_back(add_switch(
                    std::span(level).subspan(first, std::min<std::size_t>(options_.fan_in, level.size() - first))));
            }
            level = std::move(above);
        }
        level[0].start(server_->bound(), 0);
        server_->start(wiring_, level[0].address, options_.group);
    }
    Child add_switch(std::span<const Child> below) {
        const std::size_t host = 1 + seats_.size() + switches_.size();
        const bool above_others = std::any_of(switches_.begin(), switches_.end(), [&](const Switch& other) {
            return other.node->bound() == below[0].address;
        });
        const auto inside = where_.enter(host);
        Switch& made = switches_.emplace_back();
        made.host = host;
        made.node = std::make_unique<switching::UdpSwitch>(where_.address(host), fabric::UdpSettings{},
                                                           where_.interfaces(host, above_others));
        for (const Child& child : below) {
            child.start(made.node->bound(), static_cast<std::uint16_t>(made.children.size()));
            made.children.push_back(child.address);
        }
        return {made.node->bound(), [this, &made](const Address& parent, std::uint16_t number) {
                    made.parent = parent;
                    made.number = number;
                    start(made);
                }};
    }

    JobOptions options_;
    Whereabouts where_;
    fabric::Wiring wiring_;
    std::deque<Switch> switches_;  // whose addresses in memory stay
    std::unique_ptr<fabric::UdpServer> server_;
    std::vector<Seat> seats_;
};

}  // namespace

std::unique_ptr<UdpTestJob> make_udp_job(const JobOptions& options) { return std::make_unique<UdpJob>(options); }

}  // namespace luwu::test
