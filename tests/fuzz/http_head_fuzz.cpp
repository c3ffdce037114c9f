// Bytes as a client may send them: a head, and behind it a chunked body. However the bytes are cut,
// the outcome is the same.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "server/chunks.h"
#include "server/request_head.h"

namespace {

using namespace droidspeak;

struct Outcome {
  RequestHead head;
  ChunkDecoder::State state = ChunkDecoder::State::kMore;
  std::string text;
  size_t used = 0;
};

Outcome read(std::string_view bytes, size_t piece_bytes) {
  Outcome outcome;
  HeadLines lines;
  while (outcome.used < bytes.size() && lines.state() == HeadLines::State::kMore)
    outcome.used += lines.add(bytes.substr(outcome.used, piece_bytes));
  outcome.head = lines.parse();
  if (outcome.head.framing.kind != BodyFraming::Kind::kChunked) return outcome;
  ChunkDecoder decoder(4096);
  while (outcome.used < bytes.size() && decoder.state() == ChunkDecoder::State::kMore)
    outcome.used += decoder.add(bytes.substr(outcome.used, piece_bytes), outcome.text);
  outcome.state = decoder.state();
  return outcome;
}

void check_head(const RequestHead& head) {
  if (head.status != 200) {
    check(!head.problem.empty(), "a head was refused without a reason");
    return;
  }
  check(!head.request.method.empty() && !head.request.path.empty(), "a head without request line");
  for (const auto& [name, value] : head.request.headers) {
    bool is_clean = std::ranges::none_of(
        name + value, [](char c) { return c == '\r' || c == '\n' || c == '\0'; });
    check(is_clean, "a header with a line end");
    check(std::ranges::none_of(name, [](char c) { return c >= 'A' && c <= 'Z'; }),
          "a header name in upper case");
  }
  bool has_host = head.request.headers.contains("host");
  check(has_host || head.version == RequestHead::Version::kHttp10, "a head without host");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view bytes(reinterpret_cast<const char*>(data), size);
  Outcome whole = read(bytes, bytes.size() + 1);
  check_head(whole.head);
  check(whole.text.size() <= 4096, "a body over its limit");
  Outcome pieces = read(bytes, 1 + size % 7);
  check(whole.head.status == pieces.head.status && whole.head.problem == pieces.head.problem,
        "a head that depends on how it was cut");
  check(whole.head.request.headers == pieces.head.request.headers,
        "headers that depend on how they were cut");
  check(whole.state == pieces.state, "a body that depends on how it was cut");
  bool is_done = whole.state == ChunkDecoder::State::kDone;
  check(!is_done || (whole.text == pieces.text && whole.used == pieces.used),
        "the text of a body depends on how it was cut");
  return 0;
}
