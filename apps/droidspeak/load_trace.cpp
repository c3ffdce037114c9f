#include "load_trace.h"

#include <algorithm>
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

QaPrompt prompt_for(const Tokenizer& tokenizer, const Gathered& gathered, size_t question) {
  QaRow row = gathered.questions[question % gathered.questions.size()];
  row.documents = gathered.documents;
  return make_qa_prompt(tokenizer, row);
}

// Everything that the threads of a replay write to.
class Collector {
 public:
  void add(LoadResult result, const std::vector<std::string>& references) {
    MutexLock lock(mutex_);
    result_.answers.push_back(std::move(result));
    result_.references.push_back(references);
  }

  TraceResult take(double seconds) {
    MutexLock lock(mutex_);
    result_.seconds = seconds;
    return std::move(result_);
  }

 private:
  Mutex mutex_;
  TraceResult result_ GUARDED_BY(mutex_);
};

void run_workflow(const std::string& url,
                  const Workflow& workflow,
                  const std::string& salt,
                  Collector& collector) {
  LoadRequest reading = workflow.reading;
  reading.cache_salt = salt;
  run_load_request(url, reading);
  std::vector<std::thread> threads;
  for (const LoadAnswer& answer : workflow.answers) {
    threads.emplace_back([&] {
      LoadRequest request = answer.request;
      request.cache_salt = salt;
      collector.add(run_load_request(url, request), answer.references);
    });
  }
  for (std::thread& thread : threads) thread.join();
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
  std::uniform_int_distribution<int32_t> lengths(options.min_context_tokens,
                                                 options.max_context_tokens);
  std::vector<Workflow> trace;
  for (int32_t i = 0; i < options.num_workflows; ++i) {
    Gathered gathered = gather(tokenizer, rows, lengths(random), options);
    Workflow workflow;
    QaPrompt reading = prompt_for(tokenizer, gathered, 0);
    workflow.reading = {options.sender, reading.tokens, 1, ""};
    for (int32_t k = 0; k < options.answers_per_context; ++k) {
      QaPrompt prompt = prompt_for(tokenizer, gathered, static_cast<size_t>(k));
      const std::string& receiver =
          options.receivers[static_cast<size_t>(k) % options.receivers.size()];
      workflow.answers.push_back(
          {{receiver, prompt.tokens, options.max_tokens, ""}, prompt.answers});
    }
    trace.push_back(std::move(workflow));
  }
  return trace;
}

void set_arrivals(std::vector<Workflow>& trace, double workflows_per_second, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::exponential_distribution<double> gaps(workflows_per_second);
  double now = 0;
  for (Workflow& workflow : trace) {
    workflow.arrival_s = now;
    now += gaps(random);
  }
}

TraceResult play_trace(const std::string& url,
                       const std::vector<Workflow>& trace,
                       const std::string& cache_salt) {
  Collector collector;
  std::vector<std::thread> threads;
  auto start = std::chrono::steady_clock::now();
  Stopwatch watch;
  for (const Workflow& workflow : trace) {
    std::this_thread::sleep_until(start + std::chrono::duration<double>(workflow.arrival_s));
    threads.emplace_back([&] { run_workflow(url, workflow, cache_salt, collector); });
  }
  for (std::thread& thread : threads) thread.join();
  return collector.take(watch.ms() / 1000);
}

}  // namespace droidspeak
