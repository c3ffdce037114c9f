#include "profiler/profiler.h"

#include <algorithm>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/progress.h"
#include "profiler/book_builder.h"
#include "profiler/plots.h"
#include "profiler/profile_record.h"
#include "profiler/prompt_trial.h"
#include "profiler/shape_choice.h"

namespace droidspeak {
namespace {

constexpr int32_t kFolds = 4;
// Context work allowed, in full prefills per layer.
constexpr double kWorkShare = 0.6;
// Translated plans are tried up to this share of recomputed layers: beyond it nothing is gained in
// time.
constexpr double kTranslatedShare = 0.4;
constexpr double kSaveSeconds = 120;
// E maps of every layer cost memory by the square of the width.
constexpr int32_t kWideModel = 1024;

// One context's results, put into the record when the context is done.
struct ContextResults {
  std::map<TriedPlan, Divergence> divergences;
  std::map<TriedPlan, double> scores;
};

class ProfileRun {
 public:
  ProfileRun(const ModelPair& pair, const Tokenizer& tokenizer, const ProfileOptions& options)
      : pair_(pair),
        tokenizer_(tokenizer),
        options_(options),
        data_(read_qa_file(options.data)),
        folder_(partial_path(options.out)) {
    choose_prompts();
    limits_ = {options.answer_tokens, tokenizer.end_of_turn_ids};
    for (int32_t b = options.group; b < pair.num_layers(); b += options.group)
      transitions_.push_back(b);
    if (num_fit_contexts() >= 2) {
      int32_t step = pair.receiver->transformer->config().d_model <= kWideModel ? 1 : options.group;
      TranslationFitOptions fit{std::min(kFolds, num_fit_contexts()), {}, options.threads};
      for (int32_t layer = step; layer < pair.num_layers(); layer += step)
        fit.input_layers.push_back(layer);
      fit_ = std::make_unique<TranslationFit>(pair, fit);
    }
    start_record();
  }

  PlanBook run() {
    save();  // a place that cannot be written to is found out now
    progress_ = std::make_unique<Progress>("profile", total_steps());
    for (int32_t i = record_.num_raw; i < num_contexts(); ++i) measure_raw(i);
    for (int32_t i = std::max(record_.num_fitted, num_contexts()); i < num_fit_contexts(); ++i)
      fit_only(i);
    save();
    if (fit_) {
      if (!record_.shape) choose_map_shape();
      for (int32_t i = record_.num_translated; i < num_contexts(); ++i) measure_translated(i);
    }
    if (record_.candidates.empty()) record_.candidates = choose_candidates();
    for (int32_t i = record_.num_refined; i < num_contexts(); ++i) measure_candidates(i);
    save();
    return write_results();
  }

 private:
  int32_t num_contexts() const { return static_cast<int32_t>(prompts_.size()); }

  int32_t num_fit_contexts() const {
    return std::min(options_.fit_contexts == 0 ? num_contexts() : options_.fit_contexts,
                    num_contexts() + static_cast<int32_t>(fit_prompts_.size()));
  }

  void choose_prompts() {
    PromptLimits limits{std::max(options_.contexts, options_.fit_contexts),
                        pair_.receiver->transformer->max_positions(), options_.answer_tokens};
    PromptSet set = make_prompts(tokenizer_, data_, limits);
    std::string skipped = describe_skipped(set, limits);
    if (!skipped.empty()) warn(fmt::format("{}: {}", options_.data.string(), skipped));
    if (std::ssize(set.prompts) < options_.contexts) {
      warn(fmt::format("{}: {} usable rows; {} were asked for", options_.data.string(),
                       set.prompts.size(), options_.contexts));
    }
    prompts_ = std::move(set.prompts);
    while (num_contexts() > options_.contexts) {
      fit_prompts_.insert(fit_prompts_.begin(), std::move(prompts_.back()));
      prompts_.pop_back();
    }
  }

  void start_record() {
    std::string fingerprint = make_fingerprint();
    if (options_.start == ProfileStart::kResume) {
      std::optional<ProfileRecord> saved = folder_.load(fingerprint, fit_.get());
      if (saved) record_ = std::move(*saved);
      if (!saved)
        warn(fmt::format("{}: no state of a stopped profile; starting from the beginning",
                         folder_.path().string()));
    } else {
      folder_.remove();
    }
    record_.fingerprint = fingerprint;
    record_.sensitivity.resize(static_cast<size_t>(pair_.num_layers()));
    seconds_before_ = record_.seconds;
  }

