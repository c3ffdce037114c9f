#include "store/tiers/peer_tier.h"

#include <cstring>
#include <map>
#include <utility>

#include "base/error.h"
#include "store/tiers/remote_value.h"

namespace droidspeak {
namespace {

// A read that is not stalled may take long: whoever waits for it gives it up.
constexpr std::chrono::minutes kDeadline{2};
// Read so often from a node that was not known, to see how fast it is: a reply on a slow link takes
// less than the stall time, and the first ones tell already.
constexpr size_t kProbeBytes = size_t{64} << 10;
constexpr int kProbes = 8;
constexpr size_t kLikelyBytes = size_t{64} << 10;  // of an entry whose size is not known

// What is said of an entry before its bytes.
struct EntryHead {
  static constexpr size_t kBytes = 36;

  Digest owner;
  uint32_t position = 0;
};

PeerKey key_of(const Digest& key, EntryId id) {
  PeerKey name;
  auto kind = static_cast<uint32_t>(id.kind);
  std::memcpy(name.bytes.data(), key.bytes.data(), 32);
  std::memcpy(name.bytes.data() + 32, &kind, sizeof kind);
  std::memcpy(name.bytes.data() + 36, &id.layer, sizeof id.layer);
  return name;
}

PeerKey probe_key() {
  PeerKey key;
  key.bytes.fill(std::byte{0xff});
  return key;
}

// No node has it: a short answer, which tells how far away it is.
PeerKey missing_key() {
  PeerKey key = probe_key();
  key.bytes.back() = std::byte{0xfe};
  return key;
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The link's figures are its result.
class ProbeSink final : public PeerReadSink {
 public:
  explicit ProbeSink(std::shared_ptr<const void> meeting) : meeting_(std::move(meeting)) {}

  void done(size_t /*index*/,
            PeerReadStatus /*status*/,
            std::span<const std::byte> /*bytes*/) override {
    meeting_.reset();
  }

 private:
  std::shared_ptr<const void> meeting_;  // lasts until all probes are done
};

}  // namespace

void check_peer_options(const PeerOptions& options) {
  if (options.directory.empty()) {
    throw Failure(ErrorCode::kInvalidArgument,
                  "--peer-listen " + options.listen +
                      " needs --remote-cache: the directory of who has what is in Redis");
  }
  if (options.secret.empty()) {
    throw Failure(ErrorCode::kInvalidArgument,
                  "--peer-listen " + options.listen +
                      " needs --remote-secret-file: peers must know each other");
  }
  require_poly1305();
}

// Entries of one node that were asked for, on their way into the store's memory.
class PeerTier::Reading final : public PeerReadSink {
 public:
  Reading(PeerTier& tier, std::shared_ptr<ReadSink> sink) : tier_(tier), sink_(std::move(sink)) {}

  void add(const EntryRead& entry, size_t index) {
    entries_.push_back(entry);
    indices_.push_back(index);
    items_.push_back(
        {key_of(entry.key, entry.id), tier_.sizes_.size_of(entry.id).value_or(kLikelyBytes)});
  }

  std::vector<PeerReadItem> take_items() { return std::exchange(items_, {}); }

  void done(size_t index, PeerReadStatus status, std::span<const std::byte> bytes) override {
    const EntryRead& entry = entries_[index];
    std::optional<BlockLabel> label;
    if (status == PeerReadStatus::kHere) label = take(entry, indices_[index], bytes);
    if (label) {
      tier_.num_hits_.fetch_add(1, std::memory_order_relaxed);
      tier_.num_bytes_.fetch_add(bytes.size() - EntryHead::kBytes, std::memory_order_relaxed);
    } else {
      tier_.num_misses_.fetch_add(1, std::memory_order_relaxed);
      tier_.index_.set_gone(entry.key, entry.id);
    }
    sink_->done(indices_[index], label ? &*label : nullptr);
  }

 private:
  std::optional<BlockLabel> take(const EntryRead& entry,
                                 size_t index,
                                 std::span<const std::byte> bytes) {
    if (bytes.size() < EntryHead::kBytes || !sink_->is_wanted()) return std::nullopt;
    BlockLabel label{.key = entry.key};
    std::memcpy(label.owner.bytes.data(), bytes.data(), label.owner.bytes.size());
    std::memcpy(&label.position, bytes.data() + label.owner.bytes.size(), sizeof label.position);
    bytes = bytes.subspan(EntryHead::kBytes);
    std::span<std::byte> room = sink_->room(index, bytes.size());
    if (room.size() != bytes.size()) return std::nullopt;
    if (!bytes.empty()) std::memcpy(room.data(), bytes.data(), bytes.size());
    return label;
  }

