#include "load_trace.h"

#include <cmath>
#include <random>
#include <thread>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mutex.h"
#include "profiler/data.h"

namespace droidspeak {

namespace {

// Rows taken one after another, from the start again when they run out.
class RowReader {
 public:
  explicit RowReader(const QaFile& file) : rows_(file.rows) {}

  const QaRow& next() { return rows_[position_++ % rows_.size()]; }

 private:
  const std::vector<QaRow>& rows_;
  size_t position_ = 0;
};

// One context with several questions: rows are added until it is long enough.
struct Gathered {
  std::vector<QaDocument> documents;
  std::vector<QaRow> questions;
};

Gathered gather(const Tokenizer& tokenizer,
                RowReader& rows,
                int32_t tokens,
                const TraceOptions& options) {
  Gathered gathered;
  int32_t length = 0;
  while (length < tokens) {
    const QaRow& row = rows.next();
    gathered.questions.push_back(row);
    for (const QaDocument& document : row.documents) {
      auto size = static_cast<int32_t>(
          tokenizer.encode(document.title + ": " + document.text, SpecialTokens::kAsText).size());
      if (length + size > options.max_context_tokens) return gathered;
      gathered.documents.push_back(document);
      length += size;
      if (length >= tokens) break;
    }
  }
  return gathered;
}

int32_t draw_length(std::mt19937_64& random, const TraceOptions& options) {
  std::uniform_real_distribution<double> logarithms(std::log(options.min_context_tokens),
                                                    std::log(options.max_context_tokens));
  return static_cast<int32_t>(std::exp(logarithms(random)));
}

Workflow make_workflow(const Tokenizer& tokenizer,
                       const Gathered& gathered,
                       const TraceOptions& options) {
  auto prompt_for = [&](QaRow row) {
    row.documents = gathered.documents;
    return make_qa_prompt(tokenizer, row);
  };
  QaRow reading = gathered.questions.front();
  reading.question = "What are the documents about?";
  Workflow workflow;
  workflow.reading = {options.sender, prompt_for(reading).tokens, 1};
  size_t num_answers = options.answers_per_context > 0
                           ? static_cast<size_t>(options.answers_per_context)
                           : options.receivers.size();
  for (size_t k = 0; k < num_answers; ++k) {
    QaPrompt prompt = prompt_for(gathered.questions[k % gathered.questions.size()]);
    const std::string& receiver = options.receivers[k % options.receivers.size()];
    workflow.answers.push_back({{receiver, prompt.tokens, options.max_tokens}, prompt.answers});
  }
  return workflow;
}

// Everything that the threads of a replay write to.
class Collector {
 public:
  explicit Collector(const ReplayLimit& limit) : limit_(limit) {}

  void add(LoadResult result, const std::vector<std::string>& references) {
    MutexLock lock(mutex_);
    bool is_late = result.status != 200 || result.ttft_ms > limit_.slo_ms;
    if (is_late) ++num_late_;
    result_.answers.push_back(std::move(result));
    result_.references.push_back(references);
    if (limit_.slo_ms > 0 && num_late_ > limit_.max_late) result_.was_ended_early = true;
  }

  bool is_over() {
    MutexLock lock(mutex_);
    return result_.was_ended_early;
  }

  TraceResult take(double seconds) {
    MutexLock lock(mutex_);
    result_.seconds = seconds;
    return std::move(result_);
  }

 private:
  const ReplayLimit limit_;
  Mutex mutex_;
  TraceResult result_ GUARDED_BY(mutex_);
  int32_t num_late_ GUARDED_BY(mutex_) = 0;
};

void run_workflow(const LoadTarget& target, const Workflow& workflow, Collector& collector) {
  run_load_request(target, workflow.reading);
  for (const LoadAnswer& answer : workflow.answers) {
    if (collector.is_over()) return;
    collector.add(run_load_request(target, answer.request), answer.references);
  }
}

}  // namespace

std::vector<Workflow> make_trace(const Tokenizer& tokenizer, const TraceOptions& options) {
  QaFile file = read_qa_file(options.data);
  if (file.rows.empty()) {
    throw Failure(ErrorCode::kInvalidArgument, fmt::format("{}: no rows", options.data.string()));
  }
  if (options.receivers.empty()) {
    throw Failure(ErrorCode::kInvalidArgument, "no receivers: name some with --receivers");
  }
  RowReader rows(file);
  std::mt19937_64 random(options.seed);
  std::vector<Workflow> trace;
  for (int32_t i = 0; i < options.num_workflows; ++i) {
    Gathered gathered = gather(tokenizer, rows, draw_length(random, options), options);
    trace.push_back(make_workflow(tokenizer, gathered, options));
  }
  return trace;
}

void set_arrivals(std::vector<Workflow>& trace, double workflows_per_second, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::exponential_distribution<double> gaps(1);
  double now = 0;
  for (Workflow& workflow : trace) {
    workflow.arrival_s = now;
    now += gaps(random);
  }
  // A short trace would else have another rate than it is asked for.
  double scale = static_cast<double>(trace.size()) / (now * workflows_per_second);
  for (Workflow& workflow : trace) workflow.arrival_s *= scale;
}

void set_salt(std::vector<Workflow>& trace, const std::string& salt) {
  for (Workflow& workflow : trace) {
    workflow.reading.cache_salt = salt;
    for (LoadAnswer& answer : workflow.answers) answer.request.cache_salt = salt;
  }
}

TraceResult play_trace(const LoadTarget& target,
                       const std::vector<Workflow>& trace,
                       const ReplayLimit& limit) {
  Collector collector(limit);
  std::vector<std::thread> threads;
  auto start = std::chrono::steady_clock::now();
  Stopwatch watch;
  for (const Workflow& workflow : trace) {
    std::this_thread::sleep_until(start + std::chrono::duration<double>(workflow.arrival_s));
    if (collector.is_over()) break;
    threads.emplace_back([&] { run_workflow(target, workflow, collector); });
  }
  for (std::thread& thread : threads) thread.join();
  return collector.take(watch.ms() / 1000);
}

}  // namespace droidspeak
