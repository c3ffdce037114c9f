#include "redis/tls.h"

#include <array>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "base/error.h"

namespace droidspeak {
namespace {

bool is_numeric(const std::string& host) {
  std::array<unsigned char, sizeof(in6_addr)> address{};
  return inet_pton(AF_INET, host.c_str(), address.data()) == 1 ||
         inet_pton(AF_INET6, host.c_str(), address.data()) == 1;
}

}  // namespace

std::string last_tls_error() {
  std::array<char, 256> text{};
  unsigned long code = ERR_get_error();
  ERR_clear_error();
  if (code == 0) return "no reason given";
  ERR_error_string_n(code, text.data(), text.size());
  return text.data();
}

void TlsClient::Free::operator()(ssl_ctx_st* context) const {
  SSL_CTX_free(context);
}

void TlsClient::FreeSession::operator()(ssl_st* session) const {
  SSL_free(session);
}

TlsClient::TlsClient(const std::filesystem::path& ca_file)
    : context_(SSL_CTX_new(TLS_client_method())) {
  if (!context_) throw Failure(ErrorCode::kInternal, "TLS: " + last_tls_error());
  SSL_CTX_set_min_proto_version(context_.get(), TLS1_2_VERSION);
  SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_mode(context_.get(),
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  int loaded = ca_file.empty()
                   ? SSL_CTX_set_default_verify_paths(context_.get())
                   : SSL_CTX_load_verify_locations(context_.get(), ca_file.c_str(), nullptr);
  if (loaded != 1) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{}: no certificates in PEM can be read from it: {}",
                              ca_file.string(), last_tls_error()));
  }
}

TlsClient::~TlsClient() = default;

TlsClient::Session TlsClient::make_session(int socket, const std::string& host) const {
  Session session(SSL_new(context_.get()));
  if (!session || SSL_set_fd(session.get(), socket) != 1) return nullptr;
  if (is_numeric(host)) {
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(session.get()), host.c_str());
  } else {
    SSL_set1_host(session.get(), host.c_str());
    SSL_set_tlsext_host_name(session.get(), host.c_str());
  }
  SSL_set_connect_state(session.get());
  return session;
}

}  // namespace droidspeak
