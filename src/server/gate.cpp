#include "server/gate.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"

namespace droidspeak {

namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

// ":8080" behind a name; nothing, or ":" alone, is the default one.
bool is_port(std::string_view text) {
  if (text.empty() || text == ":") return true;
  uint16_t port = 0;
  const char* end = text.data() + text.size();
  return text.front() == ':' &&
         std::from_chars(text.data() + 1, end, port) == std::from_chars_result{end, {}};
}

// "[::1]:8080" -> "::1", "Example.org.:80" -> "example.org"; empty for what is no name and port.
std::string host_name(std::string_view host) {
  bool is_bracketed = host.starts_with('[');
  size_t end = is_bracketed ? host.find(']') : std::min(host.rfind(':'), host.size());
  if (end == std::string_view::npos) return {};
  if (!is_port(host.substr(is_bracketed ? end + 1 : end))) return {};
  if (is_bracketed) return lower(host.substr(1, end - 1));
  std::string name = lower(host.substr(0, end));
  if (name.ends_with('.')) name.pop_back();
  return name;
}

struct Address {
  bool is_one = false;
  bool is_loopback = false;
  bool is_any = false;
};

Address parse_address(const std::string& name) {
  in_addr v4{};
  if (inet_pton(AF_INET, name.c_str(), &v4) == 1) {
    uint32_t number = ntohl(v4.s_addr);
    return {true, number >> 24 == 127, number == 0};
  }
  in6_addr v6{};
  if (inet_pton(AF_INET6, name.c_str(), &v6) != 1) return {};
  bool is_mapped_loopback = IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127;
  return {true, IN6_IS_ADDR_LOOPBACK(&v6) || is_mapped_loopback,
          static_cast<bool>(IN6_IS_ADDR_UNSPECIFIED(&v6))};
}

std::string machine_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? lower(name) : std::string();
}

bool is_plain(std::string_view text) {
  return !text.empty() &&
         std::ranges::all_of(text, [](unsigned char c) { return c > 0x20 && c < 0x7f; });
}

void check_origin_option(const std::string& origin) {
  if (origin == "*") return;
  size_t scheme = origin.find("://");
  bool is_origin = is_plain(origin) && scheme != std::string::npos && scheme > 0 &&
                   scheme + 3 < origin.size() && origin.find('/', scheme + 3) == std::string::npos;
  if (is_origin) return;
  throw Failure(ErrorCode::kInvalidArgument,
                fmt::format("--cors-origin \"{}\": expected a site such as https://example.org, "
                            "without a path, or *",
                            origin));
}

void check_host_option(const std::string& host) {
  bool is_name = is_plain(host) && host.find('/') == std::string::npos &&
                 (parse_address(lower(host)).is_one || !host_name(host).empty());
  if (host == "*" || is_name) return;
  throw Failure(
      ErrorCode::kInvalidArgument,
      fmt::format("--allowed-host \"{}\": expected a name such as llm.example.org, or *", host));
}

std::string_view trimmed(std::string_view text) {
  size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

// "*/*" in `type` has no meaning here.
bool is_json(std::string_view type) {
  return lower(trimmed(type.substr(0, type.find(';')))) == "application/json";
}

// JSON is read as UTF-8: what says that it is something else would be read wrongly. Other
// parameters do no harm.
bool is_utf8(std::string_view type) {
  while (true) {
    size_t next = type.find(';');
    if (next == std::string_view::npos) return true;
    type.remove_prefix(next + 1);
    std::string_view parameter = trimmed(type.substr(0, type.find(';')));
    size_t equals = std::min(parameter.find('='), parameter.size());
    if (lower(trimmed(parameter.substr(0, equals))) != "charset") continue;
    std::string charset = lower(trimmed(parameter.substr(std::min(equals + 1, parameter.size()))));
    if (charset.size() >= 2 && charset.front() == '"' && charset.back() == '"')
      charset = charset.substr(1, charset.size() - 2);
    constexpr std::array kKnown = {"", "utf-8", "utf8", "ascii", "us-ascii", "ansi_x3.4-1968"};
    if (std::ranges::find(kKnown, charset) == kKnown.end()) return false;
  }
}

}  // namespace

