// Decodes a chunked body from bytes as they come.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace droidspeak {

class ChunkDecoder {
 public:
  static constexpr size_t kMaxLineBytes = size_t{8} << 10;        // a chunk's line; all trailers
  static constexpr size_t kMaxExtensionBytes = size_t{16} << 10;  // of all chunks together

  explicit ChunkDecoder(size_t max_bytes);  // of the decoded body
  ~ChunkDecoder();
  ChunkDecoder(const ChunkDecoder&) = delete;
  ChunkDecoder& operator=(const ChunkDecoder&) = delete;

  enum class State { kMore, kDone, kTooLarge, kInvalid };

  // Appends what `bytes` carry to `text`. Returns how many of them were taken: all, unless the body
  // ended before them or is refused. May be called as long as state() is kMore.
  size_t add(std::string_view bytes, std::string& text);

  State state() const;
  std::string problem() const;  // kInvalid

 private:
  class Parser;
  std::unique_ptr<Parser> parser_;
};

}  // namespace droidspeak
