#include "store/tiers/peer_records.h"

#include <cstring>
#include <string>

#include <fmt/format.h>

#include "peer/session.h"

namespace droidspeak {
namespace {

constexpr size_t kTagBytes = 32;
constexpr size_t kMaxAddressBytes = 64;
constexpr char kVersion = 2;

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (std::byte value : bytes) text += fmt::format("{:02x}", std::to_integer<unsigned>(value));
  return text;
}

}  // namespace

PeerNodeId random_node_id() {
  PeerNonce nonce = random_nonce();
  PeerNodeId id;
  std::memcpy(id.data(), nonce.data(), id.size());
  return id;
}

std::optional<size_t> EntrySet::place_of(EntryId id) {
  if (id.layer < 0 || id.layer >= kMaxLayers) return std::nullopt;
  auto layer = static_cast<size_t>(id.layer);
  return id.kind == EntryKind::kKeyValue ? layer : size_t{kMaxLayers} + layer;
}

void EntrySet::add(EntryId id) {
  if (std::optional<size_t> place = place_of(id)) bits_.set(*place);
}

void EntrySet::remove(EntryId id) {
  if (std::optional<size_t> place = place_of(id)) bits_.reset(*place);
}

bool EntrySet::holds(EntryId id) const {
  std::optional<size_t> place = place_of(id);
  return place && bits_.test(*place);
}

std::string EntrySet::text() const {
  std::string text(kTextBytes, '\0');
  for (size_t i = 0; i < bits_.size(); ++i) {
    if (bits_.test(i)) text[i / 8] = static_cast<char>(text[i / 8] | (1 << (i % 8)));
  }
  return text;
}

EntrySet EntrySet::from_text(std::string_view text) {
  EntrySet set;
  for (size_t i = 0; i < set.bits_.size(); ++i)
    set.bits_.set(i, ((static_cast<unsigned char>(text[i / 8]) >> (i % 8)) & 1) != 0);
  return set;
}

PeerRecords::PeerRecords(std::span<const std::byte> secret)
    : key_(hmac_sha256(secret,
                       std::as_bytes(std::span(std::string_view("droidspeak directory"))))) {}

std::string PeerRecords::block_name(const Digest& key) {
  return "droidspeak:peer:block:" + key.hex();
}

std::string PeerRecords::node_name(const PeerNodeId& node) {
  return "droidspeak:peer:node:" + hex(node);
}

// Names have one length for each kind and say which; so no name and content are like another two.
std::string PeerRecords::tag_of(std::string_view name, std::string_view content) const {
  std::string both = std::string(name) + std::string(content);
  auto tag = hmac_sha256(key_, std::as_bytes(std::span(both)));
  return {reinterpret_cast<const char*>(tag.data()), tag.size()};
}

std::optional<std::string_view> PeerRecords::content_of(std::string_view name,
                                                        std::string_view text) const {
  if (text.size() <= kTagBytes) return std::nullopt;
  std::string_view content = text.substr(0, text.size() - kTagBytes);
  if (content.front() != kVersion || tag_of(name, content) != text.substr(content.size()))
    return std::nullopt;
  return content.substr(1);
}

std::string PeerRecords::holding_text(const Digest& key, const PeerHolding& holding) const {
  std::string content(1, kVersion);
  content.append(reinterpret_cast<const char*>(holding.node.data()), holding.node.size());
  content += holding.entries.text();
  return content + tag_of(block_name(key), content);
}

std::optional<PeerHolding> PeerRecords::parse_holding(const Digest& key,
                                                      std::string_view text) const {
  std::optional<std::string_view> content = content_of(block_name(key), text);
  PeerHolding holding;
  if (!content || content->size() != holding.node.size() + EntrySet::kTextBytes)
    return std::nullopt;
  std::memcpy(holding.node.data(), content->data(), holding.node.size());
  holding.entries = EntrySet::from_text(content->substr(holding.node.size()));
  return holding;
}

std::string PeerRecords::lease_text(const PeerNodeId& node, std::string_view address) const {
  std::string content(1, kVersion);
  content += address;
  return content + tag_of(node_name(node), content);
}

std::optional<std::string> PeerRecords::parse_lease(const PeerNodeId& node,
                                                    std::string_view text) const {
  std::optional<std::string_view> content = content_of(node_name(node), text);
  if (!content || content->empty() || content->size() > kMaxAddressBytes) return std::nullopt;
  return std::string(*content);
}

}  // namespace droidspeak
