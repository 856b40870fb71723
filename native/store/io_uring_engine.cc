#include "store/io_engine.h"

#if LUWU_HAVE_URING

#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <deque>

#include "store/forks.h"

namespace luwu::store {

namespace {

constexpr int kRetryMilliseconds = 1;  // until requests that the kernel had no room for are submitted again

// The kernel may take fewer requests than it was given, or none for now; the others wait in `queued_`, in the ring's
// order. When it refuses for good, those that wait and all later requests fail with its error.
class UringIoEngine final : public IoEngine {
  public:
    UringIoEngine(io_uring ring, int event, std::uint32_t depth, UringSubmit submit)
        : ring_(ring), event_(event), depth_(depth), submit_(submit) {
        keep_from_children(ring_.ring_fd);
        keep_from_children(event_);
    }
    ~UringIoEngine() override {
        forget_descriptor(ring_.ring_fd);
        forget_descriptor(event_);
        io_uring_queue_exit(&ring_);
        close(event_);
    }
    UringIoEngine(const UringIoEngine&) = delete;
    UringIoEngine& operator=(const UringIoEngine&) = delete;

    void submit(IoRequest& request) override {
        prepare(request);
        hand_over();
    }

    // Wake-ups do not go through the ring, so they arrive even when the ring is broken.
    void wait(std::vector<IoRequest*>& completed) override {
        const std::size_t before = completed.size();
        while (true) {
            reap(completed);
            hand_over();
            completed.insert(completed.end(), failed_.begin(), failed_.end());
            failed_.clear();
            if (completed.size() > before) return;
            std::array<pollfd, 2> sources{{{event_, POLLIN, 0}, {ring_.ring_fd, POLLIN, 0}}};
            poll(sources.data(), sources.size(), queued_.empty() ? -1 : kRetryMilliseconds);
            std::uint64_t count = 0;
            if ((sources[0].revents & POLLIN) != 0 && read(event_, &count, sizeof count) > 0) return;
        }
    }

    void wake() override {
        const std::uint64_t one = 1;
        while (write(event_, &one, sizeof one) < 0 && errno == EINTR) {
        }
    }

    [[nodiscard]] std::uint32_t depth() const override { return depth_; }
    [[nodiscard]] const char* name() const override { return "io_uring"; }

  private:
    void reap(std::vector<IoRequest*>& completed) {
        io_uring_cqe* entry = nullptr;
        while (io_uring_peek_cqe(&ring_, &entry) == 0) {
            auto* request = static_cast<IoRequest*>(io_uring_cqe_get_data(entry));
            const int result = entry->res;
            io_uring_cqe_seen(&ring_, entry);
            settle(*request, result, completed);
        }
    }

    void settle(IoRequest& request, int result, std::vector<IoRequest*>& completed) {
        if (result > 0) request.advance(static_cast<std::uint64_t>(result));
        const bool interrupted = result == -EINTR || result == -EAGAIN || result == -ECANCELED;
        if (interrupted || (result > 0 && request.remaining_bytes() > 0)) return prepare(request);
        request.error = result < 0 ? -result : (request.remaining_bytes() > 0 ? EIO : 0);
        completed.push_back(&request);
    }

    void prepare(IoRequest& request) {
        io_uring_sqe* entry = broken_ == 0 ? io_uring_get_sqe(&ring_) : nullptr;
        if (entry == nullptr) {  // more than depth() in flight, which the caller must not do, or the ring is broken
            request.error = broken_ == 0 ? EBUSY : broken_;
            failed_.push_back(&request);
            return;
        }
        if (request.operation == IoRequest::Operation::read) {
            io_uring_prep_readv(entry, request.file, request.parts.data(), request.part_count, request.offset);
        } else {
            io_uring_prep_writev(entry, request.file, request.parts.data(), request.part_count, request.offset);
        }
        io_uring_sqe_set_data(entry, &request);
        queued_.push_back(&request);
    }

    void hand_over() {
        while (!queued_.empty()) {
            const int taken = submit_(&ring_);
            if (taken > 0) {
                queued_.erase(queued_.begin(), queued_.begin() + taken);
            } else if (taken == 0 || taken == -EAGAIN || taken == -EBUSY) {
                return;  // no room for now, in the kernel's memory or in the ring of completions: wait() tries again
            } else if (taken != -EINTR) {
                return fail(-taken);
            }
        }
    }

    void fail(int error) {
        broken_ = error;
        for (IoRequest* request : queued_) request->error = error;
        failed_.insert(failed_.end(), queued_.begin(), queued_.end());
        queued_.clear();
    }

    io_uring ring_;
    int event_;
    std::uint32_t depth_;
    UringSubmit submit_;
    int broken_ = 0;                  // errno of a submission that was refused for good
    std::deque<IoRequest*> queued_;   // requests in the ring that the kernel has not taken yet
    std::vector<IoRequest*> failed_;  // requests that the kernel will never take
};

}  // namespace

std::unique_ptr<IoEngine> make_uring_io_engine(std::uint32_t depth, UringSubmit submit) {
    io_uring ring{};
    if (io_uring_queue_init(depth, &ring, 0) != 0) return nullptr;
    const int event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (event < 0) {
        io_uring_queue_exit(&ring);
        return nullptr;
    }
    return std::make_unique<UringIoEngine>(ring, event, depth, submit == nullptr ? io_uring_submit : submit);
}

}  // namespace luwu::store

#else

namespace luwu::store {
std::unique_ptr<IoEngine> make_uring_io_engine(std::uint32_t /*depth*/, UringSubmit /*submit*/) { return nullptr; }
}  // namespace luwu::store

#endif
