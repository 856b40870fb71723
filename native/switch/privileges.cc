#include "switch/privileges.h"

#include <grp.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>

#include "store/error.h"

namespace luwu::switching {

namespace {

// Numbers from <linux/capability.h>; older headers lack CAP_PERFMON and CAP_BPF, which came with Linux 5.8.
constexpr unsigned kNetAdmin = 12;
constexpr unsigned kPerfmon = 38;
constexpr unsigned kBpf = 39;
constexpr std::uint64_t kOfXdp =
    (std::uint64_t{1} << kNetAdmin) | (std::uint64_t{1} << kPerfmon) | (std::uint64_t{1} << kBpf);
constexpr unsigned kSetGid = 6;
constexpr unsigned kSetUid = 7;
constexpr unsigned kMostCapabilities = 64;

Error refused(const std::string& what) {
    return {ErrorKind::permission,
            "cannot " + what + ": " + std::strerror(errno) + "; start the switch as root, or leave --xdp out"};
}

// The calling thread's capabilities.
Capabilities capabilities() {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    std::array<__user_cap_data_struct, 2> halves{};
    if (syscall(SYS_capget, &header, halves.data()) != 0) throw refused("read this process's capabilities");
    const auto whole = [](std::uint32_t low, std::uint32_t high) { return std::uint64_t{high} << 32U | low; };
    return {whole(halves[0].effective, halves[1].effective), whole(halves[0].permitted, halves[1].permitted),
            whole(halves[0].inheritable, halves[1].inheritable)};
}

bool set_capabilities(const Capabilities& wanted) {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    std::array<__user_cap_data_struct, 2> halves{};
    for (unsigned half = 0; half < 2; ++half) {
        halves[half].effective = static_cast<std::uint32_t>(wanted.effective >> (32 * half));
        halves[half].permitted = static_cast<std::uint32_t>(wanted.permitted >> (32 * half));
        halves[half].inheritable = static_cast<std::uint32_t>(wanted.inheritable >> (32 * half));
    }
    return syscall(SYS_capset, &header, halves.data()) == 0;
}

bool has(std::uint64_t set, unsigned capability) { return (set >> capability & 1U) != 0; }

void become(const UserAndGroup& user) {
    if (prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) != 0) throw refused("keep capabilities as another user");
    if (setgroups(0, nullptr) != 0 || setresgid(user.group, user.group, user.group) != 0 ||
        setresuid(user.user, user.user, user.user) != 0) {
        throw refused("become user " + std::to_string(user.user));
    }
    prctl(PR_SET_KEEPCAPS, 0, 0, 0, 0);
}

}  // namespace

void keep_xdp_capabilities_alone(const std::optional<UserAndGroup>& user) {
    const std::filesystem::directory_iterator threads("/proc/self/task");
    if (std::distance(begin(threads), end(threads)) != 1) {
        throw Error(ErrorKind::order, "rights can be given up only before this process has other threads");
    }
    const Capabilities before = capabilities();
    for (unsigned capability = 0; capability < kMostCapabilities; ++capability) {
        prctl(PR_CAPBSET_DROP, capability, 0, 0, 0);  // may be refused; the following calls prevent its return, too
    }
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    if (user && has(before.effective, kSetUid) && has(before.effective, kSetGid)) become(*user);
    if (!set_capabilities({.effective = 0, .permitted = before.permitted & kOfXdp, .inheritable = 0})) {
        throw refused("give capabilities up");
    }
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) throw refused("give up new rights of programs");
}

RaisedCapabilities::RaisedCapabilities() : before_(capabilities()) {
    Capabilities raised = before_;
    raised.effective |= raised.permitted & kOfXdp;
    set_capabilities(raised);  // not refused, because all of these are permitted
}

RaisedCapabilities::~RaisedCapabilities() { set_capabilities(before_); }

}  // namespace luwu::switching
