#include "server/transport.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <thread>

#include <fmt/format.h>
#include <httplib.h>
#include <malloc.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/error.h"
#include "base/mutex.h"
#include "server/body.h"
#include "server/connection.h"
#include "server/head_refusal.h"

namespace droidspeak {

namespace {

using Clock = Connection::Clock;

constexpr size_t kMaxHeadBytes = size_t{64} << 10;
constexpr size_t kLargeBody = size_t{1} << 20;
constexpr std::chrono::seconds kLingerLimit{10};

// One thread per connection; the listener bounds how many there are.
class ConnectionThreads final : public httplib::TaskQueue {
 public:
  void enqueue(std::function<void()> task) override {
    {
      MutexLock lock(mutex_);
      ++running_;
    }
    auto run = [this, task = std::move(task)] {
      task();
      MutexLock lock(mutex_);
      if (--running_ == 0) all_done_.notify_all();
    };
    try {
      std::thread(run).detach();
    } catch (const std::system_error&) {
      run();  // no thread to be had: better late than never
    }
  }

  void shutdown() override {
    MutexLock lock(mutex_);
    while (running_ > 0) all_done_.wait(mutex_);
  }

 private:
  Mutex mutex_;
  Condition all_done_;
  int running_ GUARDED_BY(mutex_) = 0;
};

// What the library reads a head from and writes an answer to. While the head is read, its size and
// time are bounded; once a bound is hit, what the library wants to say is dropped and the caller
// answers by itself.
class HeadStream final : public httplib::Stream {
 public:
  HeadStream(Connection& connection, Clock::time_point deadline)
      : connection_(connection), deadline_(deadline) {}

  int failed_status() const { return failed_status_; }  // 0: none

  bool is_readable() const override { return true; }

  bool is_writable() const override { return connection_.is_open(); }

  ssize_t read(char* target, size_t size) override {
    if (failed_status_ != 0) return -1;
    if (bytes_read_ >= kMaxHeadBytes) failed_status_ = 431;
    auto [status, count] = connection_.read(target, size, deadline_);
    if (status == Connection::ReadStatus::kTimeout) failed_status_ = 408;
    bytes_read_ += count;
    return failed_status_ != 0 ? -1 : static_cast<ssize_t>(count);
  }

  ssize_t write(const char* bytes, size_t size) override {
    if (failed_status_ != 0) return static_cast<ssize_t>(size);
    return connection_.write({bytes, size}) ? static_cast<ssize_t>(size) : -1;
  }

  void get_remote_ip_and_port(std::string& ip, int& port) const override {
    ip = connection_.client_address();
    port = 0;
  }

  void get_local_ip_and_port(std::string& ip, int& port) const override {
    ip.clear();
    port = 0;
  }

  // The library refuses numbers that select() cannot take; this stream does not use select().
  socket_t socket() const override { return 0; }

 private:
  Connection& connection_;
  const Clock::time_point deadline_;
  size_t bytes_read_ = 0;
  int failed_status_ = 0;
};

// One request and its answer, from the head on.
struct Exchange {
  Connection& connection;
  bool expects_continue = false;
  bool must_close = false;  // bytes of this request may still be on their way
};

// Rides through the library on a request field that servers do not use, to find the exchange again.
struct ExchangeHandle {
  Exchange* exchange;

  bool operator()(uint64_t /*current*/, uint64_t /*total*/) const { return true; }
};

class SinkWriter final : public StreamWriter {
 public:
  SinkWriter(httplib::DataSink& sink, Connection& connection)
      : sink_(sink), connection_(connection) {}

  bool write(std::string_view bytes) override {
    is_good_ = is_good_ && sink_.write(bytes.data(), bytes.size());
    return is_good_;
  }

  bool is_connected() const override { return is_good_ && connection_.is_open(); }

