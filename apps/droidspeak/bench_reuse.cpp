#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/progress.h"
#include "bench.h"
#include "paced_files.h"
#include "profiler/data.h"
#include "workspace.h"

namespace droidspeak {
namespace {

struct ReuseOptions {
  CommonOptions common;
  std::string model;
  std::string sender;
  std::vector<std::string> plans{"auto"};
  std::vector<int32_t> tokens{2048, 4096};
  int32_t suffix_tokens = 32;
  int32_t repeats = 3;
  std::string data;
  double disk_gbit = 0;
};

struct Measurement {
  std::string plan;
  bool translated = false;
  int32_t tokens = 0;
  std::string tier;
  double ttft_ms = 0;
  double load_ms = 0;
  double fetch_ms = 0;   // of the load: waiting for entries
  double decode_ms = 0;  // of the load: the device decodes
  double prefill_ms = 0;
};

class ReuseBench {
 public:
  explicit ReuseBench(const ReuseOptions& options)
      : options_(options), workspace_(options.common, {options.model, options.sender}) {
    receiver_ = workspace_.family->get(options.model);
    sender_ = workspace_.family->get(options.sender);
  }

  // Full prefill, plain reuse and the asked plans for every length, interleaved.
  std::vector<Measurement> run() {
    std::vector<ChosenPlan> plans{choose("full"), choose("reuse")};
    for (const std::string& text : options_.plans) plans.push_back(choose(text));
    std::vector<Measurement> rows;
    Progress progress("reuse", static_cast<int64_t>(options_.tokens.size()) * num_tiers() *
                                   (options_.repeats + 2));
    for (int32_t tokens : options_.tokens) {
      workspace_.check_length(static_cast<size_t>(tokens), options_.suffix_tokens);
      measure_length(tokens, plans, *workspace_.store, From::kWhereItIs, rows, progress);
      if (options_.common.cache_dir.empty()) continue;
      PacedFiles files(options_.disk_gbit * 1e9 / 8);
      StoreOptions from_disk = workspace_.stored;
      from_disk.file_system = &files;
      from_disk.peer = {};  // the other store listens there
      CacheStore store(from_disk, workspace_.clock);
      wait_for_remote(store);
      measure_length(tokens, plans, store, From::kBelowHost, rows, progress);
    }
    return rows;
  }

 private:
  // Whether host memory gives what it holds.
  enum class From { kWhereItIs, kBelowHost };

  int64_t num_tiers() const { return options_.common.cache_dir.empty() ? 1 : 2; }

  ChosenPlan choose(const std::string& text) const {
    return workspace_.books->choose(
        parse_plan_request(text, workspace_.family->config().num_layers), *sender_, *receiver_);
  }

  std::vector<int32_t> make_prompt(int32_t tokens) const {
    if (options_.data.empty()) {
      return benchmark_tokens(tokens + options_.suffix_tokens,
                              workspace_.family->config().vocab_size,
                              static_cast<uint64_t>(tokens));
    }
    return text_prompt(tokens);
  }

  // Documents of as many rows as it takes, and the end of the last one with the first one's
  // question.
  std::vector<int32_t> text_prompt(int32_t tokens) const {
    const QaFile file = read_qa_file(options_.data);
    QaRow row{.id = {}, .documents = {}, .question = file.rows.front().question, .answers = {}};
    for (const QaRow& more : file.rows) {
      row.documents.insert(row.documents.end(), more.documents.begin(), more.documents.end());
      QaPrompt made = make_qa_prompt(*workspace_.tokenizer, row);
      if (made.context_tokens < tokens + options_.suffix_tokens) continue;
      std::vector<int32_t> prompt(made.tokens.begin(), made.tokens.begin() + tokens);
      prompt.insert(prompt.end(), made.tokens.end() - options_.suffix_tokens, made.tokens.end());
      return prompt;
    }
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{}: the documents of its {} rows are shorter than {} tokens",
                              options_.data, file.rows.size(), tokens + options_.suffix_tokens));
  }

