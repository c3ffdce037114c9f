#include "store/tiers/value_reader.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "store/tiers/int8_codec.h"

namespace droidspeak {
namespace {

// More than any value of ours: a connection that sends more is closed rather than listened to.
constexpr uint64_t kMostSkippedBytes = uint64_t{64} << 20;
constexpr uint64_t kMostUnknownBytes = uint64_t{512} << 20;

void fail_undone(ValueRead& read) {
  read.fail();
  read.wanted.clear();
}

}  // namespace

uint64_t ValueReader::most_value_bytes() const {
  const BlockEncoding& encoding = parts_.encoding;
  if (encoding.layout.num_layers == 0) return kMostUnknownBytes;
  uint64_t most =
      std::max<uint64_t>(encoding.layout.layer_bytes() * kLayersTogether,
                         encoding.input_bytes == 0 ? kMostUnknownBytes : encoding.input_bytes);
  return most + sizeof(RemoteValueHead) + most_value_header_bytes() +
         kLayersTogether * kEntryAlignment;
}

Result<ValueReader::Outcome> ValueReader::read_reply(RedisConnection& connection,
                                                     const RedisAddress& from,
                                                     ValueRead& read) {
  using Kind = RedisReply::Kind;
  auto start = std::chrono::steady_clock::now();
  Result<ReplyHead> head = connection.read_head();
  if (head && read.is_asking && head->kind == Kind::kStatus) head = connection.read_head();
  if (!head) return head.error();
  if (head->kind == Kind::kError) {
    std::optional<RedisRedirect> redirect = parse_redirect(head->text, from);
    if (redirect && read.num_redirects < kMostRedirects) {
      parts_.redirect_read(std::move(read), *redirect);
      return Outcome::kRedirected;
    }
  }
  if (head->kind == Kind::kNull || head->kind == Kind::kError)
    parts_.index.set_gone(read.key, read.wanted.front().id);
  if (head->kind != Kind::kText) {
    bool is_expected = head->kind == Kind::kNull || head->kind == Kind::kError;
    if (!is_expected)
      return Error{ErrorCode::kDataCorrupt, "the answer to GET is neither a text nor nothing"};
    parts_.counters.misses.fetch_add(read.wanted.size(), std::memory_order_relaxed);
    fail_undone(read);
    return Outcome::kMiss;
  }
  EntryId any = read.wanted.front().id;
  value_bytes_ = head->text_bytes;
  left_ = head->text_bytes;
  Result<bool> is_read = read_value(connection, head->text_bytes, read);
  if (!is_read) return is_read.error();
  if (!*is_read) {
    parts_.index.set_damaged(read.key, any);
    parts_.counters.damaged.fetch_add(1, std::memory_order_relaxed);
    if (left_ > kMostSkippedBytes)
      return Error{ErrorCode::kDataCorrupt, "a value is longer than any of ours"};
    if (Result<void> skipped = connection.skip(left_); !skipped) return skipped.error();
  }
  if (Result<void> ended = connection.finish_text(); !ended) return ended.error();
  if (!*is_read) {
    fail_undone(read);
    return Outcome::kMiss;
  }
  RemoteCounters& counters = parts_.counters;
  auto spent = std::chrono::steady_clock::now() - start;
  counters.bytes_read.fetch_add(head->text_bytes, std::memory_order_relaxed);
  counters.read_nanoseconds.fetch_add(static_cast<uint64_t>(spent.count()),
                                      std::memory_order_relaxed);
  return Outcome::kRead;
}

Result<bool> ValueReader::read_value(RedisConnection& connection, uint64_t bytes, ValueRead& read) {
  RemoteValueHead head;
  if (bytes < sizeof(head) || bytes > most_value_bytes()) return false;
  if (Result<void> got = connection.read(std::as_writable_bytes(std::span(&head, 1))); !got)
    return got.error();
  left_ -= sizeof(head);
  if (head.magic != kRemoteValueMagic || head.header_bytes > most_value_header_bytes() ||
      head.header_bytes > left_) {
    return false;
  }
  std::vector<std::byte> header_bytes(head.header_bytes);
  if (Result<void> got = connection.read(header_bytes); !got) return got.error();
  left_ -= header_bytes.size();
  Result<BlockFileHeader> header =
      parse_value_header(header_bytes, bytes, {read.key, read.wanted.front().id}, parts_.encoding);
  if (!header) return false;
  return read_parts(connection, head, header_bytes, *header, read);
}

// Room for what is wanted, scratch memory for what is not, or has to be decoded.
std::vector<ValueReader::Part> ValueReader::make_parts(const BlockFileHeader& header,
                                                       ValueRead& read) {
  std::vector<Part> parts;
  uint64_t scratch_bytes = 0;
  for (const BlockFileEntry& entry : header.entries) {
    Part part{.entry = entry};
    auto wanted = std::ranges::find(read.wanted, entry.id, &ValueRead::Wanted::id);
    if (wanted != read.wanted.end()) {
      part.index = wanted->index;
      if (entry.encoding == EntryEncoding::kCoded)
        part.room = read.sink->room_for_piece(part.index, entry.stored_bytes);
      part.stays_coded = !part.room.empty();
      if (!part.stays_coded) part.room = read.sink->room(part.index, entry.bytes);
    }
    bool goes_straight =
        part.stays_coded || (!part.room.empty() && entry.encoding == EntryEncoding::kRaw);
    if (goes_straight) part.stored = part.room;
    if (!goes_straight) scratch_bytes += entry.stored_bytes;
    parts.push_back(part);
  }
  if (scratch_.size() < scratch_bytes) scratch_.resize(scratch_bytes);
  std::span<std::byte> rest(scratch_);
  for (Part& part : parts) {
    if (!part.stored.empty()) continue;
    part.stored = rest.first(part.entry.stored_bytes);
    rest = rest.subspan(part.entry.stored_bytes);
  }
  return parts;
}

Result<bool> ValueReader::read_parts(RedisConnection& connection,
                                     const RemoteValueHead& head,
                                     std::span<const std::byte> header_bytes,
                                     const BlockFileHeader& header,
                                     ValueRead& read) {
  std::vector<Part> parts = make_parts(header, read);
  ValueSeal::Mac mac = parts_.seal.begin(read.name, head.salt);
  mac.add(header_bytes);
  uint64_t at = header.entries.front().offset;
  for (const Part& part : parts) {
    std::array<std::byte, kEntryAlignment> gap_memory{};
    std::span<std::byte> gap = std::span(gap_memory).first(part.entry.offset - at);
    for (std::span<std::byte> piece : {gap, part.stored}) {
      if (Result<void> got = connection.read(piece); !got) return got.error();
      left_ -= piece.size();
      mac.add(piece);
    }
    at = part.entry.offset + part.entry.stored_bytes;
  }
  if (!is_same_tag(mac.finish(), head.tag)) return false;
  for (const Part& part : parts) {
    if (part.room.empty()) continue;
    settle(header, part, *read.sink);
    std::erase_if(read.wanted,
                  [&](const ValueRead::Wanted& wanted) { return wanted.index == part.index; });
  }
  // What the value does not have would be asked for again and again.
  if (!read.wanted.empty()) {
    parts_.index.set_damaged(read.key, read.wanted.front().id);
    parts_.counters.misses.fetch_add(read.wanted.size(), std::memory_order_relaxed);
  }
  fail_undone(read);
  return true;
}

void ValueReader::settle(const BlockFileHeader& header, const Part& part, ReadSink& sink) const {
  EntryCoding coding;
  Decoded decoded = decode(header, part, coding);
  bool is_there = decoded == Decoded::kRight;
  if (is_there) parts_.counters.hits.fetch_add(1, std::memory_order_relaxed);
  // Tables may come; what is damaged is not asked for again.
  if (decoded == Decoded::kOtherTables) {
    parts_.index.set_gone(header.key, part.entry.id);
    parts_.counters.misses.fetch_add(1, std::memory_order_relaxed);
  } else if (!is_there) {
    parts_.index.set_damaged(header.key, part.entry.id);
    parts_.counters.damaged.fetch_add(1, std::memory_order_relaxed);
  }
  BlockLabel label{header.key, header.owner, header.position};
  if (is_there && part.stays_coded) return sink.done_piece(part.index, label, std::move(coding));
  sink.done(part.index, is_there ? &label : nullptr);
}

ValueReader::Decoded ValueReader::decode(const BlockFileHeader& header,
                                         const Part& part,
                                         EntryCoding& coding) const {
  switch (part.entry.encoding) {
    case EntryEncoding::kRaw:
      return Decoded::kRight;
    case EntryEncoding::kInt8:
      decode_int8(header.layout, part.stored, part.room);
      return Decoded::kRight;
    case EntryEncoding::kCoded:
      return decode_coded(header, part, coding);
  }
  return Decoded::kDamaged;
}

ValueReader::Decoded ValueReader::decode_coded(const BlockFileHeader& header,
                                               const Part& part,
                                               EntryCoding& coding) const {
  std::optional<TablesName> name = tables_of_piece(part.stored);
  if (!name) return Decoded::kDamaged;
  coding = {parts_.tables.find(*name),
            header.layout,
            {part.entry.id.layer, header.position * kBlockTokens}};
  if (!coding.tables || !coding.tables->fit(header.layout)) return Decoded::kOtherTables;
  if (part.stays_coded)
    return check_piece(coding, part.stored) ? Decoded::kRight : Decoded::kDamaged;
  Result<void> decoded =
      decoder_.decode(*coding.tables, coding.layout, coding.label, part.stored, part.room);
  return decoded ? Decoded::kRight : Decoded::kDamaged;
}

}  // namespace droidspeak
