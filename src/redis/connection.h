// One connection to a Redis server: commands are sent ahead of their replies, in whatever number.
// After an error it is of no use any more. One thread at a time, but for shut_down().
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "redis/address.h"
#include "redis/reply.h"
#include "redis/socket.h"

namespace droidspeak {

class RedisConnection {
 public:
  // Connects and logs in. kInvalidArgument when the server does not take user and password.
  static Result<std::unique_ptr<RedisConnection>> open(const RedisAddress& address,
                                                       const RedisServers& servers,
                                                       const TlsClient* tls,
                                                       const StreamLimits& limits);

  Result<void> send(std::string_view commands);
  // Pieces of commands one behind the other; not copied.
  Result<void> send(std::span<const std::span<const std::byte>> pieces);

  // See StreamLimits; for what is read from now on.
  void set_wanted(std::function<bool()> is_wanted) { socket_->set_wanted(std::move(is_wanted)); }

  // A whole reply, of 1 MiB at most.
  Result<RedisReply> read_reply();

  // The same in steps, for values that go straight to where they belong: the head; for kText its
  // text_bytes with read() and skip(), then finish_text().
  Result<ReplyHead> read_head();
  Result<void> read(std::span<std::byte> bytes);
  Result<void> skip(uint64_t bytes);
  Result<void> finish_text();

  // False: the server has closed it, or says what it was not asked.
  bool is_quiet() const { return begin_ == buffer_.size() && socket_->is_quiet(); }

  void shut_down() { socket_->shut_down(); }

 private:
  explicit RedisConnection(std::unique_ptr<StreamSocket> socket) : socket_(std::move(socket)) {}

  std::string_view buffered() const;
  Result<void> read_more();
  Result<void> log_in(const RedisServers& servers);

  std::unique_ptr<StreamSocket> socket_;
  std::vector<std::byte> buffer_;  // bytes from begin_ on have been received and not read yet
  size_t begin_ = 0;
};

}  // namespace droidspeak
