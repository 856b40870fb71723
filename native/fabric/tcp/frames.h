// The wire format of the TCP fabric. All numbers are little-endian.
//
// A worker makes two connections: stream 0 for pulls, stream 1 for pushes and first values. Each begins with one hello
// (80 bytes) from the worker, which the server answers with a frame: `welcome`, whose sequence is that of the last
// request on this stream that the server has taken for good, or `refused`, whose block says why (Drop).
//
//   hello:   0 magic u64   8 version u32   12 stream u32   16 job u64   24 incarnation u64 (of the worker, random)
//           32 rank u32   36 workers u32   40 token (32 bytes)   72 zero u32   76 CRC32C of bytes 0 to 75
//   frame:   0 kind u32   4 block u32   8 sequence u64   16 payload bytes u64   24 CRC32C of bytes 0 to 23   28 zero
//   u32
//           32 payload, then, where it is not empty and TLS is off, u32 CRC32C of the payload
//
// Requests (sequence from 1, one more with each; after a break those that were not answered come again as they were):
//   pull, read            answered with `parameters`: the block's, as they lie in memory. A read belongs to no step.
//   push                  payload: the block's gradient. Answered with `taken` when it is in the server's memory.
//   initialise            payload: the block's first values, fp32. Answered with `taken` when they are on disk.
//   finish_initialise     answered with `taken` when the first values are committed.
// A server connects to its standby with the same hello, whose job, rank and workers are 0; native/standby has the rest:
//   welcome               payload: the standby's last commit record, as in its file, and u32 Standing::digest; none:
//                         it has no values.
//   record_parameters, record_states   block: the chunk's number in the layout, sequence: its update count. The states
//                         begin with the chunk's header, and follow its parameters.
//   commit                payload: the commit record, then a note. Answered with `committed`, sequence: the step.
//   in_sync, released     from now on no commit counts without the standby, or every one does. Sequence: a number of
//                         its own, which grows. Answered with `noted` and that number once the standby has noted it.
//   alive                 from both sides, so that each knows that the other is there.
// Answers come in the requests' order. Instead of one, or at any time: `failure`, block: ErrorKind, payload: a message
// for a person (UTF-8); the server closes the connection after it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "fabric/core/stream.h"
#include "fabric/tcp/channel.h"

namespace luwu::fabric {

inline constexpr std::uint64_t kTcpMagic = 0x315043545557554C;  // "LUWUTCP1"
inline constexpr std::uint32_t kTcpVersion = 1;
inline constexpr std::size_t kHelloBytes = 80;
inline constexpr std::size_t kFrameBytes = 32;
inline constexpr std::size_t kMostFailureBytes = 4096;

using Token = std::array<std::byte, 32>;
[[nodiscard]] bool equal(const Token& left, const Token& right);  // takes the same time wherever the two differ

enum class FrameKind : std::uint32_t {
    pull = 1,
    read = 2,
    push = 3,
    initialise = 4,
    finish_initialise = 5,
    parameters = 16,
    taken = 17,
    failure = 18,
    welcome = 32,
    refused = 33,
    record_parameters = 64,
    record_states = 65,
    commit = 66,
    committed = 67,
    in_sync = 68,
    released = 69,
    noted = 70,
    alive = 71,
};

// Why a connection was dropped.
enum class Drop : std::uint32_t {
    crowded,    // too many connections had not said hello
    timeout,    // no hello in time
    closed,     // ended before its hello was whole
    tls,        // no TLS handshake, or a certificate of another authority
    stranger,   // something else than a hello
    version,    // of another LuWu
    job,        // of another job
    rank,       // of a rank that there is not, or of a run of another number of workers
    token,      // of a worker that nobody announced, or that has ended
    malformed,  // a frame that makes no sense there
    oversized,  // a payload of another size than its block's
    checksum,   // damaged on the way
};
inline constexpr std::size_t kDrops = 12;
[[nodiscard]] const char* name_of(Drop reason);

// A peer does not keep to the format.
class Dropped : public Broken {
  public:
    explicit Dropped(Drop reason) : Broken(name_of(reason)), reason_(reason) {}
    [[nodiscard]] Drop reason() const { return reason_; }

  private:
    Drop reason_;
};

struct Frame {
    FrameKind kind = FrameKind::pull;
    std::uint32_t block = 0;
    std::uint64_t sequence = 0;
    std::uint64_t bytes = 0;
};

struct Hello {
    Stream stream = Stream::parameters;
    std::uint64_t job = 0;
    std::uint64_t incarnation = 0;
    std::uint32_t rank = 0;
    std::uint32_t workers = 0;
    Token token{};
};

[[nodiscard]] std::array<std::byte, kHelloBytes> encode(const Hello& hello);
[[nodiscard]] Hello decode_hello(std::span<const std::byte, kHelloBytes> bytes);   // throws Dropped
void send_hello(Channel& channel, const Hello& hello);                             // waits for room
[[nodiscard]] std::array<std::byte, kHelloBytes> receive_hello(Channel& channel);  // waits for all of it
[[nodiscard]] std::array<std::byte, kFrameBytes> encode(const Frame& frame);
[[nodiscard]] Frame decode_frame(std::span<const std::byte, kFrameBytes> bytes);  // throws Dropped

// Sends one frame after the other as the channel has room for them.
class FrameWriter {
  public:
    void start(const Frame& frame, std::span<const std::byte> payload);  // stays in place until the frame is out
    [[nodiscard]] bool write_some(Channel& channel);                     // true: the frame is out
    void write(Channel& channel);                                        // waits for it

  private:
    [[nodiscard]] bool write_piece(Channel& channel, std::span<const std::byte> all, std::uint64_t end, bool more);

    std::array<std::byte, kFrameBytes> head_{};
    std::array<std::byte, sizeof(std::uint32_t)> tail_{};
    std::span<const std::byte> payload_;
    std::uint64_t sent_ = 0;     // of head, payload and tail together
    std::uint64_t checked_ = 0;  // of the payload
    std::uint32_t crc_ = 0;
};

// Receives one frame after the other: a header, then its payload to where the caller wants it.
class FrameReader {
  public:
    [[nodiscard]] std::optional<Frame> read_header(Channel& channel);  // nothing: not all of it has come yet
    // After a header whose payload is not empty; `into` has that many bytes. True: the whole payload is there.
    [[nodiscard]] bool read_payload(Channel& channel, std::span<std::byte> into);

  private:
    std::array<std::byte, kFrameBytes> head_{};
    std::array<std::byte, sizeof(std::uint32_t)> tail_{};
    std::uint64_t received_ = 0;  // of the header, or of payload and tail together
    std::uint32_t crc_ = 0;
};

}  // namespace luwu::fabric
