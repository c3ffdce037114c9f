#include <algorithm>
#include <random>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "arm_server.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "bench.h"
#include "load_report.h"
#include "load_trace.h"
#include "rate_search.h"
#include "sharing/plan_book.h"

namespace droidspeak {

namespace {

constexpr double kSloFactor = 3;  // over the unloaded full prefill

struct BenchServeOptions {
  CommonOptions common;
  TraceOptions trace;
  std::vector<double> rates;  // answers per second; empty: search
  std::vector<std::string> arms{"off", "reuse", "droidspeak"};
  bool finds_rate = false;
  LoadTarget other;  // another server, measured as one more arm
  std::string out;
  double slo_ms = 0;
  double min_quality = 0.99;
  double minutes = 9;
};

// Variants that can take over what the sender has read; all others when there is no plan book.
std::vector<std::string> default_receivers(const FamilyFile& file, const std::string& sender) {
  std::vector<std::string> with_book, all;
  for (const auto& path : file.plan_books) {
    PlanBook book = load_plan_book(path);
    if (book.sender == sender) with_book.push_back(book.receiver);
  }
  for (const auto& variant : file.variants) {
    if (variant.name != sender) all.push_back(variant.name);
  }
  return with_book.empty() ? all : with_book;
}

// One for each trial: with --cache-dir or --remote-cache they share a store, in which a trial is to
// find only what was read within it.
std::string random_salt() {
  std::random_device random;
  return fmt::format("bench serve {:08x}{:08x}{:08x}{:08x}", random(), random(), random(),
                     random());
}

class ServeBench {
 public:
  explicit ServeBench(const BenchServeOptions& options)
      : options_(options),
        device_(make_device(options.common.device)),
        ops_(make_ops(*device_, options.common)),
        file_(read_family_file(options.common.family)),
        tokenizer_(load_tokenizer(file_.base.path)) {
    if (!options.other.url.empty()) check_load_url(options.other.url);
    TraceOptions trace = options.trace;
    if (trace.sender.empty()) trace.sender = file_.base.name;
    if (trace.receivers.empty()) trace.receivers = default_receivers(file_, trace.sender);
    trace_ = make_trace(*tokenizer_, trace);
    arms_ = options.arms;
    if (!options.other.url.empty()) arms_.push_back(options.other.url);
  }

  LoadReport run() {
    measure_unloaded();
    if (options_.rates.empty() || options_.finds_rate) {
      search_rates();
    } else {
      measure_rates();
    }
    return std::move(report_);
  }

 private:
  size_t num_answers() const { return trace_.size() * trace_[0].answers.size(); }

  // One workflow after another's reading and answers, nothing shared: what the target and the first
  // rate are derived from.
  void measure_unloaded() {
    auto server = serve("off");
    set_salt(trace_, random_salt());
    std::vector<double> times;
    size_t num_readings = std::min<size_t>(trace_.size(), 5);
    for (size_t i = 0; i < num_readings; ++i) {
      LoadResult result = run_load_request({server->url(), {}}, trace_[i].answers[0].request);
      if (result.status == 200 && result.is_complete) times.push_back(result.ttft_ms);
    }
    if (times.empty())
      throw Failure(ErrorCode::kUnavailable, "the unloaded server answered nothing");
    report_.unloaded_ttft_ms = percentile(times, 0.5);
    report_.slo_ms = options_.slo_ms > 0 ? options_.slo_ms : kSloFactor * report_.unloaded_ttft_ms;
    fmt::print(stderr, "{} contexts, {} answers each; full prefill {:.0f} ms, target {:.0f} ms\n",
               trace_.size(), trace_[0].answers.size(), report_.unloaded_ttft_ms, report_.slo_ms);
  }

  // Arms take turns within each rate, so that drifts of the machine hit all alike.
  void measure_rates() {
    for (double rate : options_.rates) {
      for (const std::string& arm : arms_) measure(arm, rate, {});
    }
  }

  // Arms take turns here too. From above: a trial that misses the target ends early.
  void search_rates() {
    Stopwatch watch;
    double num_answers_each = static_cast<double>(trace_[0].answers.size());
    double share = num_answers_each / (num_answers_each + 1);
    double full_rate = 1000 / report_.unloaded_ttft_ms * share;  // without a queue, without sharing
    std::vector<RateSearch> searches(arms_.size(), RateSearch(4 * full_rate, 1.25));
    bool is_going_on = true;
    while (is_going_on && watch.ms() < options_.minutes * 60e3) {
      is_going_on = false;
      for (size_t i = 0; i < arms_.size() && watch.ms() < options_.minutes * 60e3; ++i) {
        std::optional<double> rate = searches[i].next();
        if (!rate) continue;
        is_going_on = true;
        bool is_met = measure(arms_[i], *rate, early_end());
        searches[i].note(*rate, is_met ? RateSearch::Outcome::kMet : RateSearch::Outcome::kMissed);
      }
    }
  }

  ReplayLimit early_end() const {
    return {report_.slo_ms, static_cast<int32_t>(num_answers() / 20)};
  }

