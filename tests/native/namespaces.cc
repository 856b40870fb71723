#include "namespaces.h"

#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <thread>

namespace luwu::test {

namespace {

fabric::Descriptor own_namespace() {
    return fabric::Descriptor(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
}

std::string try_namespaces() {
    if (geteuid() != 0) return "network namespaces need root";
    if (std::system("ip -V >/dev/null 2>&1") != 0) return "network namespaces need `ip` (apt-get install iproute2)";
    bool made = false;
    std::thread([&made] { made = unshare(CLONE_NEWNET) == 0; }).join();
    return made ? "" : "network namespaces are refused here";
}

// A veth takes redirected frames when its other end has GRO.
void turn_on_gro(const std::string& name) {
    const fabric::Descriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ethtool_value value{ETHTOOL_SGRO, 1};
    ifreq request{};
    name.copy(request.ifr_name, IFNAMSIZ - 1);
    request.ifr_data = reinterpret_cast<char*>(&value);
    if (ioctl(socket.get(), SIOCETHTOOL, &request) != 0) throw std::runtime_error("cannot turn on GRO of " + name);
}

}  // namespace

const std::string& namespaces_missing() {
    static const std::string why = try_namespaces();
    return why;
}

Namespace::Namespace() {
    std::thread([this] {
        if (unshare(CLONE_NEWNET) == 0) file_ = own_namespace();
    }).join();
    if (file_.get() < 0) throw std::runtime_error("cannot make a network namespace");
    ip({"link set dev lo up"});
}

Namespace::Inside::Inside(const Namespace& inner) : outside_(own_namespace()) {
    if (setns(inner.descriptor(), CLONE_NEWNET) != 0) throw std::runtime_error("cannot enter a network namespace");
}
Namespace::Inside::~Inside() { setns(outside_.get(), CLONE_NEWNET); }

void Namespace::ip(const std::vector<std::string>& commands) const {
    const Inside inside(*this);
    std::FILE* pipe = popen("ip -batch -", "w");
    for (const std::string& command : commands) std::fprintf(pipe, "%s\n", command.c_str());
    if (pclose(pipe) != 0) throw std::runtime_error("ip refused: " + commands.front());
}

void join(const Namespace& left, const std::string& left_name, const Namespace& right, const std::string& right_name) {
    const std::string file = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(right.descriptor());
    left.ip({"link add name " + left_name + " type veth peer name " + right_name + " netns " + file,
             "link set dev " + left_name + " up"});
    right.ip({"link set dev " + right_name + " up"});
    for (const auto& [side, name] : {std::pair(&left, left_name), std::pair(&right, right_name)}) {
        const Namespace::Inside inside(*side);
        turn_on_gro(name);
    }
}

}  // namespace luwu::test
