// Messages of a worker whose token is good, over TCP after its hello: a session reads them as a server does.
#include <memory>

#include "fabric/tcp/tcp_session.h"
#include "folder.h"
#include "stream.h"

namespace {

using namespace luwu::fabric;
using luwu::fuzz::require;

constexpr std::size_t kMostBytes = 4096;  // as many answers as a socket holds
constexpr std::uint64_t kMemoryBytes = 1 << 26;
constexpr Timing kTiming{.hello = std::chrono::seconds(2),
                         .silence = std::chrono::seconds(2),
                         .reconnect = std::chrono::seconds(2),
                         .backoff = std::chrono::milliseconds(1),
                         .longest_backoff = std::chrono::milliseconds(1),
                         .farewell = std::chrono::milliseconds(1)};
enum : std::uint8_t { kGradients = 1, kFresh = 2, kReads = 4, kBegun = 8 };

ServerSettings settings_of(const std::string& folder) {
    ServerSettings settings;
    settings.folders = {folder};
    settings.uuid = {1, 2, 3};
    settings.mode = luwu::store::OpenMode::create;
    settings.shape.chunk_elements = luwu::store::kChunkStep;
    settings.shape.blocks = {{"root", 40, true}, {"b", 60, true}, {"frozen", 30, false}};
    settings.held = {true, false, false};
    settings.memory_bytes = kMemoryBytes;
    return settings;
}

float value_of(std::uint32_t block) { return static_cast<float>(block) + 0.25F; }

// A server without a port. It is made anew when a session has changed what it holds.
class Server {
  public:
    explicit Server(bool fresh)
        : core_(std::make_unique<ParameterServer>(settings_of(folder_.path()),
                                                  [this](const luwu::Error&) { failed = true; })),
          member_(std::make_unique<TcpMember>(*core_, 0)) {
        if (fresh) return;
        for (std::uint32_t block = 0; block < core_->layout().block_count(); ++block) {
            const std::vector<float> values(core_->layout().shape().blocks[block].elements, value_of(block));
            core_->initialise(block, values.data());
        }
        core_->finish_initialise();
    }
    ~Server() { core_.reset(); }  // before the member, as a server does: pushes that are under way end in its buffers
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;

    [[nodiscard]] ParameterServer& core() { return *core_; }
    [[nodiscard]] TcpMember& member() { return *member_; }
    std::atomic<bool> failed{false};

  private:
    luwu::fuzz::Folder folder_;
    std::unique_ptr<ParameterServer> core_;
    std::unique_ptr<TcpMember> member_;
};

std::unique_ptr<Server>& server_for(bool fresh) {
    static std::array<std::unique_ptr<Server>, 2> servers;
    auto& server = servers[fresh ? 1 : 0];
    if (server == nullptr) server = std::make_unique<Server>(fresh);
    return server;
}

void serve(Server& server, const std::shared_ptr<TcpConnection>& connection, std::uint8_t mode) {
    std::vector<std::uint32_t> abandoned;
    std::mutex mutex;
    try {
        connection->channel.limit(Clock::now() + kTiming.hello);
        TcpSession session(server.core(), server.member(), connection, server.failed, {(mode & kReads) == 0, kTiming},
                           [&](std::uint32_t block) {
                               const std::lock_guard lock(mutex);
                               abandoned.push_back(block);
                           });
        session.serve((mode & kGradients) != 0 ? Stream::gradients : Stream::parameters);
    } catch (const Broken&) {  // Dropped, too
    }
    for (const std::uint32_t block : abandoned) server.core().release(block);
}

// Reads what the session sent.
void check_answers(Descriptor theirs, const ParameterServer& core) {
    Bell bell;
    Channel channel(std::move(theirs), bell, nullptr, "");
    FrameReader reader;
    bool first = true;
    try {
        while (const auto frame = reader.read_header(channel)) {
            require(first == (frame->kind == FrameKind::welcome), "a session begins with a welcome");
            first = false;
            std::vector<std::byte> payload(frame->bytes);
            if (!payload.empty()) require(reader.read_payload(channel, payload), "an answer is whole");
            if (frame->kind != FrameKind::parameters) continue;
            require(payload.size() == core.memory().parameter_bytes(frame->block),
                    "parameters are those of the whole block");
            float value = 0;
            std::memcpy(&value, payload.data(), sizeof value);
            require(value == value_of(frame->block), "parameters are those that were written");
        }
    } catch (const Dropped&) {
        require(false, "answers are frames");
    } catch (const Broken&) {
    }
    require(!first, "a session says something");
}

}  // namespace

LUWU_FUZZ_TARGET("session") {
    luwu::fuzz::Input input(data);
    const auto mode = input.number();
    std::vector<std::byte> stream = luwu::fuzz::stream_of(input);
    stream.resize(std::min(stream.size(), kMostBytes));
    std::unique_ptr<Server>& server = server_for((mode & kFresh) != 0);
    if ((mode & kBegun) != 0) server->core().begin(0, {{0.01, 0.9, 0.999, 1e-8, 0.1}});
    auto [ours, theirs] = luwu::fuzz::connected();
    const int room = 1 << 20;
    setsockopt(ours.get(), SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    luwu::fuzz::send_all(theirs, stream);
    shutdown(theirs.get(), SHUT_WR);
    {
        const auto connection = std::make_shared<TcpConnection>(std::move(ours), nullptr);
        serve(*server, connection, mode);
        connection->channel.abort();
    }
    check_answers(std::move(theirs), server->core());
    const bool changed = server->member().taken > 0 || (mode & kBegun) != 0 || server->failed;
    server->member().asked = server->member().taken = 0;
    if (changed) server.reset();
}
