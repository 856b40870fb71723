#include "fabric/tcp/tls.h"

#include "store/error.h"

#if LUWU_HAVE_OPENSSL

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>

#include <cerrno>
#include <cstring>
#include <limits>

namespace luwu::fabric {

struct TlsContext::Parts {
    SSL_CTX* context = nullptr;
    Side side = Side::server;
    std::string server_name;
    ~Parts() { SSL_CTX_free(context); }
};

struct TlsStream::Parts {
    SSL* stream = nullptr;
    ~Parts() { SSL_free(stream); }
};

namespace {

std::string last_reason() {
    const unsigned long code = ERR_peek_last_error();
    const char* reason = ERR_reason_error_string(code);
    ERR_clear_error();
    return reason != nullptr ? reason : "unknown";
}

Error unusable(const std::string& what, const std::string& path) {
    return {ErrorKind::invalid, "TLS: cannot use the " + what + " '" + path + "': " + last_reason() +
                                    "; expected a PEM file that this user can read"};
}

// Throws Broken unless OpenSSL only wants the socket to be ready; returns for what.
short wanted(SSL* stream, int result) {
    const int system_error_number = errno;
    switch (SSL_get_error(stream, result)) {
        case SSL_ERROR_WANT_READ:
            return POLLIN;
        case SSL_ERROR_WANT_WRITE:
            return POLLOUT;
        case SSL_ERROR_ZERO_RETURN:
            throw Broken("the other side closed the connection");
        case SSL_ERROR_SYSCALL:
            ERR_clear_error();
            throw Broken(system_error_number != 0 ? std::strerror(system_error_number) : "the connection ended");
        default:
            break;
    }
    if (ERR_GET_REASON(ERR_peek_last_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
        ERR_clear_error();
        throw Broken("the other side closed the connection");
    }
    const long verified = SSL_get_verify_result(stream);
    const std::string reason = last_reason();
    throw TlsRefused("TLS: " + reason +
                     (verified == X509_V_OK ? "" : std::string(": ") + X509_verify_cert_error_string(verified)));
}

int limited(std::size_t bytes) {
    return static_cast<int>(std::min<std::size_t>(bytes, std::numeric_limits<int>::max()));
}

}  // namespace

bool tls_built_in() { return true; }

TlsContext::TlsContext(const TlsSettings& settings, Side side) : parts_(std::make_unique<Parts>()) {
    ERR_clear_error();
    parts_->side = side;
    parts_->server_name = settings.server_name;
    parts_->context = SSL_CTX_new(side == Side::server ? TLS_server_method() : TLS_client_method());
    SSL_CTX* context = parts_->context;
    if (context == nullptr) throw Error(ErrorKind::invalid, "TLS: OpenSSL does not start: " + last_reason());
    SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_num_tickets(context, 0);
    if (SSL_CTX_use_certificate_chain_file(context, settings.certificate.c_str()) != 1) {
        throw unusable("certificate", settings.certificate);
    }
    if (SSL_CTX_use_PrivateKey_file(context, settings.key.c_str(), SSL_FILETYPE_PEM) != 1) {
        throw unusable("key", settings.key);
    }
    if (SSL_CTX_load_verify_locations(context, settings.authority.c_str(), nullptr) != 1) {
        throw unusable("authority", settings.authority);
    }
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
}

TlsContext::~TlsContext() = default;

TlsStream::TlsStream(const TlsContext& context, int socket, const std::string& address)
    : parts_(std::make_unique<Parts>()) {
    ERR_clear_error();
    parts_->stream = SSL_new(context.parts_->context);
    SSL* stream = parts_->stream;
    if (stream == nullptr || SSL_set_fd(stream, socket) != 1) throw Broken("TLS: " + last_reason());
    if (context.parts_->side == TlsContext::Side::server) {
        SSL_set_accept_state(stream);
        return;
    }
    SSL_set_connect_state(stream);
    const std::string& name = context.parts_->server_name.empty() ? address : context.parts_->server_name;
    X509_VERIFY_PARAM* parameters = SSL_get0_param(stream);
    if (X509_VERIFY_PARAM_set1_ip_asc(parameters, name.c_str()) == 1) return;
    ERR_clear_error();  // not an IP address
    if (SSL_set1_host(stream, name.c_str()) != 1 || SSL_set_tlsext_host_name(stream, name.c_str()) != 1) {
        throw TlsRefused("TLS: cannot check the name '" + name + "': " + last_reason());
    }
}

TlsStream::~TlsStream() = default;

short TlsStream::handshake() {
    ERR_clear_error();
    const int result = SSL_do_handshake(parts_->stream);
    return result == 1 ? short{0} : wanted(parts_->stream, result);
}

std::size_t TlsStream::read(std::span<std::byte> into, short& events) {
    ERR_clear_error();
    errno = 0;
    const int result = SSL_read(parts_->stream, into.data(), limited(into.size()));
    if (result > 0) return static_cast<std::size_t>(result);
    events = wanted(parts_->stream, result);
    return 0;
}

std::size_t TlsStream::write(std::span<const std::byte> from, short& events) {
    ERR_clear_error();
    errno = 0;
    const int result = SSL_write(parts_->stream, from.data(), limited(from.size()));
    if (result > 0) return static_cast<std::size_t>(result);
    events = wanted(parts_->stream, result);
    return 0;
}

}  // namespace luwu::fabric

#else

namespace luwu::fabric {

struct TlsContext::Parts {};
struct TlsStream::Parts {};

bool tls_built_in() { return false; }

TlsContext::TlsContext(const TlsSettings&, Side) {
    throw Error(ErrorKind::invalid,
                "TLS was asked for, but LuWu was built without OpenSSL; install libssl-dev and build it again");
}
TlsContext::~TlsContext() = default;
TlsStream::TlsStream(const TlsContext&, int, const std::string&) {}
TlsStream::~TlsStream() = default;
short TlsStream::handshake() { return 0; }
std::size_t TlsStream::read(std::span<std::byte>, short&) { return 0; }
std::size_t TlsStream::write(std::span<const std::byte>, short&) { return 0; }

}  // namespace luwu::fabric

#endif
