#include "server/body.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include <fmt/format.h>

#include "base/check.h"

namespace droidspeak {

namespace {

class BodyReader {
 public:
  BodyReader(Connection& connection, const BodyLimits& limits, std::atomic<size_t>& total_bytes)
      : connection_(connection),
        limits_(limits),
        total_bytes_(total_bytes),
        deadline_(Connection::Clock::now() + limits.timeout) {}

  Body read(const BodyFraming& framing) {
    bool is_read =
        framing.kind == BodyFraming::Kind::kChunked ? read_chunks() : read_exactly(framing.length);
    if (is_read) return std::move(body_);
    total_bytes_ -= body_.text.size();
    body_.text.clear();
    return std::move(body_);
  }

 private:
  bool fail(int status, std::string problem) {
    body_.status = status;
    body_.problem = std::move(problem);
    return false;
  }

  bool fail_at_read(Connection::ReadStatus status) {
    if (status == Connection::ReadStatus::kTimeout) {
      return fail(408,
                  fmt::format("The request body did not arrive within {} seconds; {} bytes did.",
                              limits_.timeout.count() / 1000, body_.text.size()));
    }
    return fail(
        400, fmt::format("The request body ended too early, after {} bytes.", body_.text.size()));
  }

  bool read_exactly(size_t length) {
    if (length > limits_.max_bytes - std::min(limits_.max_bytes, body_.text.size()))
      return fail_too_large();
    char piece[16384];
    while (length > 0) {
      auto [status, count] = connection_.read(piece, std::min(length, sizeof piece), deadline_);
      if (status != Connection::ReadStatus::kOk) return fail_at_read(status);
      if ((total_bytes_ += count) > limits_.max_total_bytes) {
        total_bytes_ -= count;
        return fail(503, "The server is reading too many large requests at the moment.");
      }
      body_.text.append(piece, count);
      length -= count;
    }
    return true;
  }

  bool fail_too_large() {
    return fail(413,
                fmt::format("The request body is larger than the {} bytes this server accepts.",
                            limits_.max_bytes));
  }

  // A line without its line end; false when it is too long.
  bool read_line(std::string& line) {
    constexpr size_t kMaxLine = 4096;
    line.clear();
    char c = 0;
    while (line.size() < kMaxLine) {
      auto [status, count] = connection_.read(&c, 1, deadline_);
      if (status != Connection::ReadStatus::kOk) return fail_at_read(status);
      if (c == '\n') {
        if (line.ends_with('\r')) line.pop_back();
        return true;
      }
      line += c;
    }
    return fail(400, "A line of the chunked request body is too long.");
  }

  bool read_chunks() {
    std::string line;
    while (true) {
      if (!read_line(line)) return false;
      size_t size = 0;
      auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), size, 16);
      bool is_size =
          error == std::errc() && (end == line.data() + line.size() || *end == ';' || *end == ' ');
      if (!is_size) return fail(400, "The chunked request body has an invalid chunk size.");
      if (size == 0) return read_trailers(line);
      if (!read_exactly(size) || !read_line(line)) return false;
      if (!line.empty()) return fail(400, "A chunk of the request body is longer than its size.");
    }
  }

  bool read_trailers(std::string& line) {
    for (int i = 0; i < 64; ++i) {
      if (!read_line(line)) return false;
      if (line.empty()) return true;
    }
    return fail(400, "The chunked request body has too many trailers.");
  }

  Connection& connection_;
  const BodyLimits& limits_;
  std::atomic<size_t>& total_bytes_;
  const Connection::Clock::time_point deadline_;
  Body body_;
};

}  // namespace

BodyFraming body_framing(const std::string& content_length, const std::string& transfer_encoding) {
  using Kind = BodyFraming::Kind;
  if (!transfer_encoding.empty()) {
    if (!content_length.empty()) {
      return {Kind::kInvalid, 0, "The request has both Content-Length and Transfer-Encoding."};
    }
    if (transfer_encoding == "chunked" || transfer_encoding == "Chunked")
      return {Kind::kChunked, 0, ""};
    return {Kind::kInvalid, 0,
            "Transfer-Encoding must be chunked, not '" + transfer_encoding + "'."};
  }
  if (content_length.empty()) return {};
  size_t length = 0;
  const char* last = content_length.data() + content_length.size();
  auto [end, error] = std::from_chars(content_length.data(), last, length);
  if (error == std::errc::result_out_of_range && end == last)
    length = std::numeric_limits<size_t>::max();
  if (error == std::errc::invalid_argument || end != last) {
    return {Kind::kInvalid, 0, "Content-Length must be one number, not '" + content_length + "'."};
  }
  return {length == 0 ? Kind::kNone : Kind::kLength, length, ""};
}

Body read_body(Connection& connection,
               const BodyFraming& framing,
               const BodyLimits& limits,
               std::atomic<size_t>& total_bytes) {
  switch (framing.kind) {
    case BodyFraming::Kind::kNone:
      return {};
    case BodyFraming::Kind::kInvalid:
      return {400, "", framing.problem};
    case BodyFraming::Kind::kLength:
    case BodyFraming::Kind::kChunked:
      return BodyReader(connection, limits, total_bytes).read(framing);
  }
  panic("unknown BodyFraming::Kind");
}

}  // namespace droidspeak
