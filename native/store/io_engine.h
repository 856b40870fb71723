// Asynchronous file I/O: one narrow interface, io_uring behind it where it is to be had, else a pool of threads.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "store/files.h"

struct io_uring;  // of <liburing.h>

namespace luwu::store {

// A read or write of up to two memory parts at one file offset. It stays alive and in place until it is completed.
struct IoRequest {
    enum class Operation : std::uint8_t { read, write };

    Operation operation = Operation::read;
    int file = -1;
    std::uint64_t offset = 0;
    std::array<iovec, 2> parts{};
    std::uint32_t part_count = 0;
    int error = 0;  // errno of the completed request, 0 for success

    void add_part(void* data, std::uint64_t bytes) { parts[part_count++] = {data, static_cast<std::size_t>(bytes)}; }
    [[nodiscard]] std::uint64_t remaining_bytes() const;
    void advance(std::uint64_t bytes);  // after a short transfer: what is left
};

// Used by one thread, except wake(), which any thread may call.
class IoEngine {
  public:
    virtual ~IoEngine() = default;
    // Starts a request. At most depth() requests may be in flight.
    virtual void submit(IoRequest& request) = 0;
    // Blocks until at least one request completed or wake() was called; appends what completed.
    virtual void wait(std::vector<IoRequest*>& completed) = 0;
    virtual void wake() = 0;
    [[nodiscard]] virtual std::uint32_t depth() const = 0;
    [[nodiscard]] virtual const char* name() const = 0;
};

// io_uring when built in and allowed by the kernel, otherwise threads. Never fails for want of io_uring.
[[nodiscard]] std::unique_ptr<IoEngine> make_io_engine(std::uint32_t depth);
[[nodiscard]] std::unique_ptr<IoEngine> make_thread_io_engine(std::uint32_t depth);
// nullptr where liburing was absent at build time or the kernel refuses. `submit` replaces io_uring_submit() in tests
// of a kernel's answers.
using UringSubmit = int (*)(io_uring* ring);
[[nodiscard]] std::unique_ptr<IoEngine> make_uring_io_engine(std::uint32_t depth, UringSubmit submit = nullptr);

// Does one request to its end in the calling thread; request.error tells how it ended.
void transfer_now(IoRequest& request);
// A whole range, in the calling thread. They throw Error.
void read_now(const File& file, void* data, std::uint64_t bytes, std::uint64_t offset);
void write_now(const File& file, void* data, std::uint64_t bytes, std::uint64_t offset);

}  // namespace luwu::store
