#include "redis/connection.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

namespace droidspeak {
namespace {

// What is received beyond a value's own memory is copied: little, but enough for the next head.
constexpr size_t kReadBytes = 4096;
constexpr size_t kSkipBytes = size_t{64} << 10;
constexpr size_t kMostReplyBytes = size_t{1} << 20;

iovec piece_of(std::span<const std::byte> bytes) {
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};  // NOLINT: only read from
}

}  // namespace

Result<std::unique_ptr<RedisConnection>> RedisConnection::open(const RedisAddress& address,
                                                               const RedisServers& servers,
                                                               const TlsClient* tls,
                                                               const StreamLimits& limits) {
  Result<std::unique_ptr<StreamSocket>> socket = StreamSocket::open(address, tls, limits);
  if (!socket) return socket.error();
  std::unique_ptr<RedisConnection> connection(new RedisConnection(std::move(*socket)));
  if (Result<void> done = connection->log_in(servers); !done) return done.error();
  return connection;
}

Result<void> RedisConnection::log_in(const RedisServers& servers) {
  std::string command;
  if (!servers.password.empty() && !servers.user.empty()) {
    append_command(command, {"AUTH", servers.user, servers.password});
  } else if (!servers.password.empty()) {
    append_command(command, {"AUTH", servers.password});
  }
  append_command(command, {"PING"});
  if (Result<void> sent = send(command); !sent) return sent;
  const int num_replies = servers.password.empty() ? 1 : 2;
  for (int i = 0; i < num_replies; ++i) {
    Result<RedisReply> reply = read_reply();
    if (!reply) return reply.error();
    if (!reply->is_error()) continue;
    if (reply->text.starts_with("DENIED")) {
      return Error{
          ErrorCode::kInvalidArgument,
          "the server is in protected mode: it takes other machines when it has a password "
          "(requirepass) or with --protected-mode no"};
    }
    // A server that is loading its data answers PING so, and will do later.
    bool is_refused = reply->text.starts_with("WRONGPASS") || reply->text.starts_with("NOAUTH") ||
                      reply->text.starts_with("ERR");
    bool is_ping = i + 1 == num_replies;  // the answer to AUTH may hold the password
    return Error{is_refused ? ErrorCode::kInvalidArgument : ErrorCode::kUnavailable,
                 is_ping ? "the answer to PING is " + error_word(*reply)
                         : "the server does not take user and password"};
  }
  return {};
}

Result<void> RedisConnection::send(std::string_view commands) {
  socket_->begin_message();
  iovec piece = piece_of(std::as_bytes(std::span(commands)));
  return socket_->write(std::span(&piece, 1));
}

Result<void> RedisConnection::send(std::span<const std::span<const std::byte>> pieces) {
  std::vector<iovec> vectors;
  for (std::span<const std::byte> piece : pieces) {
    if (!piece.empty()) vectors.push_back(piece_of(piece));
  }
  socket_->begin_message();
  return socket_->write(vectors);
}

std::string_view RedisConnection::buffered() const {
  // NOLINTNEXTLINE: bytes are characters here
  return {reinterpret_cast<const char*>(buffer_.data()) + begin_, buffer_.size() - begin_};
}

Result<void> RedisConnection::read_more() {
  if (begin_ == buffer_.size()) {
    buffer_.clear();
    begin_ = 0;
  } else if (begin_ >= kReadBytes) {
    buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(begin_));
    begin_ = 0;
  }
  size_t filled = buffer_.size();
  buffer_.resize(filled + kReadBytes);
  Result<size_t> count = socket_->read(std::span(buffer_).subspan(filled), {});
  buffer_.resize(filled + (count ? *count : 0));
  if (!count) return count.error();
  return {};
}

Result<RedisReply> RedisConnection::read_reply() {
  socket_->begin_message();
  ReplyScan scan;
  while (true) {
    Result<bool> is_whole = scan.is_whole(buffered());
    if (!is_whole) return is_whole.error();
    if (*is_whole) break;
    if (buffered().size() > kMostReplyBytes)
      return Error{ErrorCode::kDataCorrupt, "a Redis reply is too long"};
    if (Result<void> more = read_more(); !more) return more.error();
  }
  Result<std::optional<ParsedReply>> parsed = parse_reply(buffered());
  if (!parsed) return parsed.error();
  if (!*parsed) return Error{ErrorCode::kDataCorrupt, "a Redis reply does not end where it should"};
  begin_ += (*parsed)->bytes;
  return std::move((*parsed)->reply);
}

Result<ReplyHead> RedisConnection::read_head() {
  socket_->begin_message();
  while (true) {
    Result<std::optional<ReplyHead>> head = parse_reply_head(buffered());
    if (!head) return head.error();
    if (*head) {
      begin_ += (*head)->bytes;
      return std::move(**head);
    }
    if (Result<void> more = read_more(); !more) return more.error();
  }
}

Result<void> RedisConnection::read(std::span<std::byte> bytes) {
  size_t from_buffer = std::min(bytes.size(), buffer_.size() - begin_);
  if (from_buffer > 0) std::memcpy(bytes.data(), buffer_.data() + begin_, from_buffer);
  begin_ += from_buffer;
  bytes = bytes.subspan(from_buffer);
  if (bytes.empty()) return {};
  buffer_.resize(kReadBytes);  // it is empty
  begin_ = kReadBytes;
  while (!bytes.empty()) {
    Result<size_t> count = socket_->read(bytes, buffer_);
    if (!count) {
      buffer_.clear();
      begin_ = 0;
      return count.error();
    }
    if (*count > bytes.size()) {
      buffer_.resize(*count - bytes.size());
      begin_ = 0;
      return {};
    }
    bytes = bytes.subspan(*count);
  }
  buffer_.clear();
  begin_ = 0;
  return {};
}

Result<void> RedisConnection::skip(uint64_t bytes) {
  std::vector<std::byte> dropped(std::min<uint64_t>(bytes, kSkipBytes));
  while (bytes > 0) {
    auto step = static_cast<size_t>(std::min<uint64_t>(bytes, dropped.size()));
    if (Result<void> done = read(std::span(dropped).first(step)); !done) return done;
    bytes -= step;
  }
  return {};
}

Result<void> RedisConnection::finish_text() {
  std::array<std::byte, 2> end{};
  if (Result<void> done = read(end); !done) return done;
  if (end[0] != std::byte{'\r'} || end[1] != std::byte{'\n'})
    return Error{ErrorCode::kDataCorrupt, "a Redis reply has a text without its end"};
  return {};
}

}  // namespace droidspeak
