#include "redis/reply.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

namespace droidspeak {
namespace {

Error bad(std::string_view what) {
  return {ErrorCode::kDataCorrupt, fmt::format("a Redis reply {}", what)};
}

std::optional<int64_t> parse_number(std::string_view text) {
  int64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Parses a reply with all it holds; the number of items left is shared by all arrays.
class Parser {
 public:
  Parser(std::string_view bytes, const RedisReplyLimits& limits)
      : bytes_(bytes), limits_(limits), items_left_(limits.items) {}

  size_t position() const { return position_; }

  // False: more bytes are needed.
  Result<bool> parse(RedisReply& reply, size_t depth) {
    Result<std::optional<ReplyHead>> head = parse_reply_head(bytes_.substr(position_), limits_);
    if (!head) return head.error();
    if (!*head) return false;
    position_ += (*head)->bytes;
    reply.kind = (*head)->kind;
    reply.integer = (*head)->integer;
    reply.text = std::move((*head)->text);
    if (reply.kind == RedisReply::Kind::kText) return parse_text(reply, (*head)->text_bytes);
    if (reply.kind != RedisReply::Kind::kArray) return true;
    auto count = static_cast<uint64_t>(reply.integer);
    if (depth >= limits_.depth) return bad("is nested too deep");
    if (count > items_left_) return bad("has too many items");
    items_left_ -= count;
    for (uint64_t i = 0; i < count; ++i) {
      RedisReply item;
      Result<bool> parsed = parse(item, depth + 1);
      if (!parsed || !*parsed) return parsed;
      reply.items.push_back(std::move(item));
    }
    return true;
  }

 private:
  Result<bool> parse_text(RedisReply& reply, uint64_t text_bytes) {
    if (text_bytes > limits_.text_bytes) return bad("has a text that is too long");
    if (bytes_.size() - position_ < text_bytes + 2) return false;
    if (bytes_.substr(position_ + text_bytes, 2) != "\r\n")
      return bad("has a text without its end");
    reply.text = bytes_.substr(position_, text_bytes);
    position_ += text_bytes + 2;
    return true;
  }

  std::string_view bytes_;
  const RedisReplyLimits& limits_;
  size_t items_left_;
  size_t position_ = 0;
};

}  // namespace

Result<std::optional<ReplyHead>> parse_reply_head(std::string_view bytes,
                                                  const RedisReplyLimits& limits) {
  using Kind = RedisReply::Kind;
  size_t end = bytes.substr(0, limits.line_bytes + 2).find("\r\n");
  if (end == std::string_view::npos) {
    if (bytes.size() > limits.line_bytes + 1) return bad("has a line that is too long");
    return std::optional<ReplyHead>();
  }
  if (end == 0) return bad("has an empty line");
  ReplyHead head;
  head.bytes = end + 2;
  std::string_view rest = bytes.substr(1, end - 1);
  switch (bytes.front()) {
    case '+':
    case '-':
      head.kind = bytes.front() == '+' ? Kind::kStatus : Kind::kError;
      head.text = rest;
      return std::optional(std::move(head));
    case ':':
    case '$':
    case '*':
      break;
    default:
      return bad("begins with what RESP does not know");
  }
  std::optional<int64_t> number = parse_number(rest);
  if (!number) return bad("has a number that is none");
  if (bytes.front() == ':') {
    head.kind = Kind::kInteger;
    head.integer = *number;
    return std::optional(std::move(head));
  }
  if (*number == -1) return std::optional(std::move(head));  // null
  if (*number < 0) return bad("has a negative length");
  head.kind = bytes.front() == '$' ? Kind::kText : Kind::kArray;
  if (head.kind == Kind::kText) {
    head.text_bytes = static_cast<uint64_t>(*number);
  } else {
    head.integer = *number;
  }
  return std::optional(std::move(head));
}

Result<std::optional<ParsedReply>> parse_reply(std::string_view bytes,
                                               const RedisReplyLimits& limits) {
  Parser parser(bytes, limits);
  ParsedReply parsed;
  Result<bool> is_whole = parser.parse(parsed.reply, 0);
  if (!is_whole) return is_whole.error();
  if (!*is_whole) return std::optional<ParsedReply>();
  parsed.bytes = parser.position();
  return std::optional(std::move(parsed));
}

Result<bool> ReplyScan::is_whole(std::string_view bytes) {
  const RedisReplyLimits limits;
  while (num_missing_ > 0) {
    Result<std::optional<ReplyHead>> head = parse_reply_head(bytes.substr(position_), limits);
    if (!head) return head.error();
    if (!*head) return false;
    uint64_t end = position_ + (*head)->bytes;
    if ((*head)->kind == RedisReply::Kind::kText) {
      if ((*head)->text_bytes > limits.text_bytes) return bad("has a text that is too long");
      end += (*head)->text_bytes + 2;
    } else if ((*head)->kind == RedisReply::Kind::kArray) {
      num_missing_ += static_cast<uint64_t>((*head)->integer);
      if (num_missing_ > limits.items + 1) return bad("has too many items");
    }
    if (end > bytes.size()) {
      // Counted again when the text is there.
      return false;
    }
    position_ = end;
    --num_missing_;
  }
  return true;
}

std::string error_word(const RedisReply& reply) {
  auto is_capital = [](char c) { return c >= 'A' && c <= 'Z'; };
  auto end = std::ranges::find_if_not(reply.text, is_capital);
  return {reply.text.begin(), end};
}

void append_command(std::string& out, std::span<const std::string_view> arguments) {
  fmt::format_to(std::back_inserter(out), "*{}\r\n", arguments.size());
  for (std::string_view argument : arguments)
    fmt::format_to(std::back_inserter(out), "${}\r\n{}\r\n", argument.size(), argument);
}

void append_command(std::string& out, std::initializer_list<std::string_view> arguments) {
  append_command(out, std::span(arguments.begin(), arguments.size()));
}

void append_command_head(std::string& out,
                         std::initializer_list<std::string_view> arguments,
                         uint64_t last_bytes) {
  fmt::format_to(std::back_inserter(out), "*{}\r\n", arguments.size() + 1);
  for (std::string_view argument : arguments)
    fmt::format_to(std::back_inserter(out), "${}\r\n{}\r\n", argument.size(), argument);
  fmt::format_to(std::back_inserter(out), "${}\r\n", last_bytes);
}

}  // namespace droidspeak
