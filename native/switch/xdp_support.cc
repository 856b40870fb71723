#include "switch/xdp_support.h"

#if LUWU_HAVE_XDP

#include <bpf/libbpf.h>
#include <sys/mman.h>

#include <array>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace luwu::switching {

namespace {

constexpr std::size_t kMostText = 2000;

std::string& said() {
    static std::string text;
    return text;
}

int collect(libbpf_print_level level, const char* format, std::va_list arguments) {
    if (level != LIBBPF_WARN) return 0;
    std::array<char, 4096> line{};
    const int length = std::vsnprintf(line.data(), line.size(), format, arguments);
    said() += line.data();
    return length;
}

}  // namespace

std::mutex& libbpf_turn() {
    static std::mutex turn;
    return turn;
}

LibbpfMessages::LibbpfMessages() {
    said().clear();
    libbpf_set_print(&collect);
}
LibbpfMessages::~LibbpfMessages() { libbpf_set_print(nullptr); }

std::string LibbpfMessages::text() const {
    const std::string& all = said();
    return all.size() > kMostText ? all.substr(all.size() - kMostText) : all;
}

Error xdp_error(const std::string& action, int error_number, const std::string& said) {
    std::string message = "cannot " + action + ": " + std::strerror(error_number);
    if (error_number == EPERM || error_number == EACCES) {
        message +=
            "; XDP needs the capabilities CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN: run as root, or leave --xdp out";
    } else {
        message += "; this kernel may be too old (Linux 6.18 is known to do): leave --xdp out to switch in user space";
    }
    if (!said.empty()) message += "\nThe kernel says:\n" + said;
    return {error_number == EPERM || error_number == EACCES ? ErrorKind::permission : ErrorKind::io, message};
}

MappedMap::MappedMap(int descriptor, std::size_t bytes) : bytes_(bytes) {
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (mapped == MAP_FAILED) throw xdp_error("map the memory of the XDP switch", errno, "");
    data_ = static_cast<std::byte*>(mapped);
}

MappedMap::~MappedMap() {
    if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace luwu::switching

#endif
