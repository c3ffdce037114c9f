// What a Redis server may answer, whatever the bytes are: a reply, a need for more, or an error;
// and a remote value's header.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>

#include "redis/reply.h"
#include "redis/slots.h"
#include "store/tiers/remote_value.h"

namespace {

using namespace droidspeak;  // NOLINT(google-build-using-namespace)

const RedisAddress kFrom{"127.0.0.1", 6379};

void parse_stream(std::string_view bytes) {
  while (!bytes.empty()) {
    Result<std::optional<ParsedReply>> parsed = parse_reply(bytes);
    if (!parsed || !*parsed) return;
    if ((*parsed)->bytes == 0 || (*parsed)->bytes > bytes.size()) std::abort();
    (void)parse_cluster_slots((*parsed)->reply, kFrom);
    (void)parse_redirect((*parsed)->reply.text, kFrom);
    bytes.remove_prefix((*parsed)->bytes);
  }
}

// A head is all of a reply but a text and what an array holds.
void parse_head(std::string_view bytes) {
  Result<std::optional<ReplyHead>> head = parse_reply_head(bytes);
  if (!head || !*head) return;
  if ((*head)->bytes > bytes.size()) std::abort();
}

void parse_value(std::span<const std::byte> bytes) {
  BlockEncoding encoding{.layout = {4, 1, 32, DType::kF16}, .input_bytes = 64};
  Result<BlockFileHeader> header = parse_value_header(
      bytes, bytes.size() + sizeof(RemoteValueHead) + 64, {Digest{}, EntryId{}}, encoding);
  if (header && header->entries.empty()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  parse_stream(text);
  parse_head(text);
  parse_value(std::as_bytes(std::span(data, size)));
  return 0;
}
