#include "server/server.h"

#include <algorithm>
#include <atomic>
#include <cctype>

#include <fmt/format.h>
#include <openssl/crypto.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/mutex.h"
#include "server/json_writer.h"
#include "server/request_log.h"
#include "server/routes.h"
#include "server/transport.h"

namespace droidspeak {

namespace {

std::string json_string(std::string_view text) {
  JsonWriter json;
  json.text(text);
  return std::move(json).take();
}

// The hash makes all keys equally long, so that comparing takes the same time whatever is given.
Digest key_digest(std::string_view key) {
  return sha256(std::as_bytes(std::span(key)));
}

std::string_view bearer_token(std::string_view header) {
  constexpr std::string_view kScheme = "bearer ";
  if (header.size() <= kScheme.size()) return {};
  bool is_bearer = std::equal(kScheme.begin(), kScheme.end(), header.begin(), [](char a, char b) {
    return a == std::tolower(static_cast<unsigned char>(b));
  });
  return is_bearer ? header.substr(kScheme.size()) : std::string_view();
}

ServiceOptions service_options(const ServerOptions& options) {
  return {options.served_names, options.adapter_root, options.min_quality};
}

TransportOptions transport_options(const ServerOptions& options) {
  TransportOptions transport;
  transport.host = options.host;
  transport.port = options.port;
  transport.max_body_bytes = options.max_body_bytes;
  transport.read_timeout = options.read_timeout;
  transport.max_connections = options.max_connections;
  transport.tls_certificate = options.tls_certificate;
  transport.tls_key = options.tls_key;
  return transport;
}

}  // namespace

class HttpServer::Application final : public HttpApplication {
 public:
  Application(Engine& engine, const Tokenizer& tokenizer, const ServerOptions& options)
      : options_(options),
        service_(engine, tokenizer, service_options(options)),
        log_(options.log_requests == ServerOptions::LogRequests::kYes
                 ? RequestLog::Requests::kLogged
                 : RequestLog::Requests::kNotLogged) {
    for (const std::string& key : options.api_keys) key_digests_.push_back(key_digest(key));
    transport_ = std::make_unique<HttpTransport>(*this, transport_options(options),
                                                 service_.num_connections);
  }

  ~Application() override { transport_.reset(); }

  const HttpTransport& transport() const { return *transport_; }

  const ServerOptions& options() const { return options_; }

  std::optional<HttpResponse> screen(const HttpRequest& head) override {
    std::optional<HttpResponse> response = refusal(head);
    if (response) finish(head, *response, Stopwatch());
    return response;
  }

  HttpResponse respond(HttpRequest& request) override {
    Stopwatch watch;
    auto in_flight = std::make_shared<InFlight>(*this);
    // Again, because draining may have begun while the body was read.
    if (auto refused = screen(request)) return *refused;
    HttpResponse response = run_handler(request);
    if (!response.stream) {
      finish(request, response, watch);
      return response;
    }
    add_headers(request, response);
    response.stream = [this, in_flight, watch, stream = std::move(response.stream),
                       notes = response.notes, head = head_of(request)](StreamWriter& writer) {
      stream(writer);
      record(head, 200, notes.get(), watch);
    };
    return response;
  }

  HttpResponse refuse(const HttpRequest& head, int status, const std::string& message) override {
    HttpResponse response = error_response(status_error(status, message));
    finish(head, response, Stopwatch());
    return response;
  }

  // Requests in work may still submit to the engine (choices of one request start one after
  // another), so it closes its door last.
  void drain(std::chrono::milliseconds limit) {
    auto deadline = std::chrono::steady_clock::now() + limit;
    service_.begin_draining();
    wait_for_requests(deadline);
    auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    service_.engine().drain(std::max(left, std::chrono::milliseconds(0)));
  }

 private:
  // Counts a request while it is worked on, until its answer has been written.
  class InFlight {
   public:
    explicit InFlight(Application& application) : application_(application) {
      MutexLock lock(application_.mutex_);
      ++application_.num_in_flight_;
    }

    ~InFlight() {
      MutexLock lock(application_.mutex_);
      --application_.num_in_flight_;
      application_.changed_.notify_all();
    }

    InFlight(const InFlight&) = delete;
    InFlight& operator=(const InFlight&) = delete;

   private:
    Application& application_;
  };

  void wait_for_requests(std::chrono::steady_clock::time_point deadline) {
    MutexLock lock(mutex_);
    while (num_in_flight_ > 0) {
      auto left = deadline - std::chrono::steady_clock::now();
      if (left <= left.zero() || !changed_.wait_for(mutex_, left)) return;
    }
  }

  std::optional<HttpResponse> refusal(const HttpRequest& head) const {
    if (head.method == "OPTIONS") return preflight(head);
    RouteMatch match = match_route(head.method, head.path);
    if (match.allow.empty()) {
      return error_response(
          status_error(404, fmt::format("Unknown request URL: {} {}. Please check the URL.",
                                        head.method, head.path)));
    }
    if (match.route == nullptr) {
      HttpResponse response = error_response(
          status_error(405, fmt::format("Not allowed to {} on {}.", head.method, head.path)));
      response.headers.emplace_back("Allow", match.allow);
      return response;
    }
    if (service_.is_draining() && match.route->while_draining == WhileDraining::kRefused) {
      ApiError error = status_error(503, "The server is shutting down.");
      error.code = "shutting_down";
      return error_response(error);
    }
    if (needs_key(match.route->access) && !has_key(head)) {
      return error_response(status_error(401,
                                         "Incorrect or missing API key; expected it in the header "
                                         "'Authorization: Bearer KEY'."));
    }
    return std::nullopt;
  }

