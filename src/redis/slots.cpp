#include "redis/slots.h"

#include <charconv>

namespace droidspeak {
namespace {

// CRC16 of XMODEM: polynomial 0x1021, from 0.
constexpr std::array<uint16_t, 256> make_table() {
  std::array<uint16_t, 256> table{};
  for (size_t i = 0; i < table.size(); ++i) {
    auto value = static_cast<uint16_t>(i << 8);
    for (int bit = 0; bit < 8; ++bit) {
      auto shifted = static_cast<uint16_t>(value << 1);
      value = (value & 0x8000) != 0 ? static_cast<uint16_t>(shifted ^ 0x1021) : shifted;
    }
    table[i] = value;
  }
  return table;
}

constexpr std::array<uint16_t, 256> kTable = make_table();

uint16_t crc16(std::string_view text) {
  uint16_t crc = 0;
  for (char c : text) {
    auto byte = static_cast<uint8_t>(c);
    crc = static_cast<uint16_t>((crc << 8) ^ kTable[((crc >> 8) ^ byte) & 0xff]);
  }
  return crc;
}

std::optional<uint16_t> parse_slot(std::string_view text) {
  uint32_t slot = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), slot);
  bool is_slot = error == std::errc() && end == text.data() + text.size() && slot < kRedisSlots;
  return is_slot ? std::optional(static_cast<uint16_t>(slot)) : std::nullopt;
}

}  // namespace

uint16_t redis_slot(std::string_view key) {
  size_t open = key.find('{');
  if (open != std::string_view::npos) {
    size_t close = key.find('}', open + 1);
    if (close != std::string_view::npos && close > open + 1)
      key = key.substr(open + 1, close - open - 1);
  }
  return crc16(key) % kRedisSlots;
}

std::optional<RedisRedirect> parse_redirect(std::string_view error, const RedisAddress& from) {
  RedisRedirect redirect;
  if (error.starts_with("MOVED ")) {
    error.remove_prefix(6);
  } else if (error.starts_with("ASK ")) {
    redirect.kind = RedisRedirect::Kind::kAsk;
    error.remove_prefix(4);
  } else {
    return std::nullopt;
  }
  size_t space = error.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  std::optional<uint16_t> slot = parse_slot(error.substr(0, space));
  std::string where(error.substr(space + 1));
  size_t colon = where.rfind(':');
  if (colon == 0) where.insert(0, from.text().substr(0, from.text().rfind(':')));
  // IPv6 comes without brackets here.
  colon = where.rfind(':');
  if (colon != std::string::npos && where.find(':') != colon && !where.starts_with('['))
    where = "[" + where.substr(0, colon) + "]" + where.substr(colon);
  Result<RedisAddress> address = parse_redis_address(where);
  if (!slot || !address) return std::nullopt;
  redirect.slot = *slot;
  redirect.address = *address;
  return redirect;
}

Result<std::vector<RedisSlotRange>> parse_cluster_slots(const RedisReply& reply,
                                                        const RedisAddress& from) {
  Error bad{ErrorCode::kDataCorrupt, "the answer to CLUSTER SLOTS is none"};
  if (reply.kind != RedisReply::Kind::kArray) return bad;
  std::vector<RedisSlotRange> ranges;
  std::vector<bool> is_taken(kRedisSlots);  // no two servers have the same
  for (const RedisReply& item : reply.items) {
    using Kind = RedisReply::Kind;
    if (item.kind != Kind::kArray || item.items.size() < 3) return bad;
    const RedisReply& first = item.items[0];
    const RedisReply& last = item.items[1];
    const RedisReply& node = item.items[2];
    if (first.kind != Kind::kInteger || last.kind != Kind::kInteger || node.kind != Kind::kArray)
      return bad;
    if (node.items.size() < 2 || node.items[1].kind != Kind::kInteger) return bad;
    int64_t port = node.items[1].integer;
    bool is_range = first.integer >= 0 && first.integer <= last.integer &&
                    last.integer < static_cast<int64_t>(kRedisSlots);
    if (!is_range || port < 1 || port > 65535) return bad;
    for (int64_t slot = first.integer; slot <= last.integer; ++slot) {
      if (is_taken[static_cast<size_t>(slot)]) return bad;
      is_taken[static_cast<size_t>(slot)] = true;
    }
    RedisAddress master{node.items[0].text, static_cast<uint16_t>(port)};
    if (master.host.empty()) master.host = from.host;
    if (!parse_redis_address(master.text())) return bad;
    ranges.push_back({static_cast<uint16_t>(first.integer), static_cast<uint16_t>(last.integer),
                      std::move(master)});
  }
  if (ranges.empty()) return bad;
  return ranges;
}

}  // namespace droidspeak
