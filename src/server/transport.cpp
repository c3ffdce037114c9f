#include "server/transport.h"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <optional>
#include <thread>
#include <vector>

#include <malloc.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/body.h"
#include "server/connection_threads.h"
#include "server/listener.h"
#include "server/request_head.h"
#include "server/response_head.h"
#include "server/tls.h"

namespace droidspeak {

namespace {

using Clock = Connection::Clock;
using std::chrono::milliseconds;

constexpr size_t kLargeBody = size_t{1} << 20;
// Of calls that take none: anybody may make them, and nobody looks at it.
constexpr size_t kUnusedBody = size_t{16} << 10;
// A body of up to so many bytes goes with its head in one piece; others are not copied for that.
constexpr size_t kSmallAnswer = size_t{16} << 10;
constexpr std::chrono::seconds kLingerLimit{10};
// A client that is one too many has this long to shake hands, hear so and close.
constexpr std::chrono::seconds kRefusalLimit{2};
// Until descriptors or memory for another connection may be there.
constexpr milliseconds kAcceptPause{20};
// How soon an idle connection notices that connections have become scarce.
constexpr milliseconds kIdleInterval{500};
constexpr milliseconds kScarceKeepAlive{1000};

constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
constexpr std::string_view kEventStreamComment = ":\n\n";

class AnswerStream final : public StreamWriter {
 public:
  AnswerStream(Connection& connection, ResponseFraming::Body body)
      : connection_(connection), body_(body) {}

  bool write(std::string_view bytes) override {
    if (bytes.empty()) return connection_.write({});
    return connection_.write(framed(bytes));
  }

  bool is_connected() const override { return connection_.is_open(); }

  std::string framed(std::string_view bytes) const {
    return body_ == ResponseFraming::Body::kChunked ? chunk(bytes) : std::string(bytes);
  }

  bool finish() {
    return body_ != ResponseFraming::Body::kChunked || connection_.write(kLastChunk);
  }

 private:
  Connection& connection_;
  const ResponseFraming::Body body_;
};

}  // namespace

class HttpTransport::Server {
 public:
  Server(HttpApplication& application,
         const TransportOptions& options,
         std::atomic<int>& num_connections)
      : application_(application),
        options_(options),
        max_connections_(connections_within_limit(options.max_connections)),
        num_connections_(num_connections),
        body_budget_(std::max(options.body_budget_bytes, options.max_body_bytes)),
        threads_(max_connections_ + options.max_refusals) {
    if (!options.tls_certificate.empty() || !options.tls_key.empty())
      tls_.emplace(options.tls_certificate, options.tls_key);
    doors_.push_back({Listener::on_port(options.host, options.port), tls_ ? &*tls_ : nullptr});
    if (!options.socket_path.empty())
      doors_.push_back({Listener::on_path(options.socket_path), nullptr});
    accepting_ = std::thread([this] { accept_connections(); });
  }

  ~Server() {
    is_stopping_ = true;
    for (const Door& door : doors_) door.listener.stop();
    accepting_.join();
    threads_.wait();
  }

  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const { return doors_.front().listener.port(); }

 private:
  struct Door {
    Listener listener;
    const TlsContext* tls;  // null: plain
  };

  void accept_connections() {
    std::vector<pollfd> entries;
    for (const Door& door : doors_) entries.push_back({door.listener.socket(), POLLIN, 0});
    while (!is_stopping_) {
      if (::poll(entries.data(), entries.size(), -1) < 0) {
        std::this_thread::sleep_for(kAcceptPause);
        continue;
      }
      for (size_t i = 0; i < entries.size() && !is_stopping_; ++i) {
        if (entries[i].revents != 0) accept_from(doors_[i]);
      }
    }
  }

