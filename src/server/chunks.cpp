#include "server/chunks.h"

#include <algorithm>
#include <cstdint>

#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>

#include "base/check.h"
#include "server/line_scanner.h"

namespace droidspeak {

namespace {

namespace http = boost::beast::http;
using ParseError = boost::system::error_code;

// Beast reads bodies behind a head only.
constexpr std::string_view kHead = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";

constexpr size_t kShortestEnd = std::string_view("0\r\n\r\n").size();

}  // namespace

class ChunkDecoder::Parser {
 public:
  explicit Parser(size_t max_bytes) {
    beast_.body_limit(max_bytes);
    beast_.on_chunk_header(on_header_);
    beast_.on_chunk_body(on_data_);
    ParseError error;
    beast_.put(boost::asio::const_buffer(kHead.data(), kHead.size()), error);
    check(!error, "Beast refuses our own head");
  }

  size_t add(std::string_view bytes, std::string& text) {
    check(state_ == State::kMore, "bytes for a chunked body that has ended");
    text_ = &text;
    pending_.append(bytes);
    size_t begin = 0;
    while (begin < pending_.size() && state_ == State::kMore) {
      size_t used = step(std::string_view(pending_).substr(begin));
      if (used == 0) break;
      begin += used;
    }
    pending_.erase(0, begin);
    if (state_ == State::kMore) return bytes.size();
    return bytes.size() - std::min(bytes.size(), pending_.size());
  }

  State state() const { return state_; }

  const char* problem() const { return problem_; }

 private:
  void refuse(const char* problem) {
    state_ = State::kInvalid;
    problem_ = problem;
  }

  // One line with a chunk's size, one piece of its data, or the end with its trailers.
  size_t step(std::string_view bytes) {
    bool is_data = data_left_ > 0;
    // Beast asserts that the last chunk is not looked at twice before it can be whole.
    if (!is_data && bytes.front() == '0' && bytes.size() < kShortestEnd) return wait(bytes);
    if (!is_data && has_quote(bytes)) {
      refuse("a quoted chunk extension");
      return 0;
    }
    ParseError error;
    size_t used = beast_.put(boost::asio::const_buffer(bytes.data(), bytes.size()), error);
    if (error == http::error::need_more) return wait(bytes);
    if (error == http::error::body_limit) {
      if (has_good_lines(size_line(bytes))) state_ = State::kTooLarge;
    } else if (error) {
      refuse("an invalid chunk size, extension or trailer, or a chunk longer than its size");
    } else if (is_data || has_good_lines(bytes.substr(0, used))) {
      if (beast_.is_done()) state_ = State::kDone;
    }
    return used;
  }

  // For the rest of these lines. What has come of them is judged: for Beast one that ends in LF
  // alone goes on.
  size_t wait(std::string_view lines) {
    has_good_lines(lines);
    return 0;
  }

  // Up to its end, with the end of the chunk before.
  static std::string_view size_line(std::string_view bytes) {
    size_t end = bytes.find("\r\n", bytes.starts_with("\r\n") ? 2 : 0);
    return bytes.substr(0, end == std::string_view::npos ? end : end + 2);
  }

  // In the line of a chunk's size. Beast looks for the other quote beyond the line.
  static bool has_quote(std::string_view bytes) {
    if (bytes.starts_with("\r\n")) bytes.remove_prefix(2);  // behind the chunk before
    return bytes.substr(0, bytes.find('\n')).find('"') != std::string_view::npos;
  }

  // Refuses the body where they are not. Whole lines and pieces of them are judged alike: how a
  // body was cut decides nothing.
  bool has_good_lines(std::string_view lines) {
    LineScanner scanner;
    for (char c : lines) {
      if (scanner.add(c) == LineScanner::Step::kBad) {
        refuse(scanner.problem());
        return false;
      }
    }
    if (lines.size() <= kMaxLineBytes) return true;
    refuse("a line or trailers of more than 8 KiB");
    return false;
  }

  void start_chunk(uint64_t size, size_t extension_bytes, ParseError& error) {
    data_left_ = size;
    extension_bytes_ += extension_bytes;
    if (extension_bytes_ > kMaxExtensionBytes) error = http::error::bad_chunk_extension;
  }

  template <class Text>
  size_t take_data(const Text& data) {
    text_->append(data.data(), data.size());
    data_left_ -= data.size();
    return data.size();
  }

  http::request_parser<http::empty_body> beast_;
  std::function<void(uint64_t, boost::beast::string_view, ParseError&)> on_header_ =
      [this](uint64_t size, auto extension, ParseError& error) {
        start_chunk(size, extension.size(), error);
      };
  std::function<size_t(uint64_t, boost::beast::string_view, ParseError&)> on_data_ =
      [this](uint64_t, auto data, ParseError&) { return take_data(data); };
  std::string pending_;  // not yet taken by Beast
  std::string* text_ = nullptr;
  uint64_t data_left_ = 0;
  size_t extension_bytes_ = 0;
  State state_ = State::kMore;
  const char* problem_ = "";
};

ChunkDecoder::ChunkDecoder(size_t max_bytes) : parser_(std::make_unique<Parser>(max_bytes)) {}

ChunkDecoder::~ChunkDecoder() = default;

size_t ChunkDecoder::add(std::string_view bytes, std::string& text) {
  return parser_->add(bytes, text);
}

ChunkDecoder::State ChunkDecoder::state() const {
  return parser_->state();
}

std::string ChunkDecoder::problem() const {
  return parser_->problem();
}

}  // namespace droidspeak
