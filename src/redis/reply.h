// What a Redis server answers (RESP2), and what it is asked. Parsing trusts nothing: any bytes give
// a reply within the limits, or say that more bytes are needed, or an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace droidspeak {

struct RedisReply {
  enum class Kind : uint8_t { kStatus, kError, kInteger, kText, kNull, kArray };
  Kind kind = Kind::kNull;
  int64_t integer = 0;
  std::string text;  // of a status, an error or a bulk string
  std::vector<RedisReply> items;

  bool is_error() const { return kind == Kind::kError; }
};

struct RedisReplyLimits {
  size_t line_bytes = 2048;  // Redis 7 takes 1064 to say that it is in protected mode
  size_t text_bytes = size_t{1} << 20;
  size_t items = 65536;  // of all arrays of one reply together
  size_t depth = 6;
};

struct ParsedReply {
  RedisReply reply;
  size_t bytes = 0;  // that it took
};

// Nothing: the reply goes on behind `bytes`.
Result<std::optional<ParsedReply>> parse_reply(std::string_view bytes,
                                               const RedisReplyLimits& limits = {});

// Whether bytes hold a whole reply, without looking twice at what was looked at before.
class ReplyScan {
 public:
  // `bytes` begin with those of the call before. Errors as those of parse_reply().
  Result<bool> is_whole(std::string_view bytes);

 private:
  size_t position_ = 0;
  uint64_t num_missing_ = 1;  // items that end behind position_
};

// The first word of an error in capitals, such as OOM: what follows it may hold anything, also what
// the server was sent.
std::string error_word(const RedisReply& reply);

// The first line of a reply whose text, if it is one, is read apart from it.
struct ReplyHead {
  RedisReply::Kind kind = RedisReply::Kind::kNull;
  uint64_t text_bytes = 0;  // of a bulk string; two more bytes (\r\n) follow it
  int64_t integer = 0;      // or the number of items of an array
  std::string text;         // of a status or an error
  size_t bytes = 0;         // of the line with its end
};

Result<std::optional<ReplyHead>> parse_reply_head(std::string_view bytes,
                                                  const RedisReplyLimits& limits = {});

// A command as the server reads it. A last argument may follow apart from it: append_command_head()
// says how long it is, then its bytes and \r\n.
void append_command(std::string& out, std::span<const std::string_view> arguments);
void append_command(std::string& out, std::initializer_list<std::string_view> arguments);
void append_command_head(std::string& out,
                         std::initializer_list<std::string_view> arguments,
                         uint64_t last_bytes);

}  // namespace droidspeak
