#include <algorithm>
#include <csignal>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "command.h"
#include "optional_figure.h"
#include "profiler/profiler.h"
#include "workspace.h"

namespace droidspeak {
namespace {

struct ProfileFlags {
  CommonOptions common;
  std::string sender;
  std::string receiver;
  std::string metric = "f1";
  bool resumes = false;
  ProfileOptions profile;
};

// Set by the signal handler, which can reach nothing else.
volatile std::sig_atomic_t stop_requested = 0;

// Asks the profile to stop on SIGINT and SIGTERM; a second signal ends the program at once.
class StopOnSignal {
 public:
  StopOnSignal()
      : interrupt_(std::signal(SIGINT, &on_signal)), terminate_(std::signal(SIGTERM, &on_signal)) {}

  ~StopOnSignal() {
    std::signal(SIGINT, interrupt_);
    std::signal(SIGTERM, terminate_);
  }

  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;

 private:
  static void on_signal(int signal) {
    stop_requested = 1;
    std::signal(signal, SIG_DFL);
  }

  void (*interrupt_)(int);
  void (*terminate_)(int);
};

nlohmann::json to_json(const PlanBook& book, const std::string& path) {
  nlohmann::json frontier = nlohmann::json::array();
  for (const PlanEntry& entry : book.frontier) {
    nlohmann::json item{{"plan", entry.plan.to_string(book.num_layers)},
                        {"translated", entry.translated},
                        {"recomputed_layers", entry.plan.recomputed_layers()},
                        {"kl", entry.quality.kl},
                        {"score", or_null(entry.quality.score)},
                        {"gold_lost", or_null(entry.quality.gold_lost)},
                        {"gold_lost_se", or_null(entry.quality.gold_lost_error)},
                        {"agreement", entry.quality.agreement},
                        {"quality_index", entry.quality_index},
                        {"relative_cost", entry.relative_cost}};
    frontier.push_back(item);
  }
  return {{"plan_book", path},
          {"frontier", frontier},
          {"metric", book.metric},
          {"full_score", or_null(book.full_score)},
          {"contexts", book.num_contexts},
          {"confirmed_contexts", book.num_confirming},
          {"seconds", book.profile_seconds},
          {"prefill_equivalents", book.prefill_equivalents}};
}

void print_text(const PlanBook& book, const std::string& path) {
  fmt::print(
      "{} from {}: {} contexts, {} that confirm, {:.0f} s, {:.1f} full prefills of context work\n",
      book.receiver, book.sender, book.num_contexts, book.num_confirming, book.profile_seconds,
      book.prefill_equivalents);
  if (book.full_score) fmt::print("full prefill: {} {:.3f}\n", book.metric, *book.full_score);
  fmt::print("{:>12} {:>10} {:>7} {:>8} {:>17} {:>9} {:>7} {:>9} {:>8} {:>6}\n", "plan",
             "translated", "layers", "KL", "95 %", "agreement", "score", "gold lost", "quality",
             "cost");
  for (const PlanEntry& entry : book.frontier) {
    const PlanQuality& q = entry.quality;
    fmt::print("{:>12} {:>10} {:>7} {:>8.4f} {:>17} {:>9.3f} {:>7} {:>9} {:>8.4f} {:>6.3f}\n",
               entry.plan.to_string(book.num_layers), entry.translated ? "yes" : "no",
               entry.plan.recomputed_layers(), q.kl,
               fmt::format("{:.4f}..{:.4f}", q.kl_low, q.kl_high), q.agreement, or_dash(q.score, 3),
               or_dash(q.gold_lost, 4), entry.quality_index, entry.relative_cost);
  }
  fmt::print("written: {}\n", path);
}

// A book is used when its family names it.
bool is_listed(const FamilyFile& family, const std::filesystem::path& book) {
  return std::ranges::any_of(family.plan_books, [&](const std::filesystem::path& listed) {
    std::error_code is_missing;
    return std::filesystem::equivalent(listed, book, is_missing);
  });
}

void run_profile_command(ProfileFlags flags) {
  ProfileOptions& options = flags.profile;
  if (std::filesystem::is_directory(options.out)) {
    throw Failure(
        ErrorCode::kInvalidArgument,
        fmt::format("--out {} is a folder: expected the plan book's file, like {}",
                    options.out.string(),
                    (options.out / (flags.receiver + "-from-" + flags.sender + ".json")).string()));
  }
  options.metric = parse_metric(flags.metric);
  options.start = flags.resumes ? ProfileStart::kResume : ProfileStart::kFresh;
  options.warn = [](const std::string& text) { fmt::print(stderr, "droidspeak: {}\n", text); };
  options.on_phase = [](const std::string& phase, double seconds) {
    fmt::print(stderr, "droidspeak: {}: {:.1f} s\n", phase, seconds);
  };
  options.should_stop = [] { return stop_requested != 0; };
  Workspace workspace(flags.common, {flags.sender, flags.receiver},
                      Workspace::PlanBooksAre::kLeftAlone);
  ModelPair pair{*workspace.ops, *workspace.kv, workspace.family->get(flags.sender),
                 workspace.family->get(flags.receiver)};
  for (const auto& variant : {pair.sender, pair.receiver}) {
    if (!is_activated(*variant)) continue;
    throw Failure(
        ErrorCode::kInvalidArgument,
        fmt::format("\"{}\" is an activated LoRA: it shares the caches of \"{}\" exactly, "
                    "without a plan book",
                    variant->name, variant->parent));
  }
  StopOnSignal stop;
  PlanBook book = run_profile(pair, *workspace.tokenizer, options);
  if (flags.common.wants_json) {
    print_json(to_json(book, options.out.string()));
  } else {
    print_text(book, options.out.string());
    const FamilyFile& family = workspace.family->file();
    if (!is_listed(family, options.out))
      fmt::print("it is used when \"plan_books\" of {} names it\n", family.path.string());
  }
}

}  // namespace

void add_profile(CLI::App& app) {
  auto flags = std::make_shared<ProfileFlags>();
  ProfileOptions& options = flags->profile;
  CLI::App* command = app.add_subcommand(
      "profile",
      "Find out which layers a receiver must recompute, and write the plan book of a pair");
  add_model_options(*command, flags->common);
  command->add_option("--sender", flags->sender, "Variant whose caches are taken")->required();
  command->add_option("--receiver", flags->receiver, "Variant that takes them")->required();
  command->add_option("--data", options.data, "Questions on documents, .jsonl or .jsonl.gz")
      ->required();
  command->add_option("--out", options.out, "Plan book to write; maps and plots come beside it")
      ->required();
  command->add_option("--contexts", options.contexts, "Rows that are measured")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--fit-data", options.fit_data,
                      "More rows for the fit of the maps (default: those of --data that are not "
                      "measured)");
  command
      ->add_option("--fit-contexts", options.fit_contexts,
                   "Rows that maps are fitted on, those measured among them, as far as the data "
                   "goes (default: three times --contexts)")
      ->check(CLI::Range(0, 1 << 20));
  command->add_option("--confirm-data", options.confirm_data,
                      "Rows that confirm the best plans (default: those of --data that serve "
                      "nothing else)");
  command
      ->add_option("--confirm-contexts", options.confirm_contexts,
                   "Rows that the best plans are measured on once more, as far as the data goes; "
                   "what the book promises rests on them (0: none)")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command->add_option("--group", options.group, "Layers per step of the heat map")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command->add_option("--metric", flags->metric, "Score of generated answers")
      ->check(CLI::IsMember(
          {"f1", "rouge_l", "edit_similarity", "exact_match", "final_number", "none"}))
      ->capture_default_str();
  command->add_flag("--resume", flags->resumes, "Go on with a profile that was stopped");
  command->footer(
      "Example: droidspeak profile --sender base --receiver qa --data hotpotqa.profile.jsonl.gz "
      "--out plans/qa-from-base.json");
  command->callback([flags] { run_profile_command(*flags); });
}

}  // namespace droidspeak