  PeerTier& tier_;
  const std::shared_ptr<ReadSink> sink_;
  std::vector<EntryRead> entries_;
  std::vector<size_t> indices_;
  std::vector<PeerReadItem> items_;
};

PeerTier::PeerTier(const PeerOptions& options, const HostTier& host, const BlockEncoding& sizes)
    : options_(options), host_(host), sizes_(sizes), index_(random_node_id()) {
  check_peer_options(options);
  std::string secret = text_of(options.secret);
  server_ =
      std::make_unique<PeerServer>(PeerServerOptions{.listen = options.listen, .secret = secret},
                                   [this](const PeerKey& key) { return find_for_others(key); });
  client_ = std::make_unique<PeerClient>(PeerClientOptions{.secret = secret,
                                                           .own_address = server_->address(),
                                                           .connect_deadline = options.stall,
                                                           .stall = options.stall,
                                                           .first_rest = options.first_pause,
                                                           .longest_rest = options.longest_pause});
  directory_ = std::make_unique<PeerDirectory>(
      PeerDirectoryParts{.options = options_,
                         .holdings = holdings_,
                         .index = index_,
                         .node = index_.own(),
                         .address = server_->address(),
                         .on_node = [this](const std::string& node) { meet(node); }});
}

PeerTier::~PeerTier() {
  close({});
}

void PeerTier::close(std::chrono::milliseconds /*stall*/) {
  directory_.reset();
  client_.reset();
  server_.reset();
}

void PeerTier::look_up(std::span<const Digest> keys,
                       std::span<const EntryId> wanted,
                       std::span<Presence> found) const {
  index_.look_up(keys, wanted, found, std::chrono::steady_clock::now());
}

void PeerTier::ask(std::span<const Digest> keys, std::span<const EntryId> /*wanted*/) {
  directory_->ask(keys);
}

void PeerTier::wait_for_answers(std::span<const Digest> keys,
                                std::span<const EntryId> /*wanted*/,
                                std::chrono::steady_clock::time_point until) {
  directory_->wait_for_answers(keys, until);
  if (!meetings_->are_under_way()) return;
  for (const auto& [node, blocks] : index_.count_by_address(keys, std::chrono::steady_clock::now()))
    meetings_->wait_for(node, until);
}

void PeerTier::read(std::vector<EntryRead> entries, std::shared_ptr<ReadSink> sink) {
  auto now = std::chrono::steady_clock::now();
  std::map<std::string, std::shared_ptr<Reading>> by_node;
  for (size_t i = 0; i < entries.size(); ++i) {
    std::optional<std::string> address = index_.address_of(entries[i].key, entries[i].id, now);
    std::shared_ptr<Reading>& reading = by_node[address.value_or("")];
    if (reading == nullptr) reading = std::make_shared<Reading>(*this, sink);
    reading->add(entries[i], i);
  }
  for (const auto& [address, reading] : by_node) {
    std::vector<PeerReadItem> items = reading->take_items();
    if (!address.empty()) {
      client_->read(address, std::move(items), kDeadline, reading);
      continue;
    }
    for (size_t i = 0; i < items.size(); ++i) reading->done(i, PeerReadStatus::kMissing, {});
  }
}

void PeerTier::meet(const std::string& address) {
  for (const PeerLink& link : client_->links()) {
    if (link.address == address && link.is_connected && link.bytes_per_second > 0) return;
  }
  std::shared_ptr<const void> meeting = meetings_->begin(address);
  auto probe = [&](const PeerReadItem& item) {
    client_->read(address, {item}, options_.stall * 4, std::make_shared<ProbeSink>(meeting));
  };
  probe({missing_key(), 0});
  for (int i = 0; i < kProbes; ++i) probe({probe_key(), kProbeBytes});
}

void PeerTier::write(const BlockLabel& label, std::vector<PendingEntry> entries) {
  holdings_.add(label, entries);
  directory_->publish(label.key);
}

std::optional<PeerEntry> PeerTier::find_for_others(const PeerKey& name) const {
  if (name == probe_key()) {
    static const std::vector<std::byte> kProbe(kProbeBytes);
    return PeerEntry{.bytes = kProbe};
  }
  Digest key;
  EntryId id;
  uint32_t kind = 0;
  std::memcpy(key.bytes.data(), name.bytes.data(), 32);
  std::memcpy(&kind, name.bytes.data() + 32, sizeof kind);
  std::memcpy(&id.layer, name.bytes.data() + 36, sizeof id.layer);
  id.kind = static_cast<EntryKind>(kind);
  if (id.kind != EntryKind::kKeyValue && id.kind != EntryKind::kLayerInput) return std::nullopt;
  std::optional<BlockLabel> label = holdings_.find(key, id);
  std::optional<HostEntry> found = label ? host_.find_values(key, id) : std::nullopt;
  if (!found) return std::nullopt;
  PeerEntry entry{
      .head_bytes = EntryHead::kBytes, .bytes = found->bytes, .owner = std::move(found->owner)};
  std::memcpy(entry.head.data(), label->owner.bytes.data(), 32);
  std::memcpy(entry.head.data() + 32, &label->position, sizeof label->position);
  return entry;
}

void PeerTier::erase(const Digest& key) {
  holdings_.remove(key);
  index_.forget(key);
}

void PeerTier::erase_owned_by(const Digest& owner) {
  holdings_.remove_owned_by(owner);
  // Whose the others' blocks are is not known here.
  index_.forget_all();
}

void PeerTier::clear() {
  holdings_.clear();
  index_.forget_all();
}

void PeerTier::drain() {
  directory_->drain();
}

std::optional<LinkCost> PeerTier::cost_of(const TierReport& report,
                                          std::span<const Digest> keys) const {
  return link_cost(report, index_.count_by_address(keys, std::chrono::steady_clock::now()));
}

TierReport PeerTier::report() const {
  TierReport report{.tier = Tier::kPeer,
                    .hits = num_hits_.load(),
                    .misses = num_misses_.load(),
                    .bytes_read = num_bytes_.load(),
                    .entries = index_.num_blocks()};
  if (server_ != nullptr) report.bytes_written = server_->counters().bytes;
  if (client_ == nullptr) return report;
  for (const PeerLink& link : client_->links()) {
    report.damaged += link.refused;
    report.links.push_back({.address = link.address,
                            .is_up = link.is_connected,
                            .round_trip_seconds = link.round_trip_seconds,
                            .bytes_per_second = link.bytes_per_second,
                            .queued_bytes = link.queued_bytes,
                            .failures = link.failures});
  }
  return report;
}

}  // namespace droidspeak
