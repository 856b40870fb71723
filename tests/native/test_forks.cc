// Children that are forked in C, and so without Python's handlers: what they keep of their parent.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "fabric/core/descriptor.h"
#include "fabric/tcp/socket.h"
#include "store/files.h"
#include "store/forks.h"
#include "store/lock_file.h"
#include "support.h"

using namespace luwu;
using luwu::test::kind_of;

namespace {

// A child that lives on when its parent closes files. It runs `look` first, which tells whether all is as it should be.
class Child {
  public:
    explicit Child(const std::function<bool()>& look) {
        REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_.data()) == 0);
        char byte = 0;
        pid_ = fork();
        if (pid_ == 0) {
            byte = look() ? 0 : 1;
            close(ends_[1]);
            [[maybe_unused]] const ssize_t said = write(ends_[0], &byte, 1);
            char ignored = 0;
            [[maybe_unused]] const ssize_t ended = read(ends_[0], &ignored, 1);
            _exit(byte);
        }
        REQUIRE(read(ends_[1], &byte, 1) == 1);
    }
    ~Child() { end(); }
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;

    int end() {
        if (pid_ <= 0) return status_;
        for (const int descriptor : ends_) close(descriptor);
        waitpid(std::exchange(pid_, -1), &status_, 0);
        return status_;
    }

  private:
    std::array<int, 2> ends_{};
    pid_t pid_ = -1;
    int status_ = -1;
};

bool is_nothing(int descriptor) {
    struct stat found{};
    struct stat nothing{};
    return fstat(descriptor, &found) == 0 && stat("/dev/null", &nothing) == 0 && found.st_rdev == nothing.st_rdev;
}

}  // namespace

TEST_CASE("a child keeps no lock of its parent's, and the numbers of descriptors stay taken") {
    const test::Scratch scratch;
    const std::string path = scratch.folder() + "/lock";
    std::optional<store::File> held = store::lock_store(path);
    const int number = held->descriptor();
    Child child([number] { return is_nothing(number); });
    held.reset();
    CHECK_NOTHROW(static_cast<void>(store::lock_store(path)));
    CHECK(child.end() == 0);
}

TEST_CASE("a child keeps no connection of its parent's open") {
    const fabric::Descriptor listener = fabric::listen_at("127.0.0.1", 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(fabric::bound_port(listener));
    const int raw = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    std::optional<fabric::Descriptor> ours;
    SUBCASE("whose descriptor it knows") { ours.emplace(raw); }
    SUBCASE("whose other end it knows") { store::keep_connections_from_children(reinterpret_cast<sockaddr&>(address)); }
    REQUIRE(connect(raw, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    pollfd waiting{listener.get(), POLLIN, 0};
    REQUIRE(poll(&waiting, 1, -1) == 1);
    const fabric::Descriptor accepted(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    Child child([raw] { return is_nothing(raw); });
    ours ? ours.reset() : static_cast<void>(close(raw));
    char byte = 0;
    CHECK(read(accepted.get(), &byte, 1) == 0);  // the end of the connection, which never comes if the child has a copy
    CHECK(child.end() == 0);
}

TEST_CASE("a child keeps what is not ours, though it has the number of something that was") {
    const test::Scratch scratch;
    const int first = open((scratch.folder() + "/ours").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    store::keep_from_children(first);
    close(first);  // closed without forget_descriptor()
    const int second = open((scratch.folder() + "/another's").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    REQUIRE(first == second);
    Child child([second] { return !is_nothing(second); });
    CHECK(child.end() == 0);
    close(second);
}

TEST_CASE("what was made before a fork is refused in the child alone") {
    const store::MadeHere made;
    const auto refused = [&made] {
        return kind_of([&made] { made.require("this session"); }, std::to_string(getpid())) == ErrorKind::forked;
    };
    Child child([&refused] { return refused() && (store::MadeHere().require("this one"), true); });
    CHECK(child.end() == 0);
    CHECK_NOTHROW(made.require("this session"));
}