  std::string make_fingerprint() const {
    Sha256 hash;
    for (const Variant* variant : {pair_.sender.get(), pair_.receiver.get()}) {
      hash.add_field('m', variant->model_digest.hex());
      hash.add_field('a', variant->adapter_digest.hex());
    }
    hash.add_field('d', data_.digest.hex());
    for (int32_t number :
         {num_contexts(), num_fit_contexts(), options_.group, options_.answer_tokens})
      hash.add_field('n', static_cast<uint64_t>(number));
    hash.add_field('s', name_of(options_.metric));
    hash.add_field('k', name_of(pair_.kv.layout().dtype));
    return hash.finish().hex();
  }

  void warn(const std::string& text) const {
    if (options_.warn) options_.warn(text);
  }

  // Layer passes over contexts, about; the unit of the progress bar.
  int64_t raw_steps() const {
    int64_t steps = 2 * pair_.num_layers();
    for (int32_t b : transitions_) steps += pair_.num_layers() - b;
    return steps;
  }

  int64_t translated_steps() const {
    int64_t steps = pair_.num_layers();
    for (int32_t b : transitions_) steps += translated_end(b) - b;
    return steps;
  }

  int64_t total_steps() const {
    int64_t steps = (num_contexts() - record_.num_raw) * raw_steps();
    steps += (num_contexts() - record_.num_refined) * 3 * pair_.num_layers();
    if (fit_) steps += (num_contexts() - record_.num_translated) * translated_steps();
    return steps;
  }

  void save() {
    record_.seconds = seconds_before_ + watch_.ms() / 1000;
    folder_.save(record_, fit_.get());
    since_save_.restart();
  }

  // Throws when the user wants to stop; what is done so far is kept.
  void check_stop() {
    if (!options_.should_stop || !options_.should_stop()) return;
    save();
    throw Failure(ErrorCode::kCancelled,
                  fmt::format("profile stopped; run it again with --resume to go on (state in {})",
                              folder_.path().string()));
  }

  void finish_context(int32_t& counter,
                      const ContextResults& results,
                      PromptTrial& trial,
                      int64_t steps) {
    for (const auto& [tried, divergence] : results.divergences) {
      PlanRecord& plan = record_.plans[tried];
      if (std::ssize(plan.kl) != counter) continue;  // measured in an earlier pass
      plan.kl.push_back(divergence.kl);
      plan.agreement.push_back(divergence.agreement);
    }
    for (const auto& [tried, score] : results.scores) record_.plans[tried].score.push_back(score);
    record_.layer_tokens += trial.context().layer_tokens();
    ++counter;
    progress_->advance(steps);
    if (since_save_.ms() > kSaveSeconds * 1000) save();
  }

  void compare(PromptTrial& trial, const std::vector<TriedPlan>& plans, ContextResults& results) {
    std::vector<ContextMixture> mixtures;
    for (const TriedPlan& tried : plans) mixtures.push_back(trial.context().mixture(tried));
    std::vector<Divergence> divergences = trial.compare(mixtures);
    for (size_t i = 0; i < plans.size(); ++i) results.divergences[plans[i]] = divergences[i];
  }

  // Both models read the context; it joins the fit unless it has before.
  void read_both(PromptTrial& trial, int32_t context, const std::vector<int32_t>& captured) {
    bool joins = fit_ && context < num_fit_contexts() && context >= record_.num_fitted;
    ContextTrial::LayerVisit visit;
    if (joins) visit = fit_->visit(fit_->fold_of(context), trial.context().num_tokens());
    trial.context().read_both(captured, visit);
    if (joins) record_.num_fitted = context + 1;
  }

  // Raw plans (0, b, c) of the whole heat map, plain reuse, and one reused layer at a time.
  void measure_raw(int32_t context) {
    check_stop();
    PromptTrial trial(pair_, prompts_[static_cast<size_t>(context)]);
    read_both(trial, context, transitions_);
    ReferenceAnswer reference = trial.answer_in_full(limits_);
    reference.score = score_answer(options_.metric, answer_text(tokenizer_, reference.tokens),
                                   prompts_[static_cast<size_t>(context)].answers);
    ContextResults results;
    compare(trial, own_start_plans(), results);
    std::vector<ContextMixture> single;
    for (int32_t layer = 0; layer < pair_.num_layers(); ++layer)
      single.push_back(trial.context().only_reused(layer));
    std::vector<Divergence> sensitivity = trial.compare(single);
    for (int32_t b : transitions_) {
      check_stop();
      trial.context().recompute({b, pair_.num_layers()}, nullptr);
      compare(trial, plans_from(b, pair_.num_layers(), false), results);
    }
    record_.references.push_back(std::move(reference));
    for (size_t layer = 0; layer < sensitivity.size(); ++layer)
      record_.sensitivity[layer].push_back(sensitivity[layer].kl);
    finish_context(record_.num_raw, results, trial, raw_steps());
  }

