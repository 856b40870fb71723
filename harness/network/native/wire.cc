// luwu_wire: a cable between two network interfaces that can lose, repeat, reorder, delay and damage what it carries.
//
//   luwu_wire SETTINGS | luwu_wire @FILE       (settings.h describes them)
//
// Forwards every frame both ways; only whole UDP datagrams and TCP segments are ever harmed, so ARP and neighbour
// discovery always work. Prints {"ready": true} once frames are carried, and counts for both directions at SIGTERM or
// SIGINT. With "control": true it also reads commands, one a line, answers each with a line, and ends with its input:
//
//   {"counts": true}                           the counts so far
//   {"a_to_b": HARM, "b_to_a": HARM}           what harms from now on; the counts of the rules begin anew
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "direction.h"
#include "interface.h"
#include "settings.h"

namespace luwu::wire {
namespace {

class Wire {
  public:
    explicit Wire(Settings settings)
        : a_(settings.a, settings.mtu + kEthernetHeaderBytes, settings.ring_bytes),
          b_(settings.b, settings.mtu + kEthernetHeaderBytes, settings.ring_bytes),
          a_to_b_(a_, b_, {settings.mtu, settings.check_checksums}, std::move(settings.a_to_b)),
          b_to_a_(b_, a_, {settings.mtu, settings.check_checksums}, std::move(settings.b_to_a)) {
        a_to_b_.start();
        b_to_a_.start();
    }

    std::string counts() {
        return R"({"a_to_b": )" + a_to_b_.counts_as_json() + R"(, "b_to_a": )" + b_to_a_.counts_as_json() + "}";
    }

    std::string obey(const std::string& line) {
        try {
            const Json command = Json::parse(line);
            if (command["counts"].boolean(false)) return counts();
            for (const auto& [name, harm] : command.object()) {
                if (name != "a_to_b" && name != "b_to_a") throw std::runtime_error("unknown command " + name);
                (name == "a_to_b" ? a_to_b_ : b_to_a_).set_harm(read_harm(harm));
            }
            return R"({"ok": true})";
        } catch (const std::exception& error) {
            return R"({"error": ")" + std::string(error.what()) + R"("})";
        }
    }

    void stop() {
        a_to_b_.stop();
        b_to_a_.stop();
    }

  private:
    Interface a_;
    Interface b_;
    Direction a_to_b_;
    Direction b_to_a_;
};

std::string text_of(const std::string& argument) {
    if (argument.empty() || argument.front() != '@') return argument;
    std::ifstream file(argument.substr(1));
    if (!file) throw std::runtime_error("cannot read " + argument.substr(1));
    return {std::istreambuf_iterator<char>(file), {}};
}

// Answers commands until the input ends.
bool read_commands(Wire& wire, std::string& unfinished) {
    std::array<char, 65536> buffer{};
    const ssize_t size = read(STDIN_FILENO, buffer.data(), buffer.size());
    if (size <= 0) return false;
    unfinished.append(buffer.data(), static_cast<std::size_t>(size));
    for (std::size_t end = unfinished.find('\n'); end != std::string::npos; end = unfinished.find('\n')) {
        std::cout << wire.obey(unfinished.substr(0, end)) << std::endl;
        unfinished.erase(0, end + 1);
    }
    return true;
}

int run(const std::string& argument) {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigprocmask(SIG_BLOCK, &signals, nullptr);  // before threads start, which inherit it
    const int signalled = signalfd(-1, &signals, SFD_CLOEXEC);

    Settings settings = read_settings(Json::parse(text_of(argument)));
    const int input = settings.control ? STDIN_FILENO : -1;
    Wire wire(std::move(settings));
    std::cout << R"({"ready": true})" << std::endl;
    std::string unfinished;
    for (;;) {
        std::array<pollfd, 2> events{{{signalled, POLLIN, 0}, {input, POLLIN, 0}}};
        if (poll(events.data(), events.size(), -1) < 0) continue;
        if (events[0].revents != 0) break;
        if (events[1].revents != 0 && !read_commands(wire, unfinished)) break;
    }
    wire.stop();
    std::cout << wire.counts() << std::endl;
    return 0;
}

}  // namespace
}  // namespace luwu::wire

int main(int count, char** arguments) {
    if (count != 2) {
        std::cerr << "usage: luwu_wire SETTINGS | luwu_wire @FILE\n";
        return 2;
    }
    try {
        return luwu::wire::run(arguments[1]);
    } catch (const std::exception& error) {
        std::cerr << "luwu_wire: " << error.what() << '\n';
        return 1;
    }
}
