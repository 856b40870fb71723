#include "store/io_engine.h"

#if LUWU_HAVE_URING

#include <liburing.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

namespace luwu::store {

namespace {

class UringIoEngine final : public IoEngine {
  public:
    UringIoEngine(io_uring ring, int event, std::uint32_t depth) : ring_(ring), event_(event), depth_(depth) {
        watch_event();
        io_uring_submit(&ring_);
    }
    ~UringIoEngine() override {
        io_uring_queue_exit(&ring_);
        close(event_);
    }
    UringIoEngine(const UringIoEngine&) = delete;
    UringIoEngine& operator=(const UringIoEngine&) = delete;

    void submit(IoRequest& request) override {
        prepare(request);
        io_uring_submit(&ring_);
    }

    void wait(std::vector<IoRequest*>& completed) override {
        io_uring_cqe* first = nullptr;
        while (io_uring_wait_cqe(&ring_, &first) == -EINTR) {
        }
        unsigned head = 0;
        unsigned seen = 0;
        bool resubmit = false;
        io_uring_cqe* entry = nullptr;
        io_uring_for_each_cqe(&ring_, head, entry) {
            ++seen;
            auto* request = static_cast<IoRequest*>(io_uring_cqe_get_data(entry));
            resubmit |= request == nullptr ? (watch_event(), true) : !settle(*request, entry->res, completed);
        }
        io_uring_cq_advance(&ring_, seen);
        if (resubmit) io_uring_submit(&ring_);
    }

    void wake() override {
        const std::uint64_t one = 1;
        while (write(event_, &one, sizeof one) < 0 && errno == EINTR) {
        }
    }

    [[nodiscard]] std::uint32_t depth() const override { return depth_; }
    [[nodiscard]] const char* name() const override { return "io_uring"; }

  private:
    // True when the request is finished; false when the rest of it (short transfer, try again) was queued anew.
    bool settle(IoRequest& request, int result, std::vector<IoRequest*>& completed) {
        if (result > 0) request.advance(static_cast<std::uint64_t>(result));
        const bool again = result == -EINTR || result == -EAGAIN || (result > 0 && request.remaining_bytes() > 0);
        if (again) {
            prepare(request);
            return false;
        }
        request.error = result < 0 ? -result : (request.remaining_bytes() > 0 ? EIO : 0);
        completed.push_back(&request);
        return true;
    }

    void prepare(IoRequest& request) {
        io_uring_sqe* entry = next_entry();
        if (request.operation == IoRequest::Operation::read) {
            io_uring_prep_readv(entry, request.file, request.parts.data(), request.part_count, request.offset);
        } else {
            io_uring_prep_writev(entry, request.file, request.parts.data(), request.part_count, request.offset);
        }
        io_uring_sqe_set_data(entry, &request);
    }

    void watch_event() {
        io_uring_sqe* entry = next_entry();
        io_uring_prep_read(entry, event_, &event_value_, sizeof event_value_, 0);
        io_uring_sqe_set_data(entry, nullptr);
    }

    io_uring_sqe* next_entry() {
        io_uring_sqe* entry = io_uring_get_sqe(&ring_);
        while (entry == nullptr) {  // the submission queue is full: hand it over and go on
            io_uring_submit(&ring_);
            entry = io_uring_get_sqe(&ring_);
        }
        return entry;
    }

    io_uring ring_;
    int event_;
    std::uint64_t event_value_ = 0;
    std::uint32_t depth_;
};

}  // namespace

std::unique_ptr<IoEngine> make_uring_io_engine(std::uint32_t depth) {
    io_uring ring{};
    if (io_uring_queue_init(depth + 1, &ring, 0) != 0) return nullptr;  // +1: the wake-up event
    const int event = eventfd(0, EFD_CLOEXEC);
    if (event < 0) {
        io_uring_queue_exit(&ring);
        return nullptr;
    }
    return std::make_unique<UringIoEngine>(ring, event, depth);
}

}  // namespace luwu::store

#else

namespace luwu::store {
std::unique_ptr<IoEngine> make_uring_io_engine(std::uint32_t /*depth*/) { return nullptr; }
}  // namespace luwu::store

#endif