  // Contexts that serve the maps only.
  void fit_only(int32_t context) {
    check_stop();
    PromptTrial trial(pair_, fit_prompts_[static_cast<size_t>(context - num_contexts())]);
    read_both(trial, context, {});
    record_.layer_tokens += trial.context().layer_tokens();
    if (since_save_.ms() > kSaveSeconds * 1000) save();
  }

  // Plain reuse, and the receiver's own first c layers: its own caches serve all of them.
  std::vector<TriedPlan> own_start_plans() const {
    std::vector<TriedPlan> plans{{ReusePlan::reuse_all(), false}};
    for (int32_t c = options_.group; c <= pair_.num_layers(); c += options_.group)
      plans.push_back({{0, 0, c}, false});
    return plans;
  }

  std::vector<TriedPlan> plans_from(int32_t b, int32_t end, bool translated) const {
    std::vector<TriedPlan> plans;
    for (int32_t c = b + options_.group; c < end; c += options_.group)
      plans.push_back({{0, b, c}, translated});
    plans.push_back({{0, b, end}, translated});
    return plans;
  }

  int32_t translated_end(int32_t b) const {
    auto most = static_cast<int32_t>(kTranslatedShare * pair_.num_layers()) / options_.group *
                options_.group;
    return std::min(pair_.num_layers(), b + std::max(most, options_.group));
  }

  void choose_map_shape() {
    check_stop();
    progress_->note("choosing the maps");
    ShapeChoice choice(pair_, *fit_, mean_divergences(record_), options_.group);
    std::vector<ShapeTrial> trials;
    for (int32_t i = 0; i < num_contexts() && trials.size() < ShapeChoice::kMaxContexts; ++i) {
      if (fit_->fold_of(i) == ShapeChoice::kFold)
        trials.push_back(
            {&prompts_[static_cast<size_t>(i)], &record_.references[static_cast<size_t>(i)]});
    }
    record_.shape = choice.choose(trials, [this] { check_stop(); });
    record_.layer_tokens += choice.layer_tokens();
    progress_->note("");
    save();
  }

  // Maps fitted without the context's own fold.
  const Translator& translator_for(int32_t context) {
    int32_t fold = fit_->fold_of(context);
    std::unique_ptr<Translator>& translator = translators_[fold];
    if (!translator) {
      progress_->note("fitting maps");
      translator = std::make_unique<Translator>(
          pair_.ops,
          fit_->solve(fold, {*record_.shape}, fit_->all_layers(), fit_->input_layers()).front());
      progress_->note("");
    }
    return *translator;
  }

  void measure_translated(int32_t context) {
    check_stop();
    const Translator& translator = translator_for(context);
    PromptTrial trial(pair_, prompts_[static_cast<size_t>(context)]);
    trial.set_reference(record_.references[static_cast<size_t>(context)]);
    trial.context().read_sender(transitions_, 0);
    trial.context().translate(translator);
    ContextResults results;
    compare(trial, {{ReusePlan::reuse_all(), true}}, results);
    for (int32_t b : transitions_) {
      check_stop();
      trial.context().recompute({b, translated_end(b)}, &translator);
      compare(trial, plans_from(b, translated_end(b), true), results);
    }
    finish_context(record_.num_translated, results, trial, translated_steps());
  }

  std::vector<TriedPlan> choose_candidates() const {
    double spent = prefill_equivalents(record_.layer_tokens, prompts_, pair_.num_layers());
    double left =
        (kWorkShare * pair_.num_layers() - spent) * pair_.num_layers() - pair_.num_layers();
    RefinementLimits limits{.num_layers = pair_.num_layers(),
                            .context_layers = std::max(left, 0.0),
                            .input_layers = {}};
    if (fit_) limits.input_layers = fit_->input_layers();
    return refinement_plans(mean_divergences(record_), limits);
  }