  HttpResponse preflight(const HttpRequest& head) const {
    std::string allow = match_route("OPTIONS", head.path).allow;
    if (allow.empty()) allow = "GET, HEAD, POST, OPTIONS";
    HttpResponse response;
    response.status = 204;
    response.headers.emplace_back("Allow", allow);
    if (!options_.cors_origin.empty()) {
      std::string_view wanted = head.header("access-control-request-headers");
      response.headers.emplace_back("Access-Control-Allow-Methods", allow);
      response.headers.emplace_back(
          "Access-Control-Allow-Headers",
          wanted.empty() ? "Authorization, Content-Type" : std::string(wanted));
      response.headers.emplace_back("Access-Control-Max-Age", "86400");
    }
    return response;
  }

  bool needs_key(Access access) const {
    switch (access) {
      case Access::kOpen:
        return false;
      case Access::kKey:
        return !key_digests_.empty();
      case Access::kMetrics:
        return !key_digests_.empty() &&
               options_.metrics_access == ServerOptions::MetricsAccess::kKey;
    }
    panic("unknown Access");
  }

  bool has_key(const HttpRequest& head) const {
    Digest given = key_digest(bearer_token(head.header("authorization")));
    int matches = 0;
    for (const Digest& digest : key_digests_) {
      matches +=
          CRYPTO_memcmp(digest.bytes.data(), given.bytes.data(), given.bytes.size()) == 0 ? 1 : 0;
    }
    return matches > 0;
  }

  HttpResponse run_handler(HttpRequest& request) {
    RouteMatch match = match_route(request.method, request.path);
    check(match.route != nullptr, "a request passed screening without a route");
    try {
      return match.route->handler(service_, request);
    } catch (const Failure& failure) {
      return error_response(to_api_error(failure.error()));
    } catch (const std::exception& error) {
      log_.warning("handler_failed",
                   {{"path", json_string(request.path)}, {"error", json_string(error.what())}});
      return error_response(
          status_error(500, "The server had an error while processing your request."));
    }
  }

  static HttpRequest head_of(const HttpRequest& request) {
    HttpRequest head;
    head.method = request.method;
    head.path = request.path;
    head.client = request.client;
    return head;
  }

  void add_headers(const HttpRequest& request, HttpResponse& response) {
    std::string_view given = request.header("x-request-id");
    bool is_plain =
        !given.empty() && given.size() <= 128 &&
        std::ranges::all_of(given, [](unsigned char c) { return c > 0x20 && c < 0x7f; });
    response.headers.emplace_back("X-Request-Id",
                                  is_plain ? std::string(given) : service_.new_id("req"));
    if (!options_.cors_origin.empty()) {
      response.headers.emplace_back("Access-Control-Allow-Origin", options_.cors_origin);
    }
  }

  void finish(const HttpRequest& request, HttpResponse& response, const Stopwatch& watch) {
    add_headers(request, response);
    record(request, response.status, response.notes.get(), watch);
  }

  void record(const HttpRequest& head,
              int status,
              const RequestNotes* notes,
              const Stopwatch& watch) {
    if (notes != nullptr && notes->client_left) status = 499;
    RouteMatch match = match_route(head.method, head.path);
    service_.count_request(match.label.empty() ? "other" : std::string(match.label), status);
    RequestLog::Fields fields = {{"method", json_string(head.method)},
                                 {"path", json_string(head.path)},
                                 {"status", std::to_string(status)},
                                 {"ms", fmt::format("{:.3f}", watch.ms())},
                                 {"client", json_string(head.client)}};
    if (notes != nullptr) fields.insert(fields.end(), notes->fields.begin(), notes->fields.end());
    log_.request(fields);
    if (status >= 500 && !service_.is_draining()) log_.warning("request_failed", fields);
  }

  const ServerOptions options_;
  Service service_;
  RequestLog log_;
  std::vector<Digest> key_digests_;
  Mutex mutex_;
  Condition changed_;
  int num_in_flight_ GUARDED_BY(mutex_) = 0;
  std::unique_ptr<HttpTransport> transport_;  // last: its threads use the rest
};

HttpServer::HttpServer(Engine& engine, const Tokenizer& tokenizer, const ServerOptions& options)
    : application_(std::make_unique<Application>(engine, tokenizer, options)) {}

HttpServer::~HttpServer() = default;

int HttpServer::port() const {
  return application_->transport().port();
}

std::string HttpServer::url() const {
  const ServerOptions& options = application_->options();
  const char* scheme = options.tls_certificate.empty() ? "http" : "https";
  bool is_v6 = options.host.find(':') != std::string::npos;
  return fmt::format("{}://{}{}{}:{}", scheme, is_v6 ? "[" : "", options.host, is_v6 ? "]" : "",
                     port());
}

void HttpServer::drain(std::chrono::milliseconds limit) {
  application_->drain(limit);
}

}  // namespace droidspeak
