// The head of a request, read strictly: what two readers could understand differently is refused,
// never repaired. Works on bytes alone; the transport brings them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "server/http.h"
#include "server/line_scanner.h"

namespace droidspeak {

// How the head says the body is sent.
struct BodyFraming {
  enum class Kind { kNone, kLength, kChunked } kind = Kind::kNone;
  size_t length = 0;  // kLength
};

struct RequestHead {
  int status = 200;     // or what to refuse the request with
  std::string problem;  // when refused
  HttpRequest request;  // when refused: as far as it was understood
  BodyFraming framing;
  enum class Version { kHttp10, kHttp11 } version = Version::kHttp11;
  bool keeps_alive = false;
  bool expects_continue = false;
};

// Collects bytes up to the empty line that ends a head.
class HeadLines {
 public:
  static constexpr size_t kMaxBytes = size_t{64} << 10;
  static constexpr size_t kMaxLine = size_t{8} << 10;
  static constexpr size_t kMaxLines = 128;

  enum class State { kMore, kComplete, kRefused };

  // Takes bytes until the head is complete or refused, and says how many.
  size_t add(std::string_view bytes);

  State state() const { return state_; }

  bool is_empty() const { return text_.empty(); }

  // The head; refused unless state() is kComplete.
  RequestHead parse() const;

 private:
  void add(char c);
  void refuse(int status, std::string problem);

  std::string text_;
  LineScanner scanner_;
  State state_ = State::kMore;
  size_t line_begin_ = 0;
  size_t num_lines_ = 0;
  int status_ = 200;
  std::string problem_;
};

// `text` ends with the empty line.
RequestHead parse_head(std::string_view text);

}  // namespace droidspeak
