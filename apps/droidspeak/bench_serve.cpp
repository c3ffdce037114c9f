#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/progress.h"
#include "base/size.h"
#include "bench.h"
#include "engine/engine.h"
#include "load_report.h"
#include "load_trace.h"
#include "server/server.h"
#include "workspace.h"

namespace droidspeak {

namespace {

struct BenchServeOptions {
  CommonOptions common;
  TraceOptions trace;
  std::vector<double> rates{0.5, 1, 2};  // answers per second
  std::vector<std::string> arms{"off", "reuse", "droidspeak"};
  std::string url;  // of another server, measured as one more arm
  std::string out;
  double slo_ms = 0;
  double min_quality = 0.99;
};

EngineOptions::Sharing sharing_of(const std::string& arm) {
  if (arm == "off") return EngineOptions::Sharing::kOff;
  if (arm == "reuse") return EngineOptions::Sharing::kPlainReuse;
  return EngineOptions::Sharing::kOn;
}

// A server of our own with empty caches.
class ArmServer {
 public:
  ArmServer(const BenchServeOptions& options,
            Ops& ops,
            const Device& device,
            const FamilyFile& file,
            const Tokenizer& tokenizer,
            const std::string& arm)
      : engine_(ops, file, engine_options(options, device, arm)),
        server_(engine_, tokenizer, server_options()) {}

  std::string url() const { return server_.url(); }

 private:
  static EngineOptions engine_options(const BenchServeOptions& options,
                                      const Device& device,
                                      const std::string& arm) {
    EngineOptions engine;
    Precision precision = parse_precision(options.common.precision);
    engine.family = {precision, options.common.max_model_len};
    engine.kv_bytes = parse_size(options.common.kv_memory);
    engine.kv_dtype = parse_kv_dtype(options.common.kv_dtype, device, precision);
    engine.store = store_options(options.common);
    engine.max_queue = 100000;  // waiting is what is measured
    engine.min_quality = options.min_quality;
    engine.sharing = sharing_of(arm);
    return engine;
  }

  static ServerOptions server_options() {
    ServerOptions server;
    server.port = 0;
    return server;
  }

  Engine engine_;
  HttpServer server_;
};

class ServeBench {
 public:
  explicit ServeBench(const BenchServeOptions& options)
      : options_(options),
        device_(make_device(options.common.device)),
        ops_(make_ops(*device_, options.common.threads)),
        file_(read_family_file(options.common.family)),
        tokenizer_(load_tokenizer(file_.base.path)) {
    TraceOptions trace = options.trace;
    if (trace.sender.empty()) trace.sender = file_.base.name;
    if (trace.receivers.empty()) {
      for (const auto& variant : file_.variants) {
        if (variant.name != trace.sender) trace.receivers.push_back(variant.name);
      }
    }
    trace_ = make_trace(*tokenizer_, trace);
  }

  // Arms take turns within each rate, so that drifts of the machine hit all alike.
  std::vector<LoadFigures> run() {
    slo_ms_ = options_.slo_ms > 0 ? options_.slo_ms : 3 * unloaded_ttft_ms();
    std::vector<std::string> arms = options_.arms;
    if (!options_.url.empty()) arms.push_back(options_.url);
    Progress progress("load", static_cast<int64_t>(options_.rates.size() * arms.size()));
    std::vector<LoadFigures> rows;
    for (double rate : options_.rates) {
      set_arrivals(trace_, rate / options_.trace.answers_per_context, options_.trace.seed);
      for (const std::string& arm : arms) {
        rows.push_back(measure(arm, rate));
        progress.advance();
      }
    }
    return rows;
  }

  double slo_ms() const { return slo_ms_; }

 private:
  LoadFigures measure(const std::string& arm, double rate) {
    if (arm == options_.url) return summarize(arm, rate, play_trace(arm, trace_, ""), slo_ms_);
    ArmServer server(options_, *ops_, *device_, file_, *tokenizer_, arm);
    return summarize(arm, rate, play_trace(server.url(), trace_, ""), slo_ms_);
  }

