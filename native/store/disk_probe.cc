#include "store/disk_probe.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <vector>

#include "store/io_engine.h"
#include "store/layout.h"

namespace luwu::store {

namespace {

constexpr std::uint64_t kFillBytes = 4U << 20;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

double processor_seconds() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto of = [](const timeval& time) {
        return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
    };
    return of(usage.ru_utime) + of(usage.ru_stime);
}

// Not zeros, which some disks do not store.
void fill_with_noise(const AlignedBuffer& buffer) {
    std::uint64_t state = 1;
    for (std::uint64_t at = 0; at < buffer.bytes(); at += sizeof state) {
        state = state * 6364136223846793005U + 1442695040888963407U;
        std::memcpy(buffer.data() + at, &state, sizeof state);
    }
}

// Place of the next request of a kind: on through the file, and round again.
class Cursor {
  public:
    Cursor(std::uint64_t start, std::uint64_t file_bytes) : next_(start), file_bytes_(file_bytes) {}

    std::uint64_t take(std::uint64_t bytes) {
        if (next_ + bytes > file_bytes_) next_ = 0;
        const std::uint64_t taken = next_;
        next_ += bytes;
        return taken;
    }

  private:
    std::uint64_t next_;
    std::uint64_t file_bytes_;
};

// Keeps buffers going round: read, write, read again.
class Rounds {
  public:
    Rounds(const File& file, std::uint64_t file_bytes, const ProbeRequest& wanted)
        : file_(file),
          wanted_(wanted),
          reads_(0, file_bytes),
          writes_(round_up(file_bytes / 2, kPage), file_bytes),
          buffer_bytes_(std::max(wanted.read_bytes, wanted.write_bytes)),
          memory_(wanted.in_flight * buffer_bytes_, wanted.sharing),
          requests_(wanted.in_flight),
          engine_(make_io_engine(wanted.in_flight)) {
        fill_with_noise(memory_);
    }

    void run(Clock::time_point begin) {
        for (std::size_t slot = 0; slot < requests_.size(); ++slot) start(slot, wanted_.read_bytes > 0);
        std::size_t in_flight = requests_.size();
        std::vector<IoRequest*> completed;
        while (in_flight > 0) {
            completed.clear();
            engine_->wait(completed);
            for (const IoRequest* request : completed) {
                const bool was_read = request->operation == IoRequest::Operation::read;
                if (request->error != 0) throw system_error(was_read ? "read" : "write", file_.path(), request->error);
                (was_read ? result.bytes_read : result.bytes_written) +=
                    was_read ? wanted_.read_bytes : wanted_.write_bytes;
                const bool reads_next = wanted_.read_bytes > 0 && !(was_read && wanted_.write_bytes > 0);
                // A part that was read is written even when the time is over, so that both are counted in their
                // proportion.
                const bool goes_on = seconds_since(begin) < wanted_.seconds || (was_read && !reads_next);
                if (goes_on) {
                    start(static_cast<std::size_t>(request - requests_.data()), reads_next);
                } else {
                    --in_flight;
                }
            }
        }
    }

    ProbeResult result;

  private:
    void start(std::size_t slot, bool reads) {
        const std::uint64_t bytes = reads ? wanted_.read_bytes : wanted_.write_bytes;
        IoRequest request;
        request.operation = reads ? IoRequest::Operation::read : IoRequest::Operation::write;
        request.file = file_.descriptor();
        request.offset = (reads ? reads_ : writes_).take(bytes);
        request.add_part(memory_.data() + slot * buffer_bytes_, bytes);
        requests_[slot] = request;
        engine_->submit(requests_[slot]);
    }

    const File& file_;
    const ProbeRequest& wanted_;
    Cursor reads_;
    Cursor writes_;
    std::uint64_t buffer_bytes_;
    AlignedBuffer memory_;  // as a server has it: all buffers in one, which is large enough for huge pages
    std::vector<IoRequest> requests_;
    std::unique_ptr<IoEngine> engine_;  // goes first: until then the kernel may use the memory
};

}  // namespace

DiskProbe::DiskProbe(const std::string& folder, std::uint64_t file_bytes) : file_bytes_(round_up(file_bytes, kPage)) {
    const std::string path = folder + "/.luwu-disk-probe-" + std::to_string(getpid());
    unlink(path.c_str());  // of a process with this id that was killed between the next two lines
    file_ = open_file(path, true, false, &direct_);
    unlink(path.c_str());
    reserve(file_, file_bytes_);
    fill();
}

void DiskProbe::fill() const {
    const AlignedBuffer noise(kFillBytes);
    fill_with_noise(noise);
    for (std::uint64_t at = 0; at < file_bytes_; at += kFillBytes) {
        write_now(file_, noise.data(), std::min(kFillBytes, file_bytes_ - at), at);
    }
    file_.sync();
}

ProbeResult DiskProbe::run(const ProbeRequest& request) const {
    const std::uint64_t largest = std::max(request.read_bytes, request.write_bytes);
    if (largest == 0 || request.read_bytes % kPage != 0 || request.write_bytes % kPage != 0 ||
        2 * largest > file_bytes_ || request.in_flight == 0) {
        throw Error(ErrorKind::invalid,
                    "a disk is measured with requests of whole pages, of which two fit into the file of " +
                        std::to_string(file_bytes_) + " bytes; found reads of " + std::to_string(request.read_bytes) +
                        " and writes of " + std::to_string(request.write_bytes) + " bytes, " +
                        std::to_string(request.in_flight) + " at a time");
    }
    Rounds rounds(file_, file_bytes_, request);
    const double spent_before = processor_seconds();
    const auto begin = Clock::now();
    rounds.run(begin);
    rounds.result.seconds = seconds_since(begin);
    rounds.result.processor_seconds = processor_seconds() - spent_before;
    if (request.write_bytes > 0) {
        const auto written = Clock::now();
        file_.sync();
        rounds.result.sync_seconds = seconds_since(written);
    }
    return rounds.result;
}

}  // namespace luwu::store
