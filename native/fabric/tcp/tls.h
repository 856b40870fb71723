// TLS 1.3 with certificates on both sides, through OpenSSL where it was found when this was built.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "fabric/tcp/socket.h"

namespace luwu::fabric {

// Paths of PEM files: this side's certificate and its key, and the authority that both sides' certificates come from.
struct TlsSettings {
    std::string certificate;
    std::string key;
    std::string authority;
    std::string server_name;  // that the server's certificate must be for; empty: the address that is connected to
};

// The handshake failed for a reason that the next attempt will meet as well.
class TlsRefused : public Broken {
  public:
    using Broken::Broken;
};

// True if this build has OpenSSL.
[[nodiscard]] bool tls_built_in();

class TlsContext {
  public:
    enum class Side { server, client };
    // Throws Error(invalid) that names the file which cannot be used, or says that OpenSSL is missing.
    TlsContext(const TlsSettings& settings, Side side);
    ~TlsContext();
    TlsContext(const TlsContext&) = delete;
    TlsContext& operator=(const TlsContext&) = delete;

  private:
    friend class TlsStream;
    struct Parts;
    std::unique_ptr<Parts> parts_;
};

// TLS over one non-blocking socket. Used by one thread.
class TlsStream {
  public:
    // `address` is what a client connects to; it is checked against the certificate unless the settings name another.
    TlsStream(const TlsContext& context, int socket, const std::string& address);
    ~TlsStream();
    TlsStream(const TlsStream&) = delete;
    TlsStream& operator=(const TlsStream&) = delete;

    // Event that poll() must wait for before the next try, or 0 when it is done. All functions throw Broken.
    [[nodiscard]] short handshake();
    // Bytes moved; 0: would block, and `events` is what to wait for.
    [[nodiscard]] std::size_t read(std::span<std::byte> into, short& events);
    [[nodiscard]] std::size_t write(std::span<const std::byte> from, short& events);

  private:
    struct Parts;
    std::unique_ptr<Parts> parts_;
};

}  // namespace luwu::fabric