  void accept_from(const Door& door) {
    int socket = ::accept4(door.listener.socket(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket < 0) {
      // The client stays in the queue, so without a pause this would be tried at once again.
      bool is_short = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      if (is_short) std::this_thread::sleep_for(kAcceptPause);
      return;
    }
    bool is_started = threads_.start([this, socket, tls = door.tls] { run(socket, tls); });
    if (!is_started) ::close(socket);
  }

  // The top of a connection's thread.
  void run(int socket, const TlsContext* tls) {
    bool has_room = ++num_connections_ <= max_connections_;
    if (!has_room) --num_connections_;
    try {
      Connection connection(socket, tls, is_stopping_, options_.patience);
      if (!has_room) {
        turn_away(connection);
      } else if (connection.shake_hands(Clock::now() + options_.read_timeout)) {
        serve(connection);
      }
    } catch (const std::exception&) {
      // No memory to go on with this client: closing is all that can be said.
    }
    if (has_room) --num_connections_;
  }

  void turn_away(Connection& connection) {
    auto deadline = Clock::now() + kRefusalLimit;
    HttpRequest unknown;
    unknown.client = connection.client_address();
    if (connection.shake_hands(deadline))
      refuse(connection, unknown, {503, "The server has too many connections.", deadline});
  }

  void serve(Connection& connection) {
    const std::string client = connection.client_address();
    while (wait_for_request(connection)) {
      RequestHead head = read_head(connection);
      head.request.client = client;
      if (head.status != 200) {
        return refuse(connection, head.request,
                      {head.status, head.problem, Clock::now() + kLingerLimit});
      }
      if (!answer(connection, head)) return;
    }
  }

  // False when the client leaves, or keeps silent for too long: less when connections are scarce.
  bool wait_for_request(Connection& connection) const {
    auto start = Clock::now();
    while (!is_stopping_ && Clock::now() < start + keep_alive()) {
      auto status = connection.fill(std::min(Clock::now() + kIdleInterval, start + keep_alive()));
      if (status != Connection::ReadStatus::kTimeout) return status == Connection::ReadStatus::kOk;
    }
    return false;
  }

  milliseconds keep_alive() const {
    bool is_scarce = num_connections_ > max_connections_ / 2;
    return is_scarce ? std::min(options_.keep_alive, kScarceKeepAlive) : options_.keep_alive;
  }

  RequestHead read_head(Connection& connection) const {
    auto deadline = Clock::now() + options_.read_timeout;
    HeadLines lines;
    while (lines.state() == HeadLines::State::kMore) {
      auto status = connection.fill(deadline);
      if (status == Connection::ReadStatus::kEnd) break;
      if (status == Connection::ReadStatus::kTimeout) {
        RequestHead head;
        head.status = 408;
        head.problem = "The head of the request did not arrive in time.";
        return head;
      }
      connection.consume(lines.add(connection.buffered()));
    }
    return lines.parse();
  }

  struct Refusal {
    int status;
    std::string problem;
    Clock::time_point deadline;
  };

  void refuse(Connection& connection, const HttpRequest& head, const Refusal& refusal) {
    HttpResponse response = application_.refuse(head, refusal.status, refusal.problem);
    connection.begin_answer("");
    bool is_head = head.method == "HEAD";
    connection.write(response_head(response, {.connection = ResponseFraming::Connection::kClose}) +
                     (is_head ? "" : response.body));
    connection.linger(refusal.deadline);
  }

  // False: the connection ends here.
  bool answer(Connection& connection, RequestHead& head) {
    bool is_11 = head.version == RequestHead::Version::kHttp11;
    connection.begin_answer(is_11 ? std::string(kContinue) : "");
    head.request.is_connected = [&connection] { return connection.is_open(); };
    bool is_body_read = head.framing.kind == BodyFraming::Kind::kNone;
    HttpResponse response = response_to(connection, head, is_body_read);
    bool stays = head.keeps_alive && is_body_read && (is_11 || !response.stream);
    ResponseFraming framing;
    if (response.stream) {
      framing.body = is_11 ? ResponseFraming::Body::kChunked : ResponseFraming::Body::kUntilClose;
    }
    if (!stays) framing.connection = ResponseFraming::Connection::kClose;
    if (stays && !is_11) framing.connection = ResponseFraming::Connection::kKeepAlive;
    bool is_written = write(connection, head.request, response, framing);
    // Bytes of this request may still be on their way.
    if (!is_body_read) connection.linger(Clock::now() + kLingerLimit);
    return stays && is_written;
  }

  BodyLimits body_limits(const HttpRequest& request) const {
    bool takes_body = request.method == "POST";
    return {.max_bytes = takes_body ? options_.max_body_bytes
                                    : std::min(options_.max_body_bytes, kUnusedBody),
            .free_bytes = options_.free_body_bytes,
            .timeout = options_.read_timeout};
  }

  HttpResponse response_to(Connection& connection, RequestHead& head, bool& is_body_read) {
    HttpRequest& request = head.request;
    if (auto response = application_.screen(request)) return *response;
    std::string_view encoding = request.header("content-encoding");
    if (!encoding.empty() && encoding != "identity")
      return application_.refuse(request, 415, "Compressed request bodies are not supported.");
    const BodyLimits limits = body_limits(request);
    if (!is_body_read && head.expects_continue && head.framing.length <= limits.max_bytes)
      connection.write(kContinue);
    Body body = read_body(connection, head.framing, limits, body_budget_);
    if (body.status != 200) return application_.refuse(request, body.status, body.problem);
    is_body_read = true;
    bool is_large = body.text.size() >= kLargeBody;
    request.body = std::move(body.text);
    request.body_budget = std::move(body.budget);
    HttpResponse response = application_.respond(request);
    request.release_body();
    if (is_large) malloc_trim(0);
    return response;
  }

  static bool write(Connection& connection,
                    const HttpRequest& request,
                    const HttpResponse& response,
                    const ResponseFraming& framing) {
    std::string head = response_head(response, framing);
    bool is_head_only =
        request.method == "HEAD" || response.status == 204 || response.status == 304;
    if (is_head_only) return connection.write(head);
    if (!response.stream && response.content().size() <= kSmallAnswer)
      return connection.write(head += response.content());
    if (!response.stream) return connection.write(head) && connection.write(response.content());
    AnswerStream stream(connection, framing.body);
    bool has_events = response.content_type.starts_with("text/event-stream");
    connection.set_probe(has_events ? stream.framed(kEventStreamComment) : "");
    if (!connection.write(head)) return false;
    response.stream(stream);
    return stream.is_connected() && stream.finish();
  }

  HttpApplication& application_;
  const TransportOptions options_;
  const int max_connections_;
  std::atomic<int>& num_connections_;
  Budget body_budget_;
  std::optional<TlsContext> tls_;
  std::atomic<bool> is_stopping_ = false;
  ConnectionThreads threads_;
  std::vector<Door> doors_;
  std::thread accepting_;  // last: it uses the rest
};

HttpTransport::HttpTransport(HttpApplication& application,
                             const TransportOptions& options,
                             std::atomic<int>& num_connections)
    : server_(std::make_unique<Server>(application, options, num_connections)) {}

HttpTransport::~HttpTransport() = default;

int HttpTransport::port() const {
  return server_->port();
}

}  // namespace droidspeak
