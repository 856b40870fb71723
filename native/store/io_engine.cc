#include "store/io_engine.h"

#include <cerrno>

namespace luwu::store {

std::uint64_t IoRequest::remaining_bytes() const {
    std::uint64_t total = 0;
    for (std::uint32_t i = 0; i < part_count; ++i) total += parts[i].iov_len;
    return total;
}

void IoRequest::advance(std::uint64_t bytes) {
    offset += bytes;
    for (std::uint32_t i = 0; i < part_count; ++i) {
        const std::uint64_t taken = bytes < parts[i].iov_len ? bytes : parts[i].iov_len;
        parts[i].iov_base = static_cast<char*>(parts[i].iov_base) + taken;
        parts[i].iov_len -= taken;
        bytes -= taken;
    }
}

std::unique_ptr<IoEngine> make_io_engine(std::uint32_t depth) {
    if (auto engine = make_uring_io_engine(depth)) return engine;
    return make_thread_io_engine(depth);
}

void transfer_now(IoRequest& request) {
    while (request.remaining_bytes() > 0) {
        const auto offset = static_cast<off_t>(request.offset);
        const int parts = static_cast<int>(request.part_count);
        const ssize_t moved = request.operation == IoRequest::Operation::read
                                  ? preadv(request.file, request.parts.data(), parts, offset)
                                  : pwritev(request.file, request.parts.data(), parts, offset);
        if (moved > 0) {
            request.advance(static_cast<std::uint64_t>(moved));
        } else if (moved == 0) {
            request.error = EIO;  // the end of the file came early
        } else if (errno != EINTR) {
            request.error = errno;
        }
        if (request.error != 0) return;
    }
}

namespace {

void transfer(const File& file, IoRequest::Operation operation, void* data, std::uint64_t bytes, std::uint64_t offset) {
    IoRequest request;
    request.operation = operation;
    request.file = file.descriptor();
    request.offset = offset;
    request.add_part(data, bytes);
    transfer_now(request);
    if (request.error != 0) {
        const bool reading = operation == IoRequest::Operation::read;
        throw system_error(reading ? "read" : "write", file.path() + " at offset " + std::to_string(offset),
                           request.error, bytes);
    }
}

}  // namespace

void read_now(const File& file, void* data, std::uint64_t bytes, std::uint64_t offset) {
    transfer(file, IoRequest::Operation::read, data, bytes, offset);
}

void write_now(const File& file, void* data, std::uint64_t bytes, std::uint64_t offset) {
    transfer(file, IoRequest::Operation::write, data, bytes, offset);
}

}  // namespace luwu::store
