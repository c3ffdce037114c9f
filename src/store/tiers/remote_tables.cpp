#include "store/tiers/remote_tables.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

namespace droidspeak {
namespace {

constexpr std::array<char, 4> kMagic = {'D', 'S', 'T', '1'};
constexpr size_t kMaxBytes = size_t{64} << 20;
constexpr size_t kMaxKnown = 16;  // tables of a family that changes its mind more often are lost
constexpr size_t kBeginBytes = sizeof(RemoteValueHead);

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

RemoteTables::RemoteTables(CodedModel model, const KvLayout& layout, const ValueSeal& seal)
    : model_(std::move(model)), layout_(layout), seal_(seal), learner_(model_, layout) {
  if (!learner_.can_learn() || model_.base == Digest{}) return;
  // Who has another secret could not read these.
  std::string owner = digest_with_rotation(model_).hex();
  SealTag tag = seal_.begin(owner, {}).finish();
  name_ = fmt::format("ds1:tables:v{}:{}:", kTablesVersion, owner);
  for (std::byte byte : std::span(tag).first(4))
    name_ += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
}

std::shared_ptr<const CodecTables> RemoteTables::for_writing(
    std::span<const std::shared_ptr<PendingWrite>> batch) {
  if (name_.empty()) return nullptr;
  {
    MutexLock lock(mutex_);
    if (at_server_) return at_server_;
    if (learned_) return nullptr;
  }
  learner_.remember(batch);
  if (learner_.has_seen_enough()) learn();
  return nullptr;
}

void RemoteTables::learn() {
  Result<CodecTables> learned = learner_.learn();
  if (!learned) return spdlog::debug("remote cache: no codec tables: {}", learned.error().message);
  auto tables = std::make_shared<const CodecTables>(std::move(*learned));
  MutexLock lock(mutex_);
  learned_ = std::move(tables);
  has_news_ = true;
}

std::shared_ptr<const CodecTables> RemoteTables::find(const TablesName& name) {
  MutexLock lock(mutex_);
  auto known = known_.find(name);
  if (known != known_.end()) return known->second;
  has_news_ = true;
  return nullptr;
}

// Head, and tables as they are serialised; the tag is over the latter.
std::vector<std::byte> RemoteTables::close(const CodecTables& tables) const {
  std::vector<std::byte> bytes = tables.serialise();
  RemoteValueHead head{.magic = kMagic, .header_bytes = static_cast<uint32_t>(bytes.size())};
  head.salt = random_salt();
  ValueSeal::Mac mac = seal_.begin(name_, head.salt);
  mac.add(bytes);
  head.tag = mac.finish();
  auto start = std::as_bytes(std::span(&head, 1));
  bytes.insert(bytes.begin(), start.begin(), start.end());
  return bytes;
}

RemoteTables::Known RemoteTables::open(std::span<const std::byte> value) const {
  RemoteValueHead head;
  static_assert(sizeof head == kBeginBytes);
  if (value.size() < sizeof head) return nullptr;
  std::memcpy(&head, value.data(), sizeof head);
  std::span<const std::byte> bytes = value.subspan(sizeof head);
  if (head.magic != kMagic || head.header_bytes != bytes.size()) return nullptr;
  ValueSeal::Mac mac = seal_.begin(name_, head.salt);
  mac.add(bytes);
  if (!is_same_tag(mac.finish(), head.tag)) return nullptr;
  Result<CodecTables> parsed = CodecTables::parse(bytes);
  if (!parsed || !parsed->fit(layout_) || parsed->contents().rotation != model_.rotation)
    return nullptr;
  return std::make_shared<const CodecTables>(std::move(*parsed));
}

// Nothing: it is not there, or not to be had. Of a value that is too large only the beginning is
// taken, which no seal fits: it is replaced like any damaged one.
Result<std::optional<std::vector<std::byte>>> RemoteTables::get(RedisConnection& connection) const {
  std::string command;
  append_command(command, {"GETRANGE", name_, "0", fmt::format("{}", kMaxBytes - 1)});
  if (Result<void> sent = connection.send(command); !sent) return sent.error();
  Result<ReplyHead> head = connection.read_head();
  if (!head) return head.error();
  if (head->kind != RedisReply::Kind::kText) return std::optional<std::vector<std::byte>>();
  if (head->text_bytes > kMaxBytes)
    return Error{ErrorCode::kDataCorrupt, "codec tables: more was sent than asked for"};
  std::vector<std::byte> value(head->text_bytes);
  if (Result<void> got = connection.read(value); !got) return got.error();
  if (Result<void> ended = connection.finish_text(); !ended) return ended.error();
  if (value.empty()) return std::optional<std::vector<std::byte>>();
  return std::optional(std::move(value));
}

Result<void> RemoteTables::put(RedisConnection& connection,
                               const CodecTables& tables,
                               Replace replace) const {
  std::vector<std::byte> value = close(tables);
  std::string command;
  if (replace == Replace::kYes) {
    append_command(command, {"SET", name_, text_of(value)});
  } else {
    append_command(command, {"SET", name_, text_of(value), "NX"});
  }
  if (Result<void> sent = connection.send(command); !sent) return sent.error();
  if (Result<RedisReply> reply = connection.read_reply(); !reply) return reply.error();
  return {};
}

Result<bool> RemoteTables::take(RedisConnection& connection) {
  Result<std::optional<std::vector<std::byte>>> value = get(connection);
  if (!value) return value.error();
  Known tables = *value ? open(**value) : nullptr;
  if (!tables) return false;
  MutexLock lock(mutex_);
  seen_ = text_of(std::span(**value).first(kBeginBytes));
  if (known_.size() >= kMaxKnown) known_.clear();
  known_[name_of_tables(tables->digest())] = tables;
  at_server_ = std::move(tables);
  learned_ = nullptr;
  return true;
}

Result<void> RemoteTables::exchange(RedisConnection& connection) {
  if (name_.empty()) return {};
  bool had_news = has_news_.exchange(false);
  std::string command;
  append_command(command, {"GETRANGE", name_, "0", std::to_string(kBeginBytes - 1)});
  if (Result<void> sent = connection.send(command); !sent) return sent.error();
  Result<RedisReply> begin = connection.read_reply();
  if (!begin || begin->kind != RedisReply::Kind::kText) {  // refused, or another server's
    if (had_news) has_news_ = true;
    return begin ? Result<void>() : begin.error();
  }
  Known own;
  {
    MutexLock lock(mutex_);
    if (!begin->text.empty() && begin->text == seen_) return {};
    own = learned_ ? learned_ : at_server_;
  }
  bool is_there = !begin->text.empty();
  if (is_there) {
    Result<bool> is_taken = take(connection);
    if (!is_taken) return is_taken.error();
    if (*is_taken) return {};
  }
  if (!own) return {};
  // Another may have been faster: then its tables are the ones.
  Result<void> stored = put(connection, *own, is_there ? Replace::kYes : Replace::kNo);
  if (!stored) return stored;
  Result<bool> is_taken = take(connection);
  return is_taken ? Result<void>() : is_taken.error();
}

}  // namespace droidspeak