  void measure_length(int32_t tokens,
                      const std::vector<ChosenPlan>& plans,
                      CacheStore& store,
                      From from,
                      std::vector<Measurement>& rows,
                      Progress& progress) {
    std::vector<int32_t> prompt = make_prompt(tokens);
    invoke(*receiver_, std::span(prompt).subspan(static_cast<size_t>(tokens)));
    std::vector<int32_t> layers;
    for (const ChosenPlan& plan : plans) {
      if (plan.plan.needs_layer_input()) layers.push_back(plan.plan.b);
    }
    PromptRunner runner(*workspace_.ops, *workspace_.kv, store);
    if (from == From::kWhereItIs) {
      runner.ensure_cached(*sender_, std::span(prompt).first(static_cast<size_t>(tokens)), layers);
      store.flush();  // what is still being written is not where it is to be measured
    }
    progress.advance();
    std::vector<std::vector<PromptTimings>> timings(plans.size());
    std::vector<std::vector<double>> ttfts(plans.size());
    for (int32_t i = 0; i <= options_.repeats; ++i) {
      for (size_t p = 0; p < plans.size(); ++p) {
        if (from == From::kBelowHost) store.clear_host();
        PromptTimings timing;
        double ttft = measure(runner, prompt, plans[p], tokens, timing);
        if (i == 0) continue;
        ttfts[p].push_back(ttft);
        timings[p].push_back(timing);
      }
      progress.advance();
    }
    for (size_t p = 0; p < plans.size(); ++p) {
      auto median_of = [&](auto figure) {
        std::vector<double> figures;
        for (const PromptTimings& timing : timings[p]) figures.push_back(figure(timing));
        return median(figures);
      };
      rows.push_back(
          {.plan = plans[p].shown,
           .translated = plans[p].translator != nullptr,
           .tokens = tokens,
           .tier = tier_of(timings[p]),
           .ttft_ms = median(ttfts[p]),
           .load_ms = median_of([](const PromptTimings& t) { return t.load_ms; }),
           .fetch_ms = median_of([](const PromptTimings& t) { return t.load_times.fetch_ms; }),
           .decode_ms = median_of([](const PromptTimings& t) { return t.load_times.decode_ms; }),
           .prefill_ms = median_of([](const PromptTimings& t) { return t.prefill_ms; })});
    }
  }

  // The slowest that any of these loads has read from.
  static std::string tier_of(const std::vector<PromptTimings>& timings) {
    if (std::ranges::all_of(timings, [](const auto& t) { return t.reused_tokens == 0; }))
      return "none";
    return std::string(tier_name(std::ranges::max(timings, {}, &PromptTimings::tier).tier));
  }

  double measure(PromptRunner& runner,
                 const std::vector<int32_t>& prompt,
                 const ChosenPlan& chosen,
                 int32_t context,
                 PromptTimings& timing) {
    Transformer& transformer = *receiver_->transformer;
    TensorView logits =
        logits_.reshape(*workspace_.device, DType::kF32, 1, transformer.config().vocab_size);
    PromptJob plan{receiver_,         sender_, chosen.plan,
                   chosen.translator, context, PromptJob::kLastToken,
                   chosen.look_layer};
    BlockTable table;
    int32_t token = 0;
    Stopwatch watch;
    timing = runner.partial_prefill(prompt, plan, table, [&](int32_t first, TensorView hidden) {
      if (first + hidden.rows == static_cast<int64_t>(prompt.size()))
        transformer.logits(hidden.row_range(hidden.rows - 1, hidden.rows), logits);
    });
    greedy_tokens(*workspace_.ops, logits, std::span(&token, 1));
    if (!timing.fallback.empty())
      throw Failure(ErrorCode::kDataCorrupt,
                    fmt::format("plan {}: the sender's cache was not usable: {}", chosen.shown,
                                timing.fallback));
    return watch.ms();
  }

