// Reads values off a connection: their entries go straight into the sink's memory, where they lie
// raw, and are the sink's only once the seal is verified.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "codec/kv_codec.h"
#include "redis/connection.h"
#include "store/tiers/remote_work.h"

namespace droidspeak {

class ValueReader {
 public:
  explicit ValueReader(const RemoteParts& parts) : parts_(parts) {}

  enum class Outcome { kRead, kMiss, kRedirected };

  // The reply to GET of this value. An error: the connection is of no use any more. Every entry is
  // done() when it returns, unless the read was sent to another server.
  Result<Outcome> read_reply(RedisConnection& connection,
                             const RedisAddress& from,
                             ValueRead& read);

  // Of the last one that was read.
  uint64_t value_bytes() const { return value_bytes_; }

 private:
  // An entry of the value on its way.
  struct Part {
    BlockFileEntry entry;
    std::span<std::byte> room{};  // empty: not wanted
    std::span<std::byte> stored{};
    size_t index = 0;
    bool stays_coded = false;  // `stored` is the sink's
  };

  // False: damaged, what is left of the value is still to be skipped.
  Result<bool> read_value(RedisConnection& connection, uint64_t bytes, ValueRead& read);
  Result<bool> read_parts(RedisConnection& connection,
                          const RemoteValueHead& head,
                          std::span<const std::byte> header_bytes,
                          const BlockFileHeader& header,
                          ValueRead& read);
  std::vector<Part> make_parts(const BlockFileHeader& header, ValueRead& read);
  enum class Decoded { kRight, kDamaged, kOtherTables };
  Decoded decode(const BlockFileHeader& header, const Part& part, EntryCoding& coding) const;
  Decoded decode_coded(const BlockFileHeader& header, const Part& part, EntryCoding& coding) const;
  void settle(const BlockFileHeader& header, const Part& part, ReadSink& sink) const;
  uint64_t most_value_bytes() const;

  const RemoteParts& parts_;
  const PieceDecoder decoder_{};
  std::vector<std::byte> scratch_;
  uint64_t value_bytes_ = 0;
  uint64_t left_ = 0;  // of the value that is being read
};

}  // namespace droidspeak
