#include "server/server.h"

#include <algorithm>
#include <atomic>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/mutex.h"
#include "server/anthropic/errors.h"
#include "server/gate.h"
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

// In the look of the API that a path belongs to.
HttpResponse error_for(const HttpRequest& head, const ApiError& error) {
  bool is_anthropic = head.path == "/v1/messages" || head.path.starts_with("/v1/messages/");
  return is_anthropic ? anthropic::error_response(error) : error_response(error);
}

// What an Authorization header would say; Anthropic's clients send the key in a header of its own.
std::string credentials(const HttpRequest& head) {
  std::string_view authorization = head.header("authorization");
  std::string_view key = head.header("x-api-key");
  if (!authorization.empty() || key.empty()) return std::string(authorization);
  return "Bearer " + std::string(key);
}

ServiceOptions service_options(const ServerOptions& options) {
  return {options.served_names, options.adapter_root, options.min_quality, options.version};
}

TransportOptions transport_options(const ServerOptions& options) {
  TransportOptions transport;
  transport.host = options.host;
  transport.port = options.port;
  transport.socket_path = options.socket_path;
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
        keys_(options.api_keys),
        gate_({options.host, options.allowed_hosts, options.cors_origins}),
        service_(engine, tokenizer, service_options(options)),
        log_(options.log_requests == ServerOptions::LogRequests::kYes
                 ? RequestLog::Requests::kLogged
                 : RequestLog::Requests::kNotLogged) {
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
    if (auto error = Gate::check_content_type(request)) return refuse(request, *error);
    request.caller = caller_of(request);
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
    return refuse(head, status_error(status, message));
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
  // Counts a request while it is worked on: until its answer is made, or, when that is streamed,
  // until it has been written.
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

  HttpResponse refuse(const HttpRequest& head, const ApiError& error) {
    HttpResponse response = error_for(head, error);
    finish(head, response, Stopwatch());
    return response;
  }

  std::optional<HttpResponse> refusal(const HttpRequest& head) const {
    RouteMatch match = match_route(head.method, head.path);
    bool is_probe = match.route != nullptr && match.route->access == Access::kProbe;
    if (auto error = gate_.check_host(head); error && !is_probe) return error_for(head, *error);
    if (head.method == "OPTIONS") return preflight(head);
    if (match.allow.empty()) {
      return error_for(
          head, status_error(404, fmt::format("Unknown request URL: {} {}. Please check the URL.",
                                              head.method, head.path)));
    }
    if (match.route == nullptr) {
      HttpResponse response = error_for(
          head, status_error(405, fmt::format("Not allowed to {} on {}.", head.method, head.path)));
      response.headers.emplace_back("Allow", match.allow);
      return response;
    }
    if (service_.is_draining() && match.route->while_draining == WhileDraining::kRefused) {
      ApiError error = status_error(503, "The server is shutting down.");
      error.code = "shutting_down";
      return error_for(head, error);
    }
    if (auto error = gate_.check_origin(head)) return error_for(head, *error);
    if (auto error = check_key(head, match.route->access)) return error_for(head, *error);
    return std::nullopt;
  }

  HttpResponse preflight(const HttpRequest& head) const {
    std::string allow = match_route("OPTIONS", head.path).allow;
    if (allow.empty()) allow = "GET, HEAD, POST, OPTIONS";
    HttpResponse response;
    response.status = 204;
    response.headers.emplace_back("Allow", allow);
    gate_.answer_preflight(head, allow, response);
    return response;
  }

  // Whose key opens a route; none: no key is needed.
  std::optional<ApiKey::Role> needed_role(Access access) const {
    using Role = ApiKey::Role;
    bool is_protected = options_.metrics_access == ServerOptions::MetricsAccess::kKey;
    bool is_open = access == Access::kProbe || access == Access::kOpen ||
                   (access == Access::kMetrics && !is_protected);
    if (is_open) return std::nullopt;
    if (access != Access::kKey && keys_.has(Role::kAdmin)) return Role::kAdmin;
    if (keys_.has(Role::kInference)) return Role::kInference;
    return std::nullopt;
  }

  std::optional<ApiError> check_key(const HttpRequest& head, Access access) const {
    std::optional<ApiKey::Role> needed = needed_role(access);
    if (!needed) return std::nullopt;
    const KeyRing::Holder* holder = keys_.find(credentials(head));
    if (holder == nullptr) {
      return status_error(401,
                          "Incorrect or missing API key; expected it in the header "
                          "'Authorization: Bearer KEY' or 'x-api-key: KEY'.");
    }
    if (*needed == ApiKey::Role::kAdmin && holder->role != ApiKey::Role::kAdmin) {
      return status_error(403, "This call needs the admin key.");
    }
    return std::nullopt;
  }

  Caller caller_of(const HttpRequest& head) const {
    const KeyRing::Holder* holder = keys_.find(credentials(head));
    if (holder == nullptr) return {};
    bool is_shared = options_.shared_between_keys == ServerOptions::BetweenKeys::kCaches;
    bool is_alone = options_.api_keys.size() == 1;
    bool is_admin = holder->role == ApiKey::Role::kAdmin;
    return {holder->name, is_shared ? "" : holder->digest.hex(), is_shared || is_alone || is_admin};
  }

  HttpResponse run_handler(HttpRequest& request) {
    RouteMatch match = match_route(request.method, request.path);
    check(match.route != nullptr, "a request passed screening without a route");
    try {
      return match.route->handler(service_, request);
    } catch (const Failure& failure) {
      return error_for(request, to_api_error(failure.error()));
    } catch (const std::exception& error) {
      log_.warning("handler_failed",
                   {{"path", json_string(request.path)}, {"error", json_string(error.what())}});
      return error_for(request,
                       status_error(500, "The server had an error while processing your request."));
    }
  }

  static HttpRequest head_of(const HttpRequest& request) {
    HttpRequest head;
    head.method = request.method;
    head.path = request.path;
    head.client = request.client;
    head.caller = request.caller;
    return head;
  }

  void add_headers(const HttpRequest& request, HttpResponse& response) {
    std::string_view given = request.header("x-request-id");
    bool is_plain =
        !given.empty() && given.size() <= 128 &&
        std::ranges::all_of(given, [](unsigned char c) { return c > 0x20 && c < 0x7f; });
    response.headers.emplace_back("X-Request-Id",
                                  is_plain ? std::string(given) : service_.new_id("req"));
    response.headers.emplace_back("X-Content-Type-Options", "nosniff");
    gate_.add_cors_headers(request, response);
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
    bool is_failure = status >= 500 && !service_.is_draining();
    if (!is_failure && !log_.logs_requests()) return;
    RequestLog::Fields fields = {{"method", json_string(head.method)},
                                 {"path", json_string(head.path)},
                                 {"status", std::to_string(status)},
                                 {"ms", fmt::format("{:.3f}", watch.ms())},
                                 {"client", json_string(head.client)}};
    if (!head.caller.name.empty()) fields.emplace_back("key", json_string(head.caller.name));
    if (notes != nullptr) fields.insert(fields.end(), notes->fields.begin(), notes->fields.end());
    log_.request(fields);
    if (is_failure) log_.warning("request_failed", fields);
  }

  const ServerOptions options_;
  const KeyRing keys_;
  const Gate gate_;
  Service service_;
  RequestLog log_;
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
