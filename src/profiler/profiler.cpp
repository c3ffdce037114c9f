#include "profiler/profiler.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <span>

#include <fmt/format.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/progress.h"
#include "profiler/book_builder.h"
#include "profiler/confirmation.h"
#include "profiler/gate_choice.h"
#include "profiler/plan_measurement.h"
#include "profiler/plots.h"
#include "profiler/profile_limits.h"
#include "profiler/profile_record.h"
#include "profiler/profile_rows.h"
#include "profiler/shape_choice.h"

namespace droidspeak {
namespace {

// Maps that one fold is judged with.
struct FoldMaps {
  TranslationMaps maps;
  std::unique_ptr<Translator> translator;
};

class ProfileRun {
 public:
  ProfileRun(const ModelPair& pair, const Tokenizer& tokenizer, const ProfileOptions& options)
      : pair_(pair),
        options_(options),
        rows_(choose_rows(tokenizer, options, pair.receiver->transformer->max_positions())),
        folder_(partial_path(options.out)),
        measurement_{tokenizer, options.metric, {options.answer_tokens, tokenizer.end_of_turn_ids}},
        tools_(pair) {
    for (int32_t b = options.group; b < pair.num_layers(); b += options.group)
      transitions_.push_back(b);
    if (num_contexts() >= 2 || !rows_.fit.empty()) {
      int32_t step = pair.receiver->transformer->config().d_model <= kWideModel ? 1 : options.group;
      TranslationFitOptions fit{std::min(kFolds, num_contexts()), {}};
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
    if (fit_ && !record_.shapes) read_fit_contexts();
    save_after(0);
    end_phase("both models' readings and raw plans");
    if (fit_) {
      if (!record_.shapes) choose_map_shapes();
      end_phase("shapes of the maps");
      for (int32_t i = record_.num_translated; i < num_contexts(); ++i) measure_translated(i);
      end_phase("translated plans");
    }
    if (record_.candidates.empty()) record_.candidates = choose_candidates();
    for (int32_t i = record_.num_refined; i < num_contexts(); ++i) measure_candidates(i);
    save_after(0);
    end_phase("the frontier's plans");
    if (record_.looks.empty())
      record_.looks = look_plans(likely_losses(record_), cost_shape(record_, book_source()));
    for (int32_t i = record_.num_looked; i < num_contexts(); ++i) measure_looks(i);
    save_after(0);
    end_phase("plans with looked-at tokens");
    if (record_.finalists.empty() && !rows_.confirming.empty())
      record_.finalists = choose_finalists(record_, cost_shape(record_, book_source()));
    for (int32_t i = record_.num_confirmed; i < std::ssize(rows_.confirming); ++i) confirm(i);
    save_after(0);
    end_phase("the finalists on further rows");
    PlanBook book = write_results();
    end_phase("the book and its maps");
    return book;
  }

 private:
  int32_t num_contexts() const { return static_cast<int32_t>(rows_.measured.size()); }

  void start_record() {
    record_.fingerprint = make_fingerprint();
    record_.confirming = digest_of_confirming();
    if (options_.start == ProfileStart::kResume) {
      std::optional<ProfileRecord> saved = folder_.load(record_, fit_.get());
      if (saved) record_ = std::move(*saved);
      if (!saved)
        warn(fmt::format("{}: no state of a stopped profile; starting from the beginning",
                         folder_.path().string()));
    } else {
      folder_.remove();
    }
    record_.sensitivity.resize(static_cast<size_t>(pair_.num_layers()));
    seconds_before_ = record_.seconds;
  }

  std::string make_fingerprint() const {
    Sha256 hash;
    for (const Variant* variant : {pair_.sender.get(), pair_.receiver.get()}) {
      hash.add_field('m', variant->model_digest.hex());
      hash.add_field('a', variant->adapter_digest.hex());
      hash.add_field('u', variant->transformer->formula().hex());
      hash.add_field('p', static_cast<uint64_t>(variant->transformer->weights().precision));
    }
    hash.add_field('d', rows_.data.digest.hex());
    hash.add_field('r', digest_of(rows_.measured).hex());
    hash.add_field('f', digest_of(rows_.fit).hex());
    for (int32_t token : measurement_.limits.end_tokens)
      hash.add_field('e', static_cast<uint64_t>(token));
    for (int32_t number : {num_contexts(), options_.most_fit_rows(), options_.group,
                           options_.answer_tokens, kRecordVersion})
      hash.add_field('n', static_cast<uint64_t>(number));
    hash.add_field('s', name_of(options_.metric));
    hash.add_field('k', name_of(pair_.kv.layout().dtype));
    hash.add_field('x', name_of(pair_.ops.activation_dtype()));
    return hash.finish().hex();
  }

  // Which of a file confirm depends on the others.
  std::string digest_of_confirming() const {
    return rows_.confirming.empty() ? "" : digest_of(rows_.confirming).hex();
  }

  void warn(const std::string& text) const {
    if (options_.warn) options_.warn(text);
  }

  void end_phase(const char* name) {
    if (options_.on_phase) options_.on_phase(name, phase_.ms() / 1000);
    phase_.restart();
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

  // Of six plans' layers all shares together, and the sender's reading.
  int64_t look_steps() const { return 5 * pair_.num_layers(); }

  // Both models' readings, and about a dozen plans at a third of one each.
  int64_t confirm_steps() const { return 6 * pair_.num_layers(); }

  int64_t total_steps() const {
    int64_t steps = (num_contexts() - record_.num_raw) * raw_steps();
    steps += (num_contexts() - record_.num_refined) * 3 * pair_.num_layers();
    steps += (num_contexts() - record_.num_looked) * look_steps();
    steps += (std::ssize(rows_.confirming) - record_.num_confirmed) * confirm_steps();
    if (fit_) steps += (num_contexts() - record_.num_translated) * translated_steps();
    return steps;
  }

  void save() {
    record_.seconds = seconds_before_ + watch_.ms() / 1000;
    folder_.save(record_, fit_.get());
    since_save_.restart();
  }

  // When the last save is so long ago, and long enough for the size of the sums.
  void save_after(double seconds) {
    double writing = 0;
    if (fit_ && !folder_.has_sums_of(record_))
      writing = static_cast<double>(fit_->bytes()) / kDiskBytesPerSecond;
    if (since_save_.ms() / 1000 >= std::max(seconds, writing / kSaveShare)) save();
  }

  // Throws when the user wants to stop; what is done so far is kept.
  void check_stop() {
    if (!options_.should_stop || !options_.should_stop()) return;
    save();
    throw Failure(ErrorCode::kCancelled,
                  fmt::format("profile stopped; run it again with --resume to go on (state in {})",
                              folder_.path().string()));
  }

  PlanMeasurement measurement_of(int32_t context) {
    return {tools_, rows_.measured[static_cast<size_t>(context)], measurement_};
  }

  void finish_context(int32_t& counter, PlanMeasurement& measured, int64_t steps) {
    measured.add_to(record_.plans, counter);
    record_.layer_tokens += measured.context().layer_tokens();
    ++counter;
    progress_->advance(steps);
    save_after(kSaveSeconds);
  }

  // Recomputes the blocks of `starts` and compares all plans that begin there, many at a time: as
  // many blocks as the K/V memory holds lie side by side.
  void compare_starts(PlanMeasurement& measured,
                      const std::vector<int32_t>& starts,
                      const Translator* translator) {
    std::vector<TriedPlan> ready;
    for (int32_t b : starts) {
      check_stop();
      if (!ready.empty() && !measured.trial().has_room()) {
        measured.compare(ready);
        ready.clear();
        measured.context().forget_recomputed();
      }
      int32_t end = translator == nullptr ? pair_.num_layers() : translated_end(b);
      measured.context().recompute({b, end}, translator);
      for (const TriedPlan& tried : plans_from(b, end, translator != nullptr))
        ready.push_back(tried);
    }
    measured.compare(ready);
    measured.context().forget_recomputed();
  }

  // Both models read the context; it joins the fit unless it has before.
  void read_both(PromptTrial& trial, int32_t context, const std::vector<int32_t>& captured) {
    bool joins = fit_ && context >= record_.num_fitted;
    int32_t fold = 0;
    if (fit_) fold = context < num_contexts() ? fit_->fold_of(context) : fit_->extra_fold();
    ContextTrial::LayerVisit visit;
    if (joins) visit = fit_->visit(fold, trial.context().num_tokens());
    trial.context().read_both(captured, visit);
    if (joins) record_.num_fitted = context + 1;
  }

  // Raw plans (0, b, c) of the whole heat map, plain reuse, and one reused layer at a time.
  void measure_raw(int32_t context) {
    check_stop();
    PlanMeasurement measured = measurement_of(context);
    read_both(measured.trial(), context, transitions_);
    ReferenceAnswer reference = measured.answer_in_full();
    measured.compare(own_start_plans());
    std::vector<ContextMixture> single;
    for (int32_t layer = 0; layer < pair_.num_layers(); ++layer)
      single.push_back(measured.context().only_reused(layer));
    std::vector<Divergence> sensitivity = measured.trial().compare(single);
    compare_starts(measured, transitions_, nullptr);
    record_.references.push_back(std::move(reference));
    for (size_t layer = 0; layer < sensitivity.size(); ++layer)
      record_.sensitivity[layer].push_back(sensitivity[layer].kl);
    finish_context(record_.num_raw, measured, raw_steps());
  }

  // Contexts that serve the maps only.
  void read_fit_contexts() {
    auto done = static_cast<size_t>(std::max(0, record_.num_fitted - num_contexts()));
    for (size_t i = done; i < rows_.fit.size(); ++i) {
      check_stop();
      PromptTrial trial(tools_, rows_.fit[i]);
      read_both(trial, num_contexts() + static_cast<int32_t>(i), {});
      record_.fit_tokens += trial.context().layer_tokens();
      save_after(kSaveSeconds);
    }
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

  void choose_map_shapes() {
    check_stop();
    progress_->note("choosing the maps");
    ShapeChoice choice(tools_, *fit_, mean_divergences(record_), options_.group);
    std::vector<ShapeTrial> trials;
    for (int32_t i = 0; i < num_contexts(); ++i) {
      if (fit_->fold_of(i) == ShapeChoice::kFold)
        trials.push_back(
            {&rows_.measured[static_cast<size_t>(i)], &record_.references[static_cast<size_t>(i)]});
    }
    auto pause = [this] { check_stop(); };
    std::span<const ShapeTrial> few(trials.data(),
                                    std::min(trials.size(), ShapeChoice::kMaxContexts));
    MapShapes shapes = choice.choose(few, pause);
    GateChoice gates(tools_, *fit_, shapes);
    shapes.raw_layers = gates.choose(trials, pause);
    record_.shapes = std::move(shapes);
    record_.layer_tokens += choice.layer_tokens();
    record_.gate_tokens = gates.layer_tokens();
    progress_->note("");
    save_after(0);
  }

  // Maps of K/V fitted without a fold, of the layers that have one.
  TranslationFit::LayerMaps solve_kv(int32_t fold) const {
    std::vector<int32_t> layers = fit_->all_layers();
    std::erase_if(layers,
                  [&](int32_t layer) { return record_.shapes->raw_layers.contains(layer); });
    return fit_->solve(TranslationFit::Kind::kKeyValue, fold, record_.shapes->kv, layers);
  }

  // Maps fitted without a fold, with those of E at `inputs`.
  const Translator& translator_of(int32_t fold, const std::vector<int32_t>& inputs) {
    FoldMaps& found = translators_[fold];
    std::vector<int32_t> missing;
    for (int32_t layer : inputs) {
      if (!found.maps.inputs.contains(layer)) missing.push_back(layer);
    }
    if (found.translator && missing.empty()) return *found.translator;
    progress_->note("fitting maps");
    using Kind = TranslationFit::Kind;
    if (!found.translator) found.maps.kv = solve_kv(fold);
    found.maps.inputs.merge(fit_->solve(Kind::kInput, fold, record_.shapes->inputs, missing));
    found.translator = std::make_unique<Translator>(pair_.ops, found.maps);
    progress_->note("");
    return *found.translator;
  }

  void measure_translated(int32_t context) {
    check_stop();
    const Translator& translator = translator_of(fit_->fold_of(context), transitions_);
    PlanMeasurement measured = measurement_of(context);
    measured.trial().set_reference(record_.references[static_cast<size_t>(context)]);
    measured.context().read_sender(transitions_, 0);
    measured.context().translate(translator);
    measured.compare({{ReusePlan::reuse_all(), true}});
    compare_starts(measured, transitions_, &translator);
    finish_context(record_.num_translated, measured, translated_steps());
  }

  std::vector<TriedPlan> choose_candidates() const {
    double spent = prefill_equivalents(record_.layer_tokens, rows_.measured, pair_.num_layers());
    double left = std::min(kWorkShare * pair_.num_layers() - spent, kFrontierWork) - 1;
    RefinementLimits limits{.num_layers = pair_.num_layers(),
                            .context_layers = std::max(left * pair_.num_layers(), 0.0),
                            .input_layers = {}};
    if (fit_) limits.input_layers = fit_->input_layers();
    return refinement_plans(likely_losses(record_), limits);
  }

  // Reads a context as far as the plans need it. Null when none of them is translated.
  const Translator* prepare(PromptTrial& trial,
                            int32_t context,
                            const std::vector<TriedPlan>& plans) {
    PlanNeeds needs = needs_of(plans);
    const Translator* translator =
        needs.is_translated ? &translator_of(fit_->fold_of(context), needs.translated_inputs)
                            : nullptr;
    trial.set_reference(record_.references[static_cast<size_t>(context)]);
    trial.context().read_sender(needs.inputs, receiver_layers(plans));
    if (translator != nullptr) trial.context().translate(*translator);
    return translator;
  }

  // Frontier plans and their neighbours, with greedy answers.
  void measure_candidates(int32_t context) {
    check_stop();
    std::map<std::pair<bool, int32_t>, std::vector<TriedPlan>> groups;  // by (translated, b)
    for (const TriedPlan& tried : record_.candidates) {
      int32_t b = tried.plan.needs_layer_input() ? tried.plan.b : 0;
      groups[{tried.translated, b}].push_back(tried);
    }
    PlanMeasurement measured = measurement_of(context);
    const Translator* translator = prepare(measured.trial(), context, record_.candidates);
    std::vector<TriedPlan> ready;
    for (const auto& [start, plans] : groups) {
      check_stop();
      auto [is_translated, b] = start;
      int32_t end = 0;
      for (const TriedPlan& tried : plans) end = std::max(end, tried.plan.c);
      if (b > 0 && !ready.empty() && !measured.trial().has_room()) {
        measured.compare_and_score(ready);
        ready.clear();
        measured.context().forget_recomputed();
      }
      if (b > 0) measured.context().recompute({b, end}, is_translated ? translator : nullptr);
      ready.insert(ready.end(), plans.begin(), plans.end());
    }
    measured.compare_and_score(ready);
    finish_context(record_.num_refined, measured, 3 * pair_.num_layers());
  }

  BookSource book_source() const {
    return {pair_, rows_.data, rows_.measured, options_.metric, options_.group};
  }

  // Plans that look at tokens, grouped by their layers: one scout serves all shares.
  void measure_looks(int32_t context) {
    check_stop();
    std::map<TriedPlan, std::vector<TriedPlan>> groups;
    for (const TriedPlan& tried : record_.looks) groups[tried.layers()].push_back(tried);
    PlanMeasurement measured = measurement_of(context);
    const Translator* translator = prepare(measured.trial(), context, record_.looks);
    for (const auto& [base, plans] : groups) {
      check_stop();
      measured.measure_group(base, plans, translator);
    }
    finish_context(record_.num_looked, measured, look_steps());
  }

  void confirm(int32_t row) {
    PlanNeeds needs = needs_of(record_.finalists);
    const Translator* translator =
        needs.is_translated ? &translator_of(TranslationFit::kNoFold, needs.translated_inputs)
                            : nullptr;
    PlanMeasurement measured{tools_, rows_.confirming[static_cast<size_t>(row)], measurement_};
    confirm_finalists(measured, translator, record_, [this] { check_stop(); });
    progress_->advance(confirm_steps());
    save_after(kSaveSeconds);
  }

  static std::filesystem::path new_file(const std::filesystem::path& path) {
    return path.string() + ".new";
  }

  // Maps and book change together, when both are written: until then what was there holds together.
  PlanBook write_results() {
    PlanBook book = make_plan_book(record_, book_source());
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
      layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
      using Kind = TranslationFit::Kind;
      constexpr int32_t kAll = TranslationFit::kNoFold;
      TranslationMaps maps{solve_kv(kAll),
                           fit_->solve(Kind::kInput, kAll, record_.shapes->inputs, layers)};
      book.maps_file = std::filesystem::path(out).replace_extension(".safetensors");
      save_translation(new_file(book.maps_file), maps);
      book.maps_digest = digest_of_maps(new_file(book.maps_file));
    }
    book.profile_seconds = seconds_before_ + watch_.ms() / 1000;
    write_plots(out, book);
    save_plan_book(new_file(out), book);
    if (book.maps_digest) std::filesystem::rename(new_file(book.maps_file), book.maps_file);
    std::filesystem::rename(new_file(out), out);
    folder_.remove();
    return book;
  }

  const ModelPair pair_;
  const ProfileOptions& options_;
  const ProfileRows rows_;
  ProfileFolder folder_;
  const MeasurementOptions measurement_;
  std::vector<int32_t> transitions_;
  std::unique_ptr<TranslationFit> fit_;
  ProfileRecord record_;
  TrialTools tools_;
  std::map<int32_t, FoldMaps> translators_;  // by fold left out
  std::unique_ptr<Progress> progress_;
  Stopwatch watch_;
  Stopwatch phase_;
  Stopwatch since_save_;
  double seconds_before_ = 0;
};

std::string name_with_path(const Variant& variant) {
  return fmt::format("\"{}\" ({})", variant.name, variant.path.string());
}

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
  ProfileRun run(pair, tokenizer, options);
  try {
    return run.run();
  } catch (const Failure& failure) {
    // Found in what the models compute, which names neither.
    if (failure.code() != ErrorCode::kDataCorrupt) throw;
    throw Failure(failure.code(), fmt::format("{} from {}: {}", name_with_path(*pair.receiver),
                                              name_with_path(*pair.sender), failure.what()));
  }
}

}  // namespace droidspeak
