// TLS towards servers: their certificates are checked, and that they are for the host asked for.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

struct ssl_ctx_st;
struct ssl_st;

namespace droidspeak {

class TlsClient {
 public:
  // `ca_file` in PEM; empty: whom this machine trusts. Throws Failure when it cannot be used.
  explicit TlsClient(const std::filesystem::path& ca_file);
  ~TlsClient();
  TlsClient(const TlsClient&) = delete;
  TlsClient& operator=(const TlsClient&) = delete;

  struct FreeSession {
    void operator()(ssl_st* session) const;
  };

  using Session = std::unique_ptr<ssl_st, FreeSession>;

  // A session over a connected socket, before its handshake. Null when there is no memory.
  Session make_session(int socket, const std::string& host) const;

 private:
  struct Free {
    void operator()(ssl_ctx_st* context) const;
  };

  std::unique_ptr<ssl_ctx_st, Free> context_;
};

// What went wrong last on this thread, in OpenSSL's words.
std::string last_tls_error();

}  // namespace droidspeak