  // Median over a few answers, one after another, nothing shared.
  double unloaded_ttft_ms() {
    ArmServer server(options_, *ops_, *device_, file_, *tokenizer_, "off");
    std::vector<double> times;
    for (size_t i = 0; i < trace_.size() && i < 7; ++i) {
      LoadResult result = run_load_request(server.url(), trace_[i].answers[0].request);
      if (result.is_complete) times.push_back(result.ttft_ms);
    }
    if (times.empty())
      throw Failure(ErrorCode::kUnavailable, "the unloaded server answered nothing");
    return percentile(times, 0.5);
  }

  const BenchServeOptions options_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Ops> ops_;
  FamilyFile file_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<Workflow> trace_;
  double slo_ms_ = 0;
};

void run_bench_serve(const BenchServeOptions& options) {
  ServeBench bench(options);
  std::vector<LoadFigures> rows = bench.run();
  if (options.common.wants_json) {
    print_json(to_json(rows));
  } else {
    print_table(rows, bench.slo_ms());
  }
  if (options.out.empty()) return;
  std::filesystem::path out = options.out;
  std::filesystem::create_directories(out);
  write_file_atomically(out / "bench_serve.json", to_json(rows).dump(1) + "\n");
  write_file_atomically(out / "bench_serve.svg", plot_svg(rows, bench.slo_ms()));
}

void add_options(CLI::App& command, BenchServeOptions& options) {
  add_model_options(command, options.common);
  command
      .add_option("--data", options.trace.data,
                  "QA data whose documents make the contexts (.jsonl, .jsonl.gz)")
      ->required();
  command.add_option("--sender", options.trace.sender, "Variant that reads (default: the base)");
  command
      .add_option("--receivers", options.trace.receivers,
                  "Variants that answer (default: all others)")
      ->delimiter(',');
  command.add_option("--rates", options.rates, "Answers asked for per second")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--arms", options.arms, "What to compare")
      ->delimiter(',')
      ->check(CLI::IsMember({"off", "reuse", "droidspeak"}))
      ->capture_default_str();
  command.add_option("--url", options.url,
                     "Another OpenAI server as one more arm, like http://127.0.0.1:9090");
  command.add_option("--contexts", options.trace.num_workflows, "Contexts read per rate and arm")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--answers", options.trace.answers_per_context, "Answers per context")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      .add_option("--min-context", options.trace.min_context_tokens, "Shortest context in tokens")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      .add_option("--max-context", options.trace.max_context_tokens, "Longest context in tokens")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--max-tokens", options.trace.max_tokens, "Length of an answer")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      .add_option("--slo-ms", options.slo_ms,
                  "TTFT target (default: 3 times the unloaded full prefill)")
      ->check(CLI::PositiveNumber);
  command.add_option("--min-quality", options.min_quality, "Quality floor of plans")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command.add_option("--seed", options.trace.seed, "Of arrivals and lengths")
      ->capture_default_str();
  command.add_option("--out", options.out, "Folder for bench_serve.json and bench_serve.svg");
}

}  // namespace

void add_bench_serve(CLI::App& bench) {
  auto options = std::make_shared<BenchServeOptions>();
  CLI::App* command = bench.add_subcommand(
      "serve", "Load test: agents that read and answer, with and without sharing");
  add_options(*command, *options);
  command->footer(
      "Example: droidspeak bench serve --data hotpotqa.test.jsonl.gz --receivers qa --rates "
      "0.5,1,2 --out out/bench");
  command->callback([options] {
    if (options->trace.min_context_tokens > options->trace.max_context_tokens) {
      throw Failure(
          ErrorCode::kInvalidArgument,
          fmt::format("--min-context {} is above --max-context {}",
                      options->trace.min_context_tokens, options->trace.max_context_tokens));
    }
    run_bench_serve(*options);
  });
}

}  // namespace droidspeak
