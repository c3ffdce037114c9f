#include "load_client.h"

#include <limits>
#include <memory>

#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nlohmann/json.hpp>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

namespace droidspeak {

namespace {

using Json = nlohmann::json;

// Takes a stream of server-sent events apart as it arrives.
class EventReader {
 public:
  explicit EventReader(LoadResult& result) : result_(result) {}

  void add(const std::string& bytes) {
    pending_ += bytes;
    for (size_t end = pending_.find('\n'); end != std::string::npos; end = pending_.find('\n')) {
      read_line(pending_.substr(0, end));
      pending_.erase(0, end + 1);
    }
  }

  void finish() { result_.e2e_ms = watch_.ms(); }

 private:
  void read_line(const std::string& line) {
    if (!line.starts_with("data: ")) return;
    if (line.starts_with("data: [DONE]")) {
      result_.is_complete = true;
      return;
    }
    Json event = Json::parse(line.substr(6), nullptr, false);
    if (!event.is_object()) return;
    if (auto usage = event.find("usage"); usage != event.end() && usage->is_object())
      result_.tokens = usage->value("completion_tokens", 0);
    if (auto done = event.find("droidspeak"); done != event.end() && done->is_object())
      result_.plan = done->value("plan", "");
    if (auto choices = event.find("choices"); choices != event.end() && !choices->empty())
      note_text(choices->front().value("text", ""));
  }

  void note_text(const std::string& text) {
    result_.text += text;
    double now = watch_.ms();
    if (result_.ttft_ms == 0) {
      result_.ttft_ms = now;
    } else if (!text.empty()) {
      result_.gaps_ms.push_back(now - last_ms_);
    }
    last_ms_ = now;
  }

  LoadResult& result_;
  Stopwatch watch_;
  std::string pending_;
  double last_ms_ = 0;
};

std::string body_of(const LoadTarget& target, const LoadRequest& request) {
  Json body = {{"model", request.model},
               {"prompt", request.prompt},
               {"max_tokens", request.max_tokens},
               {"temperature", 0},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}}};
  if (!request.cache_salt.empty()) body["cache_salt"] = request.cache_salt;
  for (size_t i = 0; i < target.loras.size(); ++i)
    body["lora"].push_back({{"id", i}, {"scale", target.loras[i] == request.model ? 1 : 0}});
  return body.dump();
}

struct Address {
  std::string host;
  std::string port;
};

Address address_of(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  std::string rest = url.starts_with(kScheme) ? url.substr(kScheme.size()) : "";
  rest = rest.substr(0, rest.find('/'));
  size_t colon = rest.rfind(':');
  bool has_port = colon != std::string::npos && rest.find(']', colon) == std::string::npos;
  Address address{rest.substr(0, colon), has_port ? rest.substr(colon + 1) : "80"};
  if (!has_port) address.host = rest;
  if (address.host.starts_with('[') && address.host.ends_with(']'))
    address.host = address.host.substr(1, address.host.size() - 2);
  if (address.host.empty()) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("'{}' is no server: it should be like http://127.0.0.1:8080", url));
  }
  return address;
}

struct FreeAddresses {
  void operator()(addrinfo* addresses) const { freeaddrinfo(addresses); }
};

// A connection that is given up when nothing comes for ten minutes.
class Socket {
 public:
  // Is closed when nobody listens there.
  explicit Socket(const Address& address) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &found) != 0) return;
    std::unique_ptr<addrinfo, FreeAddresses> addresses(found);
    for (const addrinfo* entry = found; entry != nullptr && socket_ < 0; entry = entry->ai_next)
      connect(*entry);
  }

  ~Socket() { close(); }

  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  bool send(std::string_view bytes) const {
    while (!bytes.empty()) {
      ssize_t count = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(count));
    }
    return true;
  }

  // False at the end.
  bool receive(std::string& bytes) const {
    char piece[16384];
    ssize_t count = ::recv(socket_, piece, sizeof piece, 0);
    if (count > 0) bytes.append(piece, static_cast<size_t>(count));
    return count > 0;
  }

 private:
  void connect(const addrinfo& address) {
    socket_ = ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int yes = 1;
    timeval patience{.tv_sec = 600, .tv_usec = 0};
    setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (::connect(socket_, address.ai_addr, address.ai_addrlen) != 0) close();
  }

  void close() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }

  int socket_ = -1;
};

// Hands the body on as it arrives. The status, or 0 when none came.
int read_answer(const Socket& socket, EventReader& events) {
  boost::beast::http::response_parser<boost::beast::http::string_body> parser;
  parser.eager(true);
  parser.body_limit(std::numeric_limits<uint64_t>::max());
  boost::system::error_code error;
  std::string pending;
  while (!parser.is_done()) {
    if (!socket.receive(pending)) break;
    size_t used = parser.put(boost::asio::const_buffer(pending.data(), pending.size()), error);
    if (error && error != boost::beast::http::error::need_more) return 0;
    pending.erase(0, used);
    std::string& body = parser.get().body();
    if (parser.is_header_done()) events.add(body);
    body.clear();
  }
  return parser.is_header_done() ? parser.get().result_int() : 0;
}

}  // namespace

void check_load_url(const std::string& url) {
  address_of(url);
}

LoadResult run_load_request(const LoadTarget& target, const LoadRequest& request) {
  Address address = address_of(target.url);
  std::string body = body_of(target, request);
  LoadResult result;
  EventReader events(result);
  Socket socket(address);
  bool is_v6 = address.host.find(':') != std::string::npos;
  bool is_sent = socket.send(fmt::format(
      "POST /v1/completions HTTP/1.1\r\nHost: {}:{}\r\nContent-Type: "
      "application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
      is_v6 ? fmt::format("[{}]", address.host) : address.host, address.port, body.size(), body));
  if (is_sent) result.status = read_answer(socket, events);
  events.finish();
  return result;
}

}  // namespace droidspeak
