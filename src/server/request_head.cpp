#include "server/request_head.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <limits>

#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <fmt/format.h>

namespace droidspeak {

namespace {

namespace beast = boost::beast;
using BeastParser = beast::http::request_parser<beast::http::empty_body>;

// Headers that mean something else to whoever reads the other copy.
constexpr std::array<std::string_view, 9> kSingletons = {
    "authorization", "content-encoding", "content-length", "content-type",      "expect",
    "host",          "origin",           "x-api-key",      "transfer-encoding",
};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return result;
}

// For messages: short, and printable whatever the client sent.
std::string excerpt(std::string_view text) {
  std::string result(text.substr(0, 60));
  for (char& c : result) c = c >= 0x20 && c < 0x7f ? c : '?';
  return text.size() > result.size() ? result + "..." : result;
}

std::string_view line_at(std::string_view text, size_t position) {
  return text.substr(position, text.find("\r\n", position) - position);
}

bool is_hex_digit(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

// Characters of a path and query (RFC 3986), '%' included.
bool is_target_character(char c) {
  return is_letter(c) || is_digit(c) ||
         std::string_view("-._~!$&'()*+,;=:@/?%").find(c) != std::string_view::npos;
}

class HeadParser {
 public:
  explicit HeadParser(std::string_view text) : text_(text) {}

  RequestHead parse() {
    if (read_with_beast() && take_method() && take_target() && take_headers() && check_host() &&
        take_framing()) {
      take_expectation();
    }
    return std::move(head_);
  }

 private:
  bool refuse(int status, std::string problem) {
    head_.status = status;
    head_.problem = std::move(problem);
    return false;
  }

  bool read_with_beast() {
    parser_.header_limit(std::numeric_limits<uint32_t>::max());
    parser_.body_limit(std::numeric_limits<uint64_t>::max());
    boost::system::error_code error;
    size_t used = parser_.put(boost::asio::const_buffer(text_.data(), text_.size()), error);
    if (error) return refuse_line(error, used);
    if (used != text_.size()) return refuse(400, "The head of the request is not valid HTTP/1.1.");
    const auto& message = parser_.get();
    bool is_10 = message.version() == 10;
    head_.version = is_10 ? RequestHead::Version::kHttp10 : RequestHead::Version::kHttp11;
    head_.keeps_alive = parser_.keep_alive();
    return true;
  }

  // Beast stops at the beginning of the line that it does not like.
  bool refuse_line(const boost::system::error_code& error, size_t position) {
    std::string_view line = line_at(text_, position);
    if (position == 0) return refuse_request_line(error, line);
    if (error == beast::http::error::bad_content_length && is_length_beyond_numbers(line)) {
      return refuse(413, "The request body is larger than this server accepts.");
    }
    if (error == beast::http::error::bad_content_length ||
        error == beast::http::error::bad_transfer_encoding) {
      return refuse(400, fmt::format("The header line '{}' is wrong or contradicts another one: a "
                                     "request has one Content-Length, a number, or one "
                                     "Transfer-Encoding: chunked.",
                                     excerpt(line)));
    }
    return refuse(400, fmt::format("The header line '{}' is not valid HTTP/1.1.",
                                   excerpt(line.substr(0, line.find(':')))));
  }

  bool refuse_request_line(const boost::system::error_code& error, std::string_view line) {
    std::string_view version = line.substr(std::min(line.rfind(' ') + 1, line.size()));
    bool is_version = version.size() == 8 && version.starts_with("HTTP/") && is_digit(version[5]) &&
                      version[6] == '.' && is_digit(version[7]) &&
                      std::ranges::count(line, ' ') == 2;
    if (error == beast::http::error::bad_version && is_version) {
      return refuse(505, fmt::format("This server speaks HTTP/1.1, not {}.", version));
    }
    return refuse(400, fmt::format("The request line '{}' is not valid; it should be like 'GET "
                                   "/health HTTP/1.1'.",
                                   excerpt(line)));
  }

  static bool is_length_beyond_numbers(std::string_view line) {
    std::string_view value = line.substr(line.find(':') + 1);
    value.remove_prefix(std::min(value.find_first_not_of(" \t"), value.size()));
    return value.size() > 18 && std::ranges::all_of(value, is_digit);
  }

  bool take_method() {
    auto method = parser_.get().method_string();
    head_.request.method.assign(method.data(), method.size());
    bool is_plain = std::ranges::all_of(head_.request.method, [](char c) {
      return (c >= 'A' && c <= 'Z') || c == '-' || c == '_';
    });
    return is_plain || refuse(400, fmt::format("The method '{}' is not written in capital letters.",
                                               excerpt(head_.request.method)));
  }

  bool take_target() {
    auto beast_target = parser_.get().target();
    std::string_view target(beast_target.data(), beast_target.size());
    bool is_asterisk = target == "*" && head_.request.method == "OPTIONS";
    bool is_path = target.starts_with('/') && std::ranges::all_of(target, is_target_character);
    if (!is_asterisk && !is_path) {
      return refuse(400,
                    fmt::format("The request target '{}' is not a path; one begins with '/' and "
                                "has other characters than those of a URL percent-encoded.",
                                excerpt(target)));
    }
    for (size_t i = target.find('%'); i != std::string_view::npos; i = target.find('%', i + 1)) {
      if (i + 2 >= target.size() || !is_hex_digit(target[i + 1]) || !is_hex_digit(target[i + 2])) {
        return refuse(400, fmt::format("The request target has '{}' where two hexadecimal digits "
                                       "should follow '%'.",
                                       excerpt(target.substr(i, 3))));
      }
    }
    // Not decoded: whoever stands in front and lets some paths through sees the same ones.
    head_.request.path = target.substr(0, target.find('?'));
    return true;
  }

  bool take_headers() {
    for (const auto& field : parser_.get()) {
      auto beast_name = field.name_string();
      std::string name = lower({beast_name.data(), beast_name.size()});
      std::string value(field.value().data(), field.value().size());
      auto [place, is_new] = head_.request.headers.try_emplace(name, value);
      if (is_new) continue;
      if (std::ranges::find(kSingletons, name) != kSingletons.end())
        return refuse(400, fmt::format("The header '{}' stands more than once.", name));
      place->second += ", " + value;
    }
    return true;
  }

  bool check_host() {
    auto host = head_.request.headers.find("host");
    if (host == head_.request.headers.end()) {
      return head_.version == RequestHead::Version::kHttp10 ||
             refuse(400, "The request has no Host header, which HTTP/1.1 asks for.");
    }
    bool is_host = std::ranges::all_of(host->second, [](char c) {
      return is_letter(c) || is_digit(c) ||
             std::string_view("-._~:[]").find(c) != std::string_view::npos;
    });
    return is_host || refuse(400, fmt::format("The Host '{}' is neither a name nor an address.",
                                              excerpt(host->second)));
  }

  bool take_framing() {
    const auto& headers = head_.request.headers;
    auto encoding = headers.find("transfer-encoding");
    auto length = headers.find("content-length");
    if (encoding != headers.end()) {
      if (length != headers.end())
        return refuse(400, "The request has both Content-Length and Transfer-Encoding.");
      if (head_.version == RequestHead::Version::kHttp10)
        return refuse(400, "Transfer-Encoding is not part of HTTP/1.0.");
      if (lower(encoding->second) != "chunked") {
        return refuse(400, fmt::format("Transfer-Encoding must be chunked, not '{}'.",
                                       excerpt(encoding->second)));
      }
      head_.framing.kind = BodyFraming::Kind::kChunked;
    } else if (length != headers.end()) {
      return take_length(length->second);
    }
    return true;
  }

  bool take_length(const std::string& text) {
    size_t length = 0;
    const char* last = text.data() + text.size();
    auto [end, error] = std::from_chars(text.data(), last, length);
    if (error != std::errc() || end != last) {
      return refuse(400,
                    fmt::format("Content-Length must be one number, not '{}'.", excerpt(text)));
    }
    if (length > 0) head_.framing = {BodyFraming::Kind::kLength, length};
    return true;
  }

  void take_expectation() {
    auto expect = head_.request.headers.find("expect");
    if (expect == head_.request.headers.end()) return;
    if (lower(expect->second) != "100-continue") {
      refuse(417, fmt::format("The expectation '{}' cannot be met; 100-continue can.",
                              excerpt(expect->second)));
    } else {
      head_.expects_continue = head_.version == RequestHead::Version::kHttp11;
    }
  }

  const std::string_view text_;
  BeastParser parser_;
  RequestHead head_;
};

}  // namespace

size_t HeadLines::add(std::string_view bytes) {
  size_t count = 0;
  while (count < bytes.size() && state_ == State::kMore) add(bytes[count++]);
  return count;
}

void HeadLines::add(char c) {
  text_ += c;
  switch (scanner_.add(c)) {
    case LineScanner::Step::kBad:
      return refuse(400, fmt::format("The head of the request has {}.", scanner_.problem()));
    case LineScanner::Step::kInside:
      if (text_.size() - line_begin_ > kMaxLine && num_lines_ == 0)
        return refuse(414, "The request line is longer than 8 KiB.");
      if (text_.size() - line_begin_ > kMaxLine)
        return refuse(431, "A header line of the request is longer than 8 KiB.");
      if (text_.size() >= kMaxBytes)
        return refuse(431, "The head of the request is larger than 64 KiB.");
      return;
    case LineScanner::Step::kLineEnd:
      if (text_.size() - line_begin_ == 2) {
        state_ = State::kComplete;
      } else if (++num_lines_ > kMaxLines) {
        refuse(431, fmt::format("The head of the request has more than {} lines.", kMaxLines));
      }
      line_begin_ = text_.size();
      return;
  }
}

void HeadLines::refuse(int status, std::string problem) {
  state_ = State::kRefused;
  status_ = status;
  problem_ = std::move(problem);
}

RequestHead HeadLines::parse() const {
  if (state_ == State::kComplete) return parse_head(text_);
  RequestHead head;
  head.status = state_ == State::kRefused ? status_ : 400;
  head.problem = state_ == State::kRefused ? problem_ : "The head of the request ended too early.";
  return head;
}

RequestHead parse_head(std::string_view text) {
  return HeadParser(text).parse();
}

}  // namespace droidspeak
