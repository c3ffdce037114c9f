// The HTTP server: OpenAI's API over an engine. HTTP threads parse, tokenise and format; the
// engine's thread computes. docs/http_api.md describes what clients see.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/build_version.h"
#include "engine/engine.h"
#include "server/keys.h"
#include "text/tokenizer.h"

namespace droidspeak {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8080;                    // 0: a free one
  std::filesystem::path socket_path;  // a unix socket beside the port; empty: none
  std::vector<ApiKey> api_keys;       // none: no key is asked for
  // Caches are kept apart by key, or only by the clients' cache_salt.
  enum class BetweenKeys { kNothing, kCaches } shared_between_keys = BetweenKeys::kNothing;
  std::vector<std::string> served_names;  // for the base model; empty: its own name
  std::filesystem::path adapter_root;     // adapters are loaded from below it; empty: not at all
  std::filesystem::path tls_certificate;  // PEM; empty: plain HTTP
  std::filesystem::path tls_key;
  std::vector<std::string> allowed_hosts;  // names of the server besides its addresses; "*": any
  std::vector<std::string> cors_origins;   // sites whose pages may call; "*": all
  size_t max_body_bytes = size_t{32} << 20;
  std::chrono::milliseconds read_timeout{10000};  // for a request's head, and for its body
  int max_connections = 1024;
  double min_quality = 0.99;  // the engine's, shown in the state
  BuildVersion version;       // of GET /version
  enum class MetricsAccess { kOpen, kKey } metrics_access = MetricsAccess::kOpen;
  enum class LogRequests { kNo, kYes } log_requests = LogRequests::kNo;
};

class HttpServer {
 public:
  // Listens when it returns. Throws Failure when the address, a file, a key or a site cannot be
  // used. Engine and tokenizer outlive this.
  HttpServer(Engine& engine, const Tokenizer& tokenizer, const ServerOptions& options);
  ~HttpServer();  // cancels what is running
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;
  std::string url() const;  // "http://127.0.0.1:8080"

  // New requests get 503 from now on. Returns when the running ones have been answered, or when the
  // time is up. Any thread; the server keeps answering (with 503) until it is destroyed.
  void drain(std::chrono::milliseconds limit);

 private:
  class Application;
  std::unique_ptr<Application> application_;
};

}  // namespace droidspeak