 private:
  httplib::DataSink& sink_;
  Connection& connection_;
  bool is_good_ = true;
};

std::string joined_header(const httplib::Request& request, const char* name) {
  std::string joined;
  for (size_t i = 0; i < request.get_header_value_count(name); ++i) {
    if (i > 0) joined += ", ";
    joined += request.get_header_value(name, i);
  }
  return joined;
}

HttpRequest to_request(const httplib::Request& from) {
  HttpRequest request;
  request.method = from.method;
  request.path = from.path;
  request.client = from.remote_addr;
  for (const auto& [name, value] : from.headers) {
    std::string lower = name;
    std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
    request.headers[lower] = value;
  }
  return request;
}

void set_headers(const HttpResponse& from, httplib::Response& to) {
  to.status = from.status;
  for (const auto& [name, value] : from.headers) to.set_header(name, value);
}

}  // namespace

class HttpTransport::Listener final : public httplib::Server {
 public:
  Listener(HttpApplication& application,
           const TransportOptions& options,
           std::atomic<int>& num_connections)
      : application_(application), options_(options), num_connections_(num_connections) {
    if (!options.tls_certificate.empty() || !options.tls_key.empty()) {
      tls_.emplace(options.tls_certificate, options.tls_key);
    }
    new_task_queue = [] { return new ConnectionThreads; };
    set_keep_alive_timeout(
        std::chrono::duration_cast<std::chrono::seconds>(options.keep_alive).count());
    set_keep_alive_max_count(100000);
    set_socket_options([](socket_t socket) {
      int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      handle(request, response);
      return HandlerResponse::Handled;
    });
    set_error_handler([this](const httplib::Request& request, httplib::Response& response) {
      explain_head_error(request, response);
    });
    bind();
    thread_ = std::thread([this] { listen_after_bind(); });
    while (!is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ::listen(svr_sock_, 512);  // the library's backlog of 5 loses connections
  }

  ~Listener() override {
    is_stopping_ = true;
    stop();
    thread_.join();
  }

  int port() const { return port_; }

 private:
  void bind() {
    errno = 0;
    if (options_.port == 0) {
      port_ = bind_to_any_port(options_.host);
    } else {
      port_ = bind_to_port(options_.host, options_.port) ? options_.port : -1;
    }
    if (port_ > 0) return;
    throw Failure(
        ErrorCode::kUnavailable,
        fmt::format("cannot listen on {}:{}: {}; choose another --host or --port", options_.host,
                    options_.port, errno != 0 ? std::strerror(errno) : "no such address"));
  }

  // The library calls this on a thread of its own for every accepted connection.
  bool process_and_close_socket(socket_t socket) override {
    int now_open = ++num_connections_;
    {
      Connection connection(socket, tls_ ? &*tls_ : nullptr, is_stopping_);
      if (now_open > options_.max_connections) {
        refuse(connection, {}, 503, "The server has too many connections.");
      } else if (connection.shake_hands(Clock::now() + options_.read_timeout)) {
        serve(connection);
      }
    }
    --num_connections_;
    return true;
  }

  void serve(Connection& connection) {
    while (connection.wait_readable(Clock::now() + keep_alive())) {
      Exchange exchange{connection};
      HeadStream stream(connection, Clock::now() + options_.read_timeout);
      bool has_head = false;
      bool wants_close = false;
      bool is_done = process_request(stream, false, wants_close, [&](httplib::Request& request) {
        has_head = true;
        attach(request, exchange);
      });
      if (stream.failed_status() != 0) {
        return refuse(connection, {}, stream.failed_status(), head_problem(stream.failed_status()));
      }
      bool must_linger = exchange.must_close || !has_head;
      if (must_linger) return connection.linger(Clock::now() + kLingerLimit);
      if (!is_done || wants_close) return;
    }
  }

  // Idle clients make room when connections become scarce.
  std::chrono::milliseconds keep_alive() const {
    bool is_scarce = num_connections_ > options_.max_connections / 2;
    return is_scarce ? std::min(options_.keep_alive, std::chrono::milliseconds(1000))
                     : options_.keep_alive;
  }

  static void attach(httplib::Request& request, Exchange& exchange) {
    exchange.expects_continue = request.has_header("Expect");
    request.headers.erase("Expect");
    // No compression (slow) and no ranges: answers are small or made on the way.
    request.headers.erase("Accept-Encoding");
    request.ranges.clear();
    request.progress = ExchangeHandle{&exchange};
  }

  void refuse(Connection& connection,
              const HttpRequest& head,
              int status,
              const std::string& message) {
    connection.write(raw_response(application_.refuse(head, status, message)));
    connection.linger(Clock::now() + kLingerLimit);
  }

  void handle(const httplib::Request& from, httplib::Response& to) {
    Exchange& exchange = *from.progress.target<ExchangeHandle>()->exchange;
    HttpRequest request = to_request(from);
    request.is_connected = [&connection = exchange.connection] { return connection.is_open(); };
    HttpResponse response = answer(from, request, exchange);
    if (exchange.must_close) to.set_header("Connection", "close");
    set_headers(response, to);
    if (response.stream) {
      set_stream(from, to, response, exchange.connection);
    } else if (!response.body.empty()) {
      to.set_content(response.body, response.content_type);
    }
  }

  HttpResponse answer(const httplib::Request& from, HttpRequest& request, Exchange& exchange) {
    BodyFraming framing = body_framing(joined_header(from, "Content-Length"),
                                       joined_header(from, "Transfer-Encoding"));
    exchange.must_close = framing.kind != BodyFraming::Kind::kNone;
    if (auto response = application_.screen(request)) return *response;
    std::string_view encoding = request.header("content-encoding");
    if (!encoding.empty() && encoding != "identity") {
      return application_.refuse(request, 415, "Compressed request bodies are not supported.");
    }
    if (exchange.expects_continue && framing.length <= options_.max_body_bytes) {
      exchange.connection.write("HTTP/1.1 100 Continue\r\n\r\n");
    }
    BodyLimits limits{options_.max_body_bytes, options_.read_timeout,
                      std::max(size_t{256} << 20, options_.max_body_bytes)};
    Body body = read_body(exchange.connection, framing, limits, total_body_bytes_);
    if (body.status != 200) return application_.refuse(request, body.status, body.problem);
    exchange.must_close = false;
    request.body = std::move(body.text);
    size_t bytes = request.body.size();
    HttpResponse response = application_.respond(request);
    request.body = std::string();
    total_body_bytes_ -= bytes;
    if (bytes >= kLargeBody) malloc_trim(0);
    return response;
  }

  static void set_stream(const httplib::Request& from,
                         httplib::Response& to,
                         const HttpResponse& response,
                         Connection& connection) {
    auto provider = [stream = response.stream, &connection](size_t, httplib::DataSink& sink) {
      SinkWriter writer(sink, connection);
      stream(writer);
      if (writer.is_connected()) sink.done();
      return writer.is_connected();
    };
    if (from.version == "HTTP/1.0") {
      to.set_content_provider(response.content_type, provider);
    } else {
      to.set_chunked_content_provider(response.content_type, provider);
    }
  }

  // The library's own complaints, which come without a body: heads that it cannot parse.
  void explain_head_error(const httplib::Request& from, httplib::Response& to) {
    if (!to.body.empty() || from.progress) return;
    bool is_unknown_verb = to.status == 400 && !from.version.empty() && from.path.empty();
    HttpRequest head = to_request(from);
    if (is_unknown_verb) head.path = from.target.substr(0, from.target.find('?'));
    std::optional<HttpResponse> answer;
    if (is_unknown_verb && from.version.starts_with("HTTP/1.")) answer = application_.screen(head);
    if (!answer) answer = application_.refuse(head, to.status, head_problem(to.status));
    set_headers(*answer, to);
    to.set_content(answer->body, answer->content_type);
  }

  HttpApplication& application_;
  const TransportOptions options_;
  std::atomic<int>& num_connections_;
  std::optional<TlsContext> tls_;
  std::atomic<bool> is_stopping_ = false;
  std::atomic<size_t> total_body_bytes_ = 0;
  int port_ = 0;
  std::thread thread_;
};

HttpTransport::HttpTransport(HttpApplication& application,
                             const TransportOptions& options,
                             std::atomic<int>& num_connections)
    : listener_(std::make_unique<Listener>(application, options, num_connections)) {}

HttpTransport::~HttpTransport() = default;

int HttpTransport::port() const {
  return listener_->port();
}

}  // namespace droidspeak
