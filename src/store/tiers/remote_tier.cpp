#include "store/tiers/remote_tier.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "base/check.h"
#include "base/error.h"
#include "base/file.h"

namespace droidspeak {
namespace {

constexpr size_t kLeastSecretBytes = 16;
constexpr uint64_t kBatchBytes = uint64_t{16} << 20;
constexpr std::chrono::seconds kMostClosing{2};
constexpr std::chrono::seconds kMostDraining{10};
constexpr std::chrono::seconds kDrainStall{6};  // more than a write may stand still
constexpr std::chrono::milliseconds kDrainLook{50};
constexpr uint64_t kUnknownBytes = uint64_t{1} << 20;

std::unique_ptr<TlsClient> tls_client(const RemoteOptions& options) {
  if (options.servers.transport == RedisTransport::kPlain) return nullptr;
  return std::make_unique<TlsClient>(options.servers.ca_file);
}

}  // namespace

std::vector<std::byte> read_remote_secret(const std::filesystem::path& file) {
  require_poly1305();
  std::string text = read_file(file);
  if (text.size() < kLeastSecretBytes) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{}: a secret of {} bytes; it takes {} or more, the same on all "
                              "machines: head -c 32 /dev/urandom > FILE",
                              file.string(), text.size(), kLeastSecretBytes));
  }
  auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

RemoteTier::RemoteTier(const RemoteOptions& options,
                       const RemoteStorage& storage,
                       const BlockEncoding& sizes,
                       const Clock& clock)
    : options_(options),
      encoding_(sizes),
      tls_(tls_client(options)),
      seal_(options.secret),
      tables_(storage.coded_model, sizes.layout, seal_),
      parts_{.options = options_,
             .tls = tls_.get(),
             .seal = seal_,
             .encoding = encoding_,
             .index = index_,
             .tables = tables_,
             .counters = counters_,
             .redirect_read =
                 [this](ValueRead read, const RedisRedirect& redirect) {
                   redirect_read(std::move(read), redirect);
                 },
             .redirect_question =
                 [this](ValueQuestion question, const RedisRedirect& redirect) {
                   redirect_question(std::move(question), redirect);
                 },
             .learn_slots =
                 [this](const std::vector<RedisSlotRange>& ranges) { nodes_.learn_slots(ranges); },
             .on_answer = [this] { on_answer(); },
             .on_lost = [this] { on_lost(); },
             .misses_an_owner = [this] { return nodes_.misses_an_owner(); }},
      threads_(clock),
      nodes_(parts_, threads_),
      queue_(storage.queue_bytes, clock),
      writer_(
          parts_,
          [this](const std::string& name) { return nodes_.node_of(name); },
          [this](const RedisRedirect& redirect) { return nodes_.follow(redirect); }) {
  if (options_.secret.size() < kLeastSecretBytes) {
    throw Failure(ErrorCode::kInvalidArgument,
                  "a remote cache needs a secret of 16 bytes or more (--remote-secret-file)");
  }
}

RemoteTier::~RemoteTier() = default;

void RemoteTier::start(std::shared_ptr<const void> owner) {
  threads_.start(owner, [this] { run_writer(); });
  nodes_.start(std::move(owner));
}

void RemoteTier::close(std::chrono::milliseconds stall) {
  queue_.close();
  auto num_steps = [this] { return counters_.num_steps.load(std::memory_order_relaxed); };
  uint64_t seen = num_steps();
  auto last_step = std::chrono::steady_clock::now();
  // What is queued goes out first, as long as it does go.
  const auto until = last_step + kMostClosing;
  while (!queue_.is_done() && std::chrono::steady_clock::now() < until &&
         std::chrono::steady_clock::now() - last_step < stall) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    if (uint64_t steps = num_steps(); steps != seen) {
      seen = steps;
      last_step = std::chrono::steady_clock::now();
    }
  }
  queue_.abandon();
  nodes_.close();
  threads_.end(stall, num_steps);
}

void RemoteTier::redirect_read(ValueRead read, const RedisRedirect& redirect) {
  Node node = nodes_.follow(redirect);
  if (node == nullptr) return read.fail();
  ++read.num_redirects;
  read.is_asking = redirect.kind == RedisRedirect::Kind::kAsk;
  if (!read.is_asking) node->refresh_slots();
  node->read(std::move(read));
}

void RemoteTier::redirect_question(ValueQuestion question, const RedisRedirect& redirect) {
  Node node = nodes_.follow(redirect);
  if (node == nullptr) {
    for (EntryId id : question.question.values) index_.set_gone(question.question.key, id);
    return on_answer();
  }
  ++question.num_redirects;
  question.is_asking = redirect.kind == RedisRedirect::Kind::kAsk;
  if (!question.is_asking) node->refresh_slots();
  node->ask(std::move(question));
}

// Of a cluster the others say who takes its place.
void RemoteTier::on_lost() {
  index_.forget_all();
  nodes_.refresh_slots();
}

void RemoteTier::look_up(std::span<const Digest> keys,
                         std::span<const EntryId> wanted,
                         std::span<Presence> found) const {
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i] != Presence::kHit && pin(keys[i / wanted.size()], wanted[i % wanted.size()]))
      found[i] = Presence::kHit;
  }
  index_.look_up(keys, wanted, found);
}