  ReuseOptions options_;
  Workspace workspace_;
  std::shared_ptr<const Variant> receiver_;
  std::shared_ptr<const Variant> sender_;
  Tensor logits_;
};

// Only whole blocks are taken over.
void check_context_lengths(const std::vector<int32_t>& lengths) {
  check_counts(lengths, "--tokens");
  for (int32_t length : lengths) {
    if (length < kBlockTokens) {
      throw Failure(ErrorCode::kInvalidArgument,
                    fmt::format("--tokens {}: nothing is taken over of a context shorter than a "
                                "block: expected at least {}",
                                length, kBlockTokens));
    }
  }
}

void run_bench_reuse(const ReuseOptions& options) {
  check_context_lengths(options.tokens);
  std::vector<Measurement> rows = ReuseBench(options).run();
  double full_ms = 0;
  nlohmann::json out = nlohmann::json::array();
  if (!options.common.wants_json)
    fmt::print("{:>12} {:>10} {:>8} {:>6} {:>12} {:>10} {:>10} {:>10} {:>12} {:>9}\n", "plan",
               "translated", "tokens", "tier", "TTFT ms", "load ms", "fetch ms", "decode ms",
               "prefill ms", "speed-up");
  for (const Measurement& row : rows) {
    if (row.plan == "full") full_ms = row.ttft_ms;
    double speedup = full_ms / row.ttft_ms;
    out.push_back({{"plan", row.plan},
                   {"translated", row.translated},
                   {"tokens", row.tokens},
                   {"tier", row.tier},
                   {"ttft_ms_median", row.ttft_ms},
                   {"load_ms", row.load_ms},
                   {"fetch_ms", row.fetch_ms},
                   {"decode_ms", row.decode_ms},
                   {"prefill_ms", row.prefill_ms},
                   {"speedup", speedup}});
    if (!options.common.wants_json)
      fmt::print(
          "{:>12} {:>10} {:>8} {:>6} {:>12.1f} {:>10.1f} {:>10.1f} {:>10.1f} {:>12.1f} {:>8.2f}x\n",
          row.plan, row.translated ? "yes" : "no", row.tokens, row.tier, row.ttft_ms, row.load_ms,
          row.fetch_ms, row.decode_ms, row.prefill_ms, speedup);
  }
  if (options.common.wants_json) print_json(out);
}

}  // namespace

void add_bench_reuse(CLI::App& bench) {
  auto options = std::make_shared<ReuseOptions>();
  CLI::App* command = bench.add_subcommand(
      "reuse", "Time to first token from a sender's cache, beside full prefill and plain reuse");
  add_model_options(*command, options->common);
  command->add_option("--model", options->model, "Receiver")->required();
  command->add_option("--sender", options->sender, "Sender")->required();
  command->add_option("--plan", options->plans, "Plans, separated by ;")
      ->delimiter(';')
      ->capture_default_str();
  command->add_option("--tokens", options->tokens, "Context lengths")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--suffix-tokens", options->suffix_tokens, "Length of the question")
      ->check(above_zero())
      ->capture_default_str();
  command->add_option("--data", options->data,
                      "Documents and a question of this file (.jsonl, .jsonl.gz) instead of random "
                      "tokens, of which the last ones are looked at most");
  command
      ->add_option("--disk-gbit", options->disk_gbit,
                   "With --cache-dir: read from there as over a link of so many Gbit/s (0: as fast "
                   "as it goes)")
      ->check(not_negative());
  command->add_option("--repeats", options->repeats, "Measurements; the median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->footer(
      "Example: droidspeak bench reuse --model qa --sender base --plan '0,16,24;reuse+10%' "
      "--tokens 4096 --data tests/data/qa/qa.profile.jsonl.gz");
  command->callback([options] { run_bench_reuse(*options); });
}

}  // namespace droidspeak
