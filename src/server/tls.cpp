#include "server/tls.h"

#include <string>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "base/error.h"

namespace droidspeak {

namespace {

std::string last_openssl_error() {
  char text[256] = "unknown reason";
  if (unsigned long code = ERR_get_error(); code != 0) ERR_error_string_n(code, text, sizeof text);
  ERR_clear_error();
  return text;
}

}  // namespace

TlsContext::TlsContext(const std::filesystem::path& certificate, const std::filesystem::path& key)
    : context_(SSL_CTX_new(TLS_server_method())) {
  if (!context_) throw Failure(ErrorCode::kInternal, "TLS: " + last_openssl_error());
  SSL_CTX_set_min_proto_version(context_.get(), TLS1_2_VERSION);
  SSL_CTX_set_mode(context_.get(), SSL_MODE_ENABLE_PARTIAL_WRITE |
                                       SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                       SSL_MODE_RELEASE_BUFFERS);
  // Tickets let clients come back; what is kept here for them would grow with every handshake.
  SSL_CTX_set_session_cache_mode(context_.get(), SSL_SESS_CACHE_OFF);
  if (SSL_CTX_use_certificate_chain_file(context_.get(), certificate.c_str()) != 1) {
    throw Failure(ErrorCode::kInvalidArgument,
                  "--tls-cert " + certificate.string() + ": " + last_openssl_error());
  }
  if (SSL_CTX_use_PrivateKey_file(context_.get(), key.c_str(), SSL_FILETYPE_PEM) != 1) {
    throw Failure(ErrorCode::kInvalidArgument,
                  "--tls-key " + key.string() + ": " + last_openssl_error());
  }
  if (SSL_CTX_check_private_key(context_.get()) != 1) {
    throw Failure(ErrorCode::kInvalidArgument, "--tls-key " + key.string() +
                                                   " does not belong to the certificate " +
                                                   certificate.string());
  }
}

TlsContext::~TlsContext() = default;

void TlsContext::Free::operator()(ssl_ctx_st* context) const {
  SSL_CTX_free(context);
}

}  // namespace droidspeak