void RemoteTier::ask(std::span<const Digest> keys, std::span<const EntryId> wanted) {
  if (!nodes_.is_any_up()) return;
  std::vector<RemoteQuestion> questions =
      index_.questions(keys, wanted, std::chrono::steady_clock::now());
  for (RemoteQuestion& question : questions) {
    Node node = nodes_.node_of(remote_name(question.key, question.values.front()));
    if (node != nullptr) {
      node->ask({std::move(question)});
      continue;
    }
    for (EntryId id : question.values) index_.set_gone(question.key, id);
    on_answer();
  }
}

void RemoteTier::on_answer() {
  MutexLock lock(answers_mutex_);
  answered_.notify_all();
}

void RemoteTier::wait_for_answers(std::span<const Digest> keys,
                                  std::span<const EntryId> wanted,
                                  std::chrono::steady_clock::time_point until) {
  MutexLock lock(answers_mutex_);
  while (true) {
    keys = keys.subspan(index_.num_known(keys, wanted));
    auto now = std::chrono::steady_clock::now();
    if (keys.empty() || now >= until) return;
    answered_.wait_for(answers_mutex_, until - now);
  }
}

std::optional<PinnedEntry> RemoteTier::pin(const Digest& key, EntryId id) const {
  std::optional<PendingEntry> found = queue_.find(key, id);
  if (!found) return std::nullopt;
  return PinnedEntry(std::move(found->owner), found->bytes, Tier::kHost);
}

uint64_t RemoteTier::bytes_of(EntryId id) const {
  bool is_kv = id.kind == EntryKind::kKeyValue;
  if (is_kv && encoding_.layout.num_layers > 0) return encoding_.layout.layer_bytes();
  if (!is_kv && encoding_.input_bytes > 0) return encoding_.input_bytes;
  return kUnknownBytes;
}

// One read for each value, in the order in which the first of its entries is wanted.
void RemoteTier::read(std::vector<EntryRead> entries, std::shared_ptr<ReadSink> sink) {
  std::vector<ValueRead> reads;
  std::map<EntryRead, size_t> by_value;
  for (size_t i = 0; i < entries.size(); ++i) {
    const EntryRead& entry = entries[i];
    auto [found, is_new] =
        by_value.try_emplace({entry.key, first_of_value(entry.id)}, reads.size());
    if (is_new)
      reads.push_back(
          {.name = remote_name(entry.key, entry.id), .key = entry.key, .wanted = {}, .sink = sink});
    ValueRead& read = reads[found->second];
    read.wanted.push_back({i, entry.id});
    read.bytes += bytes_of(entry.id);
  }
  for (ValueRead& read : reads) {
    Node node = nodes_.node_of(read.name);
    if (node == nullptr) {
      read.fail();
    } else {
      node->read(std::move(read));
    }
  }
}

bool RemoteTier::has_room_to_write(uint64_t bytes) const {
  return nodes_.is_any_up() && queue_.has_room(bytes);
}

void RemoteTier::write(const BlockLabel& label, std::vector<PendingEntry> entries) {
  bool is_resting = std::chrono::steady_clock::now() < writer_.rests_until();
  if (is_resting || !nodes_.is_any_up() || !queue_.push(label, std::move(entries)))
    count_dropped_write();
}

void RemoteTier::count_dropped_write() {
  counters_.dropped_writes.fetch_add(1, std::memory_order_relaxed);
}

void RemoteTier::run_writer() {
  while (true) {
    DiskWork work = queue_.take(kBatchBytes);
    if (work.is_empty()) return;
    writer_.remove(work.removals);
    using Haste = RemoteWriter::Haste;
    writer_.write(work.writes, queue_.is_more_than_half_full() ? Haste::kYes : Haste::kNo);
    counters_.num_steps.fetch_add(1, std::memory_order_relaxed);
    queue_.done(std::move(work));
  }
}

void RemoteTier::erase(const Digest& key) {
  queue_.cancel(key);
  queue_.push_removals(index_.remove(key));
}

void RemoteTier::erase_owned_by(const Digest& owner) {
  queue_.cancel_owned_by(owner);
  queue_.push_removals(index_.remove_owned_by(owner));
}

void RemoteTier::clear() {
  queue_.cancel_all();
  queue_.push_removals(index_.remove_written());
}

void RemoteTier::drain() {
  auto num_steps = [this] { return counters_.num_steps.load(std::memory_order_relaxed); };
  const auto until = std::chrono::steady_clock::now() + kMostDraining;
  uint64_t seen = num_steps();
  auto last_step = std::chrono::steady_clock::now();
  while (!queue_.wait_until_done_for(kDrainLook)) {
    auto now = std::chrono::steady_clock::now();
    if (now >= until || now - last_step >= kDrainStall) return;
    if (uint64_t steps = num_steps(); steps != seen) {
      seen = steps;
      last_step = now;
    }
  }
}

TierReport RemoteTier::report() const {
  auto get = [](const std::atomic<uint64_t>& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  TierReport report{.tier = Tier::kRemote,
                    .hits = get(counters_.hits),
                    .misses = get(counters_.misses),
                    .bytes_read = get(counters_.bytes_read),
                    .bytes_written = get(counters_.bytes_written),
                    .entries = index_.num_blocks(),
                    .damaged = get(counters_.damaged),
                    .write_errors = get(counters_.write_errors),
                    .dropped_writes = get(counters_.dropped_writes),
                    .read_seconds = static_cast<double>(get(counters_.read_nanoseconds)) * 1e-9};
  report.links = nodes_.report();
  return report;
}

}  // namespace droidspeak
