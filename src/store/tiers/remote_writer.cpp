#include "store/tiers/remote_writer.h"

#include <algorithm>
#include <utility>

#include <spdlog/spdlog.h>

#include "store/tiers/link_encoding.h"

namespace droidspeak {
namespace {

constexpr std::chrono::minutes kWarnEvery{1};
// A slow link has much to carry before the first reply. Whether the server is there is found out
// by those who ask and read, and ends this wait as well.
constexpr std::chrono::milliseconds kWriteStall{5000};
constexpr uint64_t kAheadBytes = uint64_t{8} << 20;  // sent before the replies are read
constexpr size_t kMostRemovals = 256;                // the same

void add(std::atomic<uint64_t>& counter, uint64_t amount) {
  counter.fetch_add(amount, std::memory_order_relaxed);
}

}  // namespace

RedisConnection* RemoteWriter::connection_to(const Node& node) {
  std::unique_ptr<RemoteNode::Connection>& connection = connections_[node];
  if (connection && !connection->is_usable()) connection.reset();
  if (!node->is_up()) return nullptr;
  if (!connection) {
    Result<std::unique_ptr<RemoteNode::Connection>> opened =
        node->connect(std::max(parts_.options.stall, kWriteStall));
    if (!opened) return nullptr;
    connection = std::move(*opened);
  }
  return &**connection;
}

void RemoteWriter::remove(std::span<const std::string> names) {
  std::map<Node, std::vector<std::string_view>> by_node;
  for (const std::string& name : names) by_node[find_node_(name)].push_back(name);
  for (const auto& [node, own_names] : by_node) {
    std::span<const std::string_view> left(own_names);
    while (node != nullptr && !left.empty()) {
      size_t count = std::min(left.size(), kMostRemovals);
      remove(node, left.first(count));
      left = left.subspan(count);
      add(parts_.counters.num_steps, 1);
    }
  }
}

// Of what cannot be removed the server rids itself by eviction.
void RemoteWriter::remove(const Node& node, std::span<const std::string_view> names) {
  RedisConnection* connection = connection_to(node);
  if (connection == nullptr) return;
  std::string commands;
  for (std::string_view name : names) append_command(commands, {"UNLINK", name});
  Result<void> state = connection->send(commands);
  for (size_t i = 0; state && i < names.size(); ++i) {
    if (Result<RedisReply> reply = connection->read_reply(); !reply) state = reply.error();
  }
  if (!state) connections_.erase(node);
}

RemoteWriter::Jobs RemoteWriter::make_jobs(
    std::span<const std::shared_ptr<PendingWrite>> batch) const {
  Jobs jobs;
  for (const std::shared_ptr<PendingWrite>& write : batch) {
    if (write->is_cancelled) continue;
    std::map<EntryId, std::unique_ptr<Job>> by_value;
    for (const PendingEntry& entry : write->entries) {
      std::unique_ptr<Job>& job = by_value[first_of_value(entry.id)];
      if (!job) {
        job = std::make_unique<Job>();
        job->part.label = write->label;
        job->whole = write;
      }
      job->part.entries.push_back(entry);
    }
    for (auto& [first, job] : by_value) jobs.push_back(std::move(job));
  }
  return jobs;
}

// Until the server has tables, 8 bits do.
BlockEncoding RemoteWriter::encoding_for(const Job& job,
                                         const std::shared_ptr<const CodecTables>& tables) const {
  BlockEncoding encoding = parts_.encoding;
  const PendingEntry& any = job.part.entries.front();
  Node node = find_node_(remote_name(job.part.label.key, any.id));
  double rate = node ? node->carried_per_second() : 0;
  encoding.encoding = encoding_over(parts_.options.format, encoding.layout, rate);
  if (encoding.encoding != EntryEncoding::kCoded) return encoding;
  encoding.tables = tables;
  if (!tables) encoding.encoding = EntryEncoding::kInt8;
  return encoding;
}

void RemoteWriter::write(std::span<const std::shared_ptr<PendingWrite>> batch, Haste haste) {
  // Those of servers that have left would hold them.
  std::erase_if(connections_, [](const auto& item) { return item.first->is_closed(); });
  std::shared_ptr<const CodecTables> tables = parts_.tables.for_writing(batch);
  if (haste == Haste::kYes) tables.reset();
  Jobs next;
  uint64_t bytes = 0;
  for (std::unique_ptr<Job>& job : make_jobs(batch)) {
    if (std::chrono::steady_clock::now() < rests_until()) {
      add(parts_.counters.dropped_writes, 1);
      continue;
    }
    job->value = seal_value(job->part, encoding_for(*job, tables), parts_.seal);
    bytes += job->value->bytes;
    next.push_back(std::move(job));
    if (bytes < kAheadBytes) continue;
    route(std::exchange(next, {}));
    bytes = 0;
  }
  route(std::move(next));
  remove(std::exchange(erased_, {}));
}

void RemoteWriter::drop(const Jobs& jobs) {
  add(parts_.counters.dropped_writes, jobs.size());
}

void RemoteWriter::route(Jobs jobs) {
  std::map<Node, Jobs> by_node;
  for (std::unique_ptr<Job>& job : jobs)
    by_node[find_node_(job->value->name)].push_back(std::move(job));
  for (auto& [node, own_jobs] : by_node) {
    if (node == nullptr) {
      drop(own_jobs);
    } else {
      send(node, std::move(own_jobs));
    }
  }
}

void RemoteWriter::send(const Node& node, Jobs jobs) {
  RedisConnection* connection = connection_to(node);
  if (connection == nullptr) return drop(jobs);
  Result<void> state = send(*connection, jobs);
  if (state) state = read_replies(*connection, *node, jobs);
  add(parts_.counters.num_steps, 1);
  if (!state) {
    connections_.erase(node);
    drop(jobs);
  }
}

Result<void> RemoteWriter::send(RedisConnection& connection, const Jobs& jobs) const {
  std::vector<std::string> heads;
  for (const std::unique_ptr<Job>& job : jobs) {
    std::string& head = heads.emplace_back();
    if (job->is_asking) append_command(head, {"ASKING"});
    append_command_head(head, {"SET", job->value->name}, job->value->bytes);
  }
  static constexpr std::string_view kEnd = "\r\n";
  std::vector<std::span<const std::byte>> pieces;
  for (size_t i = 0; i < jobs.size(); ++i) {
    pieces.push_back(std::as_bytes(std::span(heads[i])));
    const auto& value = jobs[i]->value->pieces;
    pieces.insert(pieces.end(), value.begin(), value.end());
    pieces.push_back(std::as_bytes(std::span(kEnd)));
  }
  return connection.send(pieces);
}

Result<void> RemoteWriter::read_replies(RedisConnection& connection,
                                        const RemoteNode& node,
                                        Jobs& jobs) {
  std::map<Node, Jobs> elsewhere;
  while (!jobs.empty()) {
    std::unique_ptr<Job>& job = jobs.front();
    if (job->is_asking) {
      if (Result<RedisReply> asking = connection.read_reply(); !asking) return asking.error();
    }
    Result<RedisReply> reply = connection.read_reply();
    if (!reply) return reply.error();
    std::optional<RedisRedirect> redirect;
    if (reply->is_error()) redirect = parse_redirect(reply->text, node.address());
    Node other = redirect && job->num_redirects < kMostRedirects ? follow_(*redirect) : nullptr;
    if (other != nullptr) {
      ++job->num_redirects;
      job->is_asking = redirect->kind == RedisRedirect::Kind::kAsk;
      elsewhere[other].push_back(std::move(job));
    } else {
      finish(*job, *reply);
    }
    jobs.erase(jobs.begin());
  }
  for (auto& [other, moved] : elsewhere) send(other, std::move(moved));
  return {};
}

void RemoteWriter::finish(Job& job, const RedisReply& reply) {
  if (reply.kind != RedisReply::Kind::kStatus) {
    add(parts_.counters.write_errors, 1);
    auto now = std::chrono::steady_clock::now();
    if (now >= warns_from_) {
      warns_from_ = now + kWarnEvery;
      spdlog::warn("remote cache: a write was refused: {}", error_word(reply));
    }
    rests_until_ = now + parts_.options.write_rest;
    return;
  }
  add(parts_.counters.bytes_written, job.value->bytes);
  parts_.index.set_written(job.part.label, job.part.entries.front().id,
                           std::chrono::steady_clock::now());
  std::erase(erased_, job.value->name);  // written anew behind what was erased
  // Erased meanwhile: whoever erased it did not see it there. The connection is busy until all
  // replies are read, so that it is removed after that.
  if (!job.whole->is_cancelled) return;
  std::ranges::move(parts_.index.remove(job.part.label.key), std::back_inserter(erased_));
}

}  // namespace droidspeak
