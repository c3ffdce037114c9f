// The thread of a RemoteNode that asks: whether the server is there, how far away it is, and which
// values it has.
#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "store/tiers/link_encoding.h"
#include "store/tiers/remote_node.h"

namespace droidspeak {
namespace {

constexpr size_t kMostQuestions = 512;  // in one go
constexpr std::chrono::milliseconds kPingEvery{1000};
// However often a cluster says that a slot has moved.
constexpr std::chrono::milliseconds kSlotsEvery{100};
// How often the codec tables are looked after; sooner where somebody lacks some.
constexpr std::chrono::milliseconds kTablesEvery{5000};
constexpr std::chrono::milliseconds kTableNews{100};
constexpr std::chrono::milliseconds kLookForNews{200};
constexpr size_t kMeasureBytes = size_t{256} << 10;
constexpr double kSlowBandwidth = 1e6;     // of a link that has not carried the measurement
constexpr double kUnknownBandwidth = 1e7;  // of a server that takes no value to measure with
constexpr size_t kMostWaitingQuestions = 65536;
constexpr std::chrono::seconds kLongUp{3};  // then the next pause is a short one again
constexpr int kRoundTrips = 3;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Error unexpected(std::string_view command, const RedisReply& reply) {
  return {ErrorCode::kUnavailable,
          fmt::format("the answer to {} is {}", command,
                      reply.is_error() ? error_word(reply) : std::string("of another kind"))};
}

}  // namespace

void RemoteNode::run_control() {
  std::chrono::milliseconds pause = parts_.options.first_pause;
  while (true) {
    Result<std::unique_ptr<Connection>> connection = connect(parts_.options.stall);
    Result<void> state = connection ? greet(***connection) : Result<void>(connection.error());
    if (state) {
      set_up();
      auto up_since = std::chrono::steady_clock::now();
      state = serve(***connection);
      if (std::chrono::steady_clock::now() - up_since > kLongUp) pause = parts_.options.first_pause;
    }
    if (!state) lost(state.error());
    connection = Error{};
    MutexLock lock(mutex_);
    auto until = std::chrono::steady_clock::now() + pause;
    while (!is_closing_ && std::chrono::steady_clock::now() < until)
      changed_.wait_for(mutex_, until - std::chrono::steady_clock::now());
    if (is_closing_) return;
    pause = std::min(2 * pause, parts_.options.longest_pause);
  }
}

Result<void> RemoteNode::greet(RedisConnection& connection) {
  if (Result<void> slots = read_slots(connection); !slots) return slots;
  if (Result<void> tables = exchange_tables(connection); !tables) return tables;
  for (int i = 0; i < kRoundTrips; ++i) {
    if (Result<void> answered = ping(connection); !answered) return answered;
  }
  if (meter_.bytes_per_second() == 0) return measure(connection);
  return {};
}

Result<void> RemoteNode::ping(RedisConnection& connection) {
  auto start = std::chrono::steady_clock::now();
  std::string command;
  append_command(command, {"PING"});
  if (Result<void> sent = connection.send(command); !sent) return sent;
  Result<RedisReply> reply = connection.read_reply();
  if (!reply) return reply.error();
  if (reply->kind != RedisReply::Kind::kStatus) return unexpected("PING", *reply);
  meter_.note_round_trip(seconds_since(start));
  return {};
}

// A server that is no part of a cluster says so by an error.
Result<void> RemoteNode::read_slots(RedisConnection& connection) {
  std::string command;
  append_command(command, {"CLUSTER", "SLOTS"});
  if (Result<void> sent = connection.send(command); !sent) return sent;
  Result<RedisReply> reply = connection.read_reply();
  if (!reply) return reply.error();
  if (reply->is_error()) return {};
  Result<std::vector<RedisSlotRange>> ranges = parse_cluster_slots(*reply, address_);
  if (!ranges) return ranges.error();
  {
    MutexLock lock(mutex_);
    is_in_cluster_ = true;
    own_slots_.clear();
    std::ranges::copy_if(*ranges, std::back_inserter(own_slots_),
                         [&](const RedisSlotRange& range) { return range.master == address_; });
  }
  parts_.learn_slots(*ranges);
  return {};
}

bool RemoteNode::owns(const std::string& name) const {
  uint16_t slot = redis_slot(name);
  MutexLock lock(mutex_);
  return !is_in_cluster_ || std::ranges::any_of(own_slots_, [&](const RedisSlotRange& range) {
    return range.first <= slot && slot <= range.last;
  });
}

bool RemoteNode::has_no_slots() const {
  MutexLock lock(mutex_);
  return is_in_cluster_ && own_slots_.empty();
}

Result<void> RemoteNode::exchange_tables(RedisConnection& connection) {
  if (!owns(parts_.tables.name())) return {};
  return parts_.tables.exchange(connection);
}

std::string RemoteNode::name_for_measuring() const {
  for (int i = 0; i < 200000 && !has_no_slots(); ++i) {
    std::string name = fmt::format("ds1:measure:{}", i);
    if (owns(name)) return name;
  }
  return "ds1:measure";
}

// As fast as entries come in the form that is used on such a link.
void RemoteNode::note_first_look(double carried_per_second) {
  const KvLayout& layout = parts_.encoding.layout;
  EntryEncoding encoding = encoding_over(parts_.options.format, layout, carried_per_second);
  meter_.note_first_look(decoded_rate(encoding, layout, carried_per_second), carried_per_second);
}

// A first look at the bandwidth. A link that is too slow for it is not measured a second time.
Result<void> RemoteNode::measure(RedisConnection& connection) {
  note_first_look(kSlowBandwidth);
  std::string name = name_for_measuring();
  std::string command;
  append_command(command, {"SET", name, std::string(kMeasureBytes, 'x'), "EX", "60"});
  if (Result<void> sent = connection.send(command); !sent) return sent;
  Result<RedisReply> stored = connection.read_reply();
  if (!stored) return stored.error();
  if (stored->is_error()) {
    note_first_look(kUnknownBandwidth);
    return {};
  }
  command.clear();
  append_command(command, {"GET", name});
  append_command(command, {"GET", name});
  auto start = std::chrono::steady_clock::now();
  if (Result<void> sent = connection.send(command); !sent) return sent;
  bool is_whole = true;
  for (int i = 0; i < 2; ++i) {
    Result<RedisReply> reply = connection.read_reply();
    if (!reply) return reply.error();
    is_whole = is_whole && reply->text.size() == kMeasureBytes;
  }
  if (!is_whole) {
    note_first_look(kUnknownBandwidth);
    return {};
  }
  double elapsed = std::max(seconds_since(start) - meter_.round_trip_seconds(), 1e-6);
  note_first_look(2.0 * kMeasureBytes / elapsed);
  return {};
}

void RemoteNode::set_up() {
  {
    MutexLock lock(mutex_);
    if (is_closing_) return;
    is_up_ = true;
    is_counted_ = false;
    if (!std::exchange(is_said_, false)) return;
  }
  spdlog::info("remote cache {}: there, round trip {:.2f} ms", address_.text(),
               meter_.round_trip_seconds() * 1e3);
}

void RemoteNode::refresh_slots() {
  MutexLock lock(mutex_);
  wants_slots_ = true;
  changed_.notify_all();
}

void RemoteNode::ask(ValueQuestion question) {
  {
    MutexLock lock(mutex_);
    if (is_up_ && !is_closing_ && questions_.size() < kMostWaitingQuestions) {
      questions_.push_back(std::move(question));
      changed_.notify_all();
      return;
    }
  }
  for (EntryId id : question.question.values) parts_.index.set_gone(question.question.key, id);
  parts_.on_answer();
}

void RemoteNode::drop_questions() {
  std::deque<ValueQuestion> dropped;
  {
    MutexLock lock(mutex_);
    dropped.swap(questions_);
  }
  for (const ValueQuestion& question : dropped) {
    for (EntryId id : question.question.values) parts_.index.set_gone(question.question.key, id);
    parts_.on_answer();
  }
}

// Until the server is lost or the tier closes.
Result<void> RemoteNode::serve(RedisConnection& connection) {
  auto last_ping = std::chrono::steady_clock::now();
  auto last_slots = last_ping;
  auto last_tables = last_ping;
  while (true) {
    std::deque<ValueQuestion> questions;
    bool wants_slots = false;
    {
      MutexLock lock(mutex_);
      auto until_slots = last_slots + kSlotsEvery - std::chrono::steady_clock::now();
      auto patience = wants_slots_ ? until_slots : kLookForNews;
      if (questions_.empty() && is_up_ && patience > patience.zero())
        changed_.wait_for(mutex_, patience);
      if (is_closing_) return {};
      if (!is_up_) return Error{ErrorCode::kUnavailable, "a connection was lost"};
      while (!questions_.empty() && questions.size() < kMostQuestions) {
        questions.push_back(std::move(questions_.front()));
        questions_.pop_front();
      }
      if (std::chrono::steady_clock::now() - last_slots >= kSlotsEvery)
        wants_slots = std::exchange(wants_slots_, false);
    }
    // After a failover it takes the others some seconds to agree on who follows; slots that nobody
    // has may get an owner.
    bool is_time = std::chrono::steady_clock::now() - last_slots >= kPingEvery;
    if (wants_slots || (is_time && parts_.misses_an_owner())) {
      last_slots = std::chrono::steady_clock::now();
      if (Result<void> state = read_slots(connection); !state) return state;
    }
    auto since_tables = std::chrono::steady_clock::now() - last_tables;
    bool has_news = parts_.tables.has_news() && since_tables >= kTableNews;
    if (has_news || since_tables >= kTablesEvery) {
      last_tables = std::chrono::steady_clock::now();
      if (Result<void> state = exchange_tables(connection); !state) return state;
    }
    if (!questions.empty()) {
      if (Result<void> state = answer(connection, std::move(questions)); !state) return state;
    } else if (std::chrono::steady_clock::now() - last_ping >= kPingEvery) {
      last_ping = std::chrono::steady_clock::now();
      if (Result<void> state = ping(connection); !state) return state;
    }
  }
}

// K/V of a block counts only as a whole; inputs of layers one by one.
Result<void> RemoteNode::answer(RedisConnection& connection, std::deque<ValueQuestion> questions) {
  std::string commands;
  for (const ValueQuestion& asked : questions) {
    std::vector<std::string> names = {"EXISTS"};
    auto flush = [&] {
      if (names.size() == 1) return;
      if (asked.is_asking) append_command(commands, {"ASKING"});
      std::vector<std::string_view> arguments(names.begin(), names.end());
      append_command(commands, arguments);
      names.resize(1);
    };
    for (EntryId id : asked.question.values) {
      if (id.kind != EntryKind::kKeyValue) flush();
      names.push_back(remote_name(asked.question.key, id));
      if (id.kind != EntryKind::kKeyValue) flush();
    }
    flush();
  }
  Result<void> state = connection.send(commands);
  while (state && !questions.empty()) {
    state = read_answer(connection, questions.front());
    if (state) questions.pop_front();
  }
  for (const ValueQuestion& asked : questions) {
    for (EntryId id : asked.question.values) parts_.index.set_gone(asked.question.key, id);
    parts_.on_answer();
  }
  return state;
}

Result<void> RemoteNode::read_answer(RedisConnection& connection, ValueQuestion& asked) {
  const std::vector<EntryId>& values = asked.question.values;
  auto now = std::chrono::steady_clock::now();
  std::optional<RedisRedirect> redirect;
  for (size_t begin = 0; begin < values.size();) {
    size_t end = begin + 1;
    if (values[begin].kind == EntryKind::kKeyValue) {
      while (end < values.size() && values[end].kind == EntryKind::kKeyValue) ++end;
    }
    for (int skipped = asked.is_asking ? 1 : 0; skipped > 0; --skipped) {
      if (Result<RedisReply> reply = connection.read_reply(); !reply) return reply.error();
    }
    Result<RedisReply> reply = connection.read_reply();
    if (!reply) return reply.error();
    if (reply->is_error() && !redirect) redirect = parse_redirect(reply->text, address_);
    bool is_there = reply->kind == RedisReply::Kind::kInteger &&
                    reply->integer == static_cast<int64_t>(end - begin);
    for (; begin < end; ++begin) {
      if (is_there) parts_.index.set_there(asked.question.key, values[begin], now);
      if (!is_there && !redirect) parts_.index.set_gone(asked.question.key, values[begin]);
    }
  }
  if (redirect && asked.num_redirects < kMostRedirects) {
    parts_.redirect_question(std::move(asked), *redirect);
    return {};
  }
  if (redirect) {
    for (EntryId id : values) parts_.index.set_gone(asked.question.key, id);
  }
  parts_.on_answer();
  return {};
}

}  // namespace droidspeak