Gate::Gate(const GateOptions& options) {
  for (const std::string& host : options.allowed_hosts) {
    check_host_option(host);
    takes_any_host_ = takes_any_host_ || host == "*";
    hosts_.push_back(parse_address(lower(host)).is_one ? lower(host) : host_name(host));
  }
  for (const std::string& origin : options.cors_origins) {
    check_origin_option(origin);
    origins_.push_back(lower(origin));
  }
  std::string own = lower(options.host);
  Address address = parse_address(own);
  hosts_.push_back(own);
  takes_loopback_ = address.is_loopback || address.is_any || own == "localhost";
  takes_any_address_ = address.is_any;
  if (!takes_loopback_ || address.is_any) hosts_.push_back(machine_name());
}

bool Gate::is_own_host(std::string_view host) const {
  std::string name = host_name(host);
  if (name.empty()) return false;
  if (std::ranges::find(hosts_, name) != hosts_.end()) return true;
  Address address = parse_address(name);
  if (takes_any_address_ && address.is_one) return true;
  return takes_loopback_ &&
         (address.is_loopback || name == "localhost" || name.ends_with(".localhost"));
}

std::optional<ApiError> Gate::check_host(const HttpRequest& head) const {
  std::string_view host = head.header("host");
  bool is_local = head.client == "unix";
  if (takes_any_host_ || is_local || host.empty() || is_own_host(host)) return std::nullopt;
  return status_error(
      421, fmt::format("This server does not go by the name '{}'; --allowed-host adds names.",
                       host.substr(0, 256)));
}

bool Gate::is_allowed_origin(std::string_view origin) const {
  std::string wanted = lower(origin);
  return std::ranges::any_of(
      origins_, [&](const std::string& allowed) { return allowed == "*" || allowed == wanted; });
}

std::optional<ApiError> Gate::check_origin(const HttpRequest& head) const {
  std::string_view origin = head.header("origin");
  bool only_reads = head.method == "GET" || head.method == "HEAD";
  if (origin.empty() || only_reads || is_allowed_origin(origin)) return std::nullopt;
  size_t scheme = origin.find("://");
  bool is_own = scheme != std::string_view::npos &&
                lower(origin.substr(scheme + 3)) == lower(head.header("host"));
  if (is_own) return std::nullopt;
  return status_error(
      403, fmt::format("Pages of '{}' may not call this server; --cors-origin adds sites.",
                       origin.substr(0, 256)));
}

std::optional<ApiError> Gate::check_content_type(const HttpRequest& head) {
  if (head.method != "POST") return std::nullopt;
  std::string_view type = head.header("content-type");
  if (is_json(type) && is_utf8(type)) return std::nullopt;
  if (is_json(type)) {
    return status_error(
        415, fmt::format("Expected JSON in UTF-8, but got '{}'; leave the charset out, or give "
                         "utf-8.",
                         type.substr(0, 256)));
  }
  return status_error(
      415, fmt::format("Expected the header 'Content-Type: application/json', but got {}.",
                       type.empty() ? "none" : fmt::format("'{}'", type.substr(0, 256))));
}

void Gate::add_cors_headers(const HttpRequest& head, HttpResponse& response) const {
  if (origins_.empty()) return;
  if (std::ranges::find(origins_, "*") != origins_.end()) {
    response.headers.emplace_back("Access-Control-Allow-Origin", "*");
    return;
  }
  response.headers.emplace_back("Vary", "Origin");
  std::string_view origin = head.header("origin");
  if (is_allowed_origin(origin)) {
    response.headers.emplace_back("Access-Control-Allow-Origin", std::string(origin));
  }
}

void Gate::answer_preflight(const HttpRequest& head,
                            const std::string& verbs,
                            HttpResponse& response) const {
  if (!is_allowed_origin(head.header("origin"))) return;
  std::string_view wanted = head.header("access-control-request-headers");
  response.headers.emplace_back("Access-Control-Allow-Methods", verbs);
  response.headers.emplace_back("Access-Control-Allow-Headers", wanted.empty()
                                                                    ? "Authorization, Content-Type"
                                                                    : std::string(wanted));
  response.headers.emplace_back("Access-Control-Max-Age", "86400");
}

}  // namespace droidspeak