  // Frontier plans and their neighbours: divergence and greedy answers.
  void measure_candidates(int32_t context) {
    check_stop();
    const QaPrompt& prompt = prompts_[static_cast<size_t>(context)];
    std::map<std::pair<bool, int32_t>, std::vector<TriedPlan>> groups;  // by (translated, b)
    std::vector<int32_t> captured;
    bool has_translated = false;
    for (const TriedPlan& tried : record_.candidates) {
      bool has_block = tried.plan.needs_layer_input();
      groups[{tried.translated, has_block ? tried.plan.b : 0}].push_back(tried);
      if (has_block) captured.push_back(tried.plan.b);
      has_translated = has_translated || tried.translated;
    }
    PromptTrial trial(pair_, prompt);
    trial.set_reference(record_.references[static_cast<size_t>(context)]);
    trial.context().read_sender(captured, receiver_layers(record_.candidates));
    if (has_translated) trial.context().translate(translator_for(context));
    ContextResults results;
    for (const auto& [start, plans] : groups) {
      check_stop();
      auto [is_translated, b] = start;
      int32_t end = 0;
      for (const TriedPlan& tried : plans) end = std::max(end, tried.plan.c);
      if (b > 0)
        trial.context().recompute({b, end}, is_translated ? &translator_for(context) : nullptr);
      compare(trial, plans, results);
      if (options_.metric != Metric::kNone) score_answers(trial, prompt, plans, results);
    }
    finish_context(record_.num_refined, results, trial, 3 * pair_.num_layers());
  }

  void score_answers(PromptTrial& trial,
                     const QaPrompt& prompt,
                     const std::vector<TriedPlan>& plans,
                     ContextResults& results) {
    std::vector<ContextMixture> mixtures;
    std::vector<Divergence> divergences;
    for (const TriedPlan& tried : plans) {
      mixtures.push_back(trial.context().mixture(tried));
      divergences.push_back(results.divergences.at(tried));
    }
    std::vector<std::vector<int32_t>> answers = trial.answers(mixtures, divergences, limits_);
    for (size_t i = 0; i < plans.size(); ++i) {
      results.scores[plans[i]] =
          score_answer(options_.metric, answer_text(tokenizer_, answers[i]), prompt.answers);
    }
  }

  // Maps first: a plan book never names a file that is not there.
  PlanBook write_results() {
    PlanBook book =
        make_plan_book(record_, {pair_, data_, prompts_, options_.metric, options_.group});
    bool has_translated =
        std::ranges::any_of(book.frontier, [](const PlanEntry& entry) { return entry.translated; });
    std::filesystem::path out = options_.out;
    if (!out.parent_path().empty()) std::filesystem::create_directories(out.parent_path());
    if (fit_ && has_translated) {
      std::vector<int32_t> layers = transitions_;
      for (int32_t layer : book.transition_layers()) layers.push_back(layer);
      std::erase_if(layers, [&](int32_t layer) {
        return std::ranges::find(fit_->input_layers(), layer) == fit_->input_layers().end();
      });
      std::ranges::sort(layers);
      layers.erase(std::ranges::unique(layers).begin(), layers.end());
      TranslationMaps maps =
          fit_->solve(TranslationFit::kNoFold, {*record_.shape}, fit_->all_layers(), layers)
              .front();
      book.maps_file = std::filesystem::path(out).replace_extension(".safetensors");
      save_translation(book.maps_file, maps);
    }
    book.profile_seconds = seconds_before_ + watch_.ms() / 1000;
    write_plots(out, book);
    save_plan_book(out, book);
    folder_.remove();
    return book;
  }

  const ModelPair pair_;
  const Tokenizer& tokenizer_;
  const ProfileOptions& options_;
  QaFile data_;
  ProfileFolder folder_;
  std::vector<QaPrompt> prompts_;
  std::vector<QaPrompt> fit_prompts_;  // beyond those measured
  AnswerLimits limits_;
  std::vector<int32_t> transitions_;
  std::unique_ptr<TranslationFit> fit_;
  ProfileRecord record_;
  std::map<int32_t, std::unique_ptr<Translator>> translators_;  // by fold left out
  std::unique_ptr<Progress> progress_;
  Stopwatch watch_;
  Stopwatch since_save_;
  double seconds_before_ = 0;
};

}  // namespace

std::filesystem::path partial_path(const std::filesystem::path& out) {
  return out.string() + ".partial";
}

PlanBook run_profile(const ModelPair& pair,
                     const Tokenizer& tokenizer,
                     const ProfileOptions& options) {
  if (options.contexts < 1 || options.group < 1 || options.group >= pair.num_layers()) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{} contexts in groups of {} layers: expected at least one context "
                              "and groups of 1 to {} layers",
                              options.contexts, options.group, pair.num_layers() - 1));
  }
  if (options.out.extension() == ".safetensors" || options.out.extension() == ".svg") {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("plan book \"{}\": expected a name like qa-from-base.json; maps and "
                              "plots get their own",
                              options.out.string()));
  }
  return ProfileRun(pair, tokenizer, options).run();
}

}  // namespace droidspeak