  // Whether the arm can take this rate for long within the target.
  bool measure(const std::string& arm, double rate, const ReplayLimit& limit) {
    double workflows = rate / static_cast<double>(trace_[0].answers.size());
    set_arrivals(trace_, workflows, options_.trace.seed);
    set_salt(trace_, random_salt());
    LoadTarget target = options_.other;
    std::unique_ptr<ArmServer> server;
    if (arm != options_.other.url) {
      server = serve(arm);
      target = {server->url(), {}};
    }
    TraceResult result = play_trace(target, trace_, limit);
    report_.rows.push_back(summarize(arm, rate, result, report_.slo_ms));
    const LoadFigures& row = report_.rows.back();
    fmt::print(stderr, "{:>12} at {:.3f}/s: p95 {:.0f} ms, {} ({:.0f} s)\n", arm, rate,
               row.ttft_ms.p95, row.meets_slo() ? "met" : "missed", result.seconds);
    return row.meets_slo() && row.keeps_up();
  }

  std::unique_ptr<ArmServer> serve(const std::string& arm) {
    return std::make_unique<ArmServer>(ArmParts{*ops_, *device_, file_, *tokenizer_},
                                       options_.common, arm, options_.min_quality);
  }

  const BenchServeOptions options_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Ops> ops_;
  FamilyFile file_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<Workflow> trace_;
  std::vector<std::string> arms_;
  LoadReport report_;
};

void run_bench_serve(const BenchServeOptions& options) {
  LoadReport report = ServeBench(options).run();
  if (options.common.wants_json) {
    print_json(to_json(report).at("rows"));  // the rest is in the file of --out
  } else {
    print_table(report);
  }
  if (options.out.empty()) return;
  std::filesystem::path out = options.out;
  std::filesystem::create_directories(out);
  write_file_atomically(out / "bench_serve.json", to_json(report).dump(1) + "\n");
  write_file_atomically(out / "bench_serve.svg", plot_svg(report));
}

void add_trace_options(CLI::App& command, TraceOptions& trace) {
  command
      .add_option("--data", trace.data,
                  "QA data whose documents make the contexts (.jsonl, .jsonl.gz)")
      ->required();
  command.add_option("--sender", trace.sender, "Variant that reads (default: the base)");
  command
      .add_option("--receivers", trace.receivers,
                  "Variants that answer (default: those with a plan book for the sender)")
      ->delimiter(',');
  command.add_option("--contexts", trace.num_workflows, "Contexts read per trial")
      ->check(above_zero())
      ->capture_default_str();
  command
      .add_option("--answers", trace.answers_per_context,
                  "Answers per context, one after another (0: one of each receiver)")
      ->check(not_negative());
  command.add_option("--min-context", trace.min_context_tokens, "Shortest context in tokens")
      ->check(above_zero())
      ->capture_default_str();
  command.add_option("--max-context", trace.max_context_tokens, "Longest context in tokens")
      ->check(above_zero())
      ->capture_default_str();
  command.add_option("--max-tokens", trace.max_tokens, "Length of an answer")
      ->check(above_zero())
      ->capture_default_str();
  command.add_option("--seed", trace.seed, "Of arrivals and lengths")
      ->check(whole_seed())
      ->capture_default_str();
}

void add_options(CLI::App& command, BenchServeOptions& options) {
  add_model_options(command, options.common);
  add_trace_options(command, options.trace);
  command
      .add_option("--rates", options.rates,
                  "Answers asked for per second (default: find the highest that meets the target)")
      ->delimiter(',')
      ->check(above_zero());
  command.add_flag("--find-rate", options.finds_rate,
                   "Find the highest rate of each arm that meets the target");
  command.add_option("--minutes", options.minutes, "Time for the search; no trial begins after it")
      ->check(above_zero())
      ->capture_default_str();
  command.add_option("--arms", options.arms, "What to compare")
      ->delimiter(',')
      ->check(CLI::IsMember({"off", "reuse", "droidspeak"}))
      ->capture_default_str();
  command.add_option("--url", options.other.url,
                     "Another OpenAI server as one more arm, like http://127.0.0.1:9090");
  command
      .add_option("--url-loras", options.other.loras,
                  "Its adapters in the order of their numbers, for llama-server")
      ->delimiter(',');
  command
      .add_option("--slo-ms", options.slo_ms,
                  "TTFT target (default: 3 times the unloaded full prefill)")
      ->check(above_zero());
  command.add_option("--min-quality", options.min_quality, "Quality floor of plans")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command.add_option("--out", options.out, "Folder for bench_serve.json and bench_serve.svg");
}

void check_lengths(const TraceOptions& trace) {
  if (trace.min_context_tokens <= trace.max_context_tokens) return;
  throw Failure(ErrorCode::kInvalidArgument,
                fmt::format("--min-context {} is above --max-context {}", trace.min_context_tokens,
                            trace.max_context_tokens));
}

}  // namespace

void add_bench_serve(CLI::App& bench) {
  auto options = std::make_shared<BenchServeOptions>();
  CLI::App* command = bench.add_subcommand(
      "serve", "Load test: agents that read and answer, with and without sharing");
  add_options(*command, *options);
  command->footer(
      "Example: droidspeak bench serve --data tests/data/qa/qa.demo.jsonl.gz --find-rate "
      "--out out/bench");
  command->callback([options] {
    check_lengths(options->trace);
    run_bench_serve(*options);
  });
}

}  // namespace droidspeak
