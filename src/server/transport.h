// Speaks HTTP/1.1 (TLS or plain) on a port, and plain on a unix socket: a thread per connection up
// to a limit, so that a slow client holds up nobody else. Heads, bodies and answers have size
// limits and deadlines that hold as a whole.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>

#include "server/connection.h"
#include "server/http.h"

namespace droidspeak {

struct TransportOptions {
  std::string host = "127.0.0.1";
  int port = 8080;                    // 0: a free one
  std::filesystem::path socket_path;  // a unix socket beside the port; empty: none
  size_t max_body_bytes = size_t{32} << 20;
  size_t body_budget_bytes = size_t{64} << 20;    // of all bodies that are read or parsed
  size_t free_body_bytes = size_t{32} << 10;      // of each: small ones pass when that is taken
  std::chrono::milliseconds read_timeout{10000};  // for a head, and for a body
  std::chrono::milliseconds keep_alive{60000};
  Connection::Patience patience;
  // Fewer where the process may not open that many files. Beyond it clients hear 503, or are closed
  // at once when many of those are being told so.
  int max_connections = 1024;
  int max_refusals = 16;
  std::filesystem::path tls_certificate;  // empty: plain HTTP
  std::filesystem::path tls_key;
};

class HttpTransport {
 public:
  // Listens when it returns. Throws Failure when an address cannot be used or the TLS files are
  // wrong. `application` outlives this, and so does `num_connections`, which counts the open ones.
  HttpTransport(HttpApplication& application,
                const TransportOptions& options,
                std::atomic<int>& num_connections);
  // Stops: no new connections; requests in work see is_connected() turn false and are waited for.
  ~HttpTransport();
  HttpTransport(const HttpTransport&) = delete;
  HttpTransport& operator=(const HttpTransport&) = delete;

  int port() const;

 private:
  class Server;
  std::unique_ptr<Server> server_;
};

}  // namespace droidspeak
