#include "sharing/plan_books.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "base/error.h"
#include "sharing/followed_plan.h"
#include "sharing/look.h"

namespace droidspeak {
namespace {

// One of the two that a book was measured with.
struct MeasuredModel {
  const std::string& name;
  const Digest& model;
  const Digest& adapter;
  const std::optional<Digest>& formula;
};

MeasuredModel sender_of(const PlanBook& book) {
  return {book.sender, book.sender_model, book.sender_adapter, book.sender_formula};
}

MeasuredModel receiver_of(const PlanBook& book) {
  return {book.receiver, book.receiver_model, book.receiver_adapter, book.receiver_formula};
}

bool has_weights(const Variant& variant, const MeasuredModel& of) {
  return variant.model_digest == of.model && variant.adapter_digest == of.adapter;
}

bool is_measured(const Variant& variant, const MeasuredModel& as) {
  return has_weights(variant, as) && (!as.formula || *as.formula == variant.transformer->formula());
}

PairBook load_pair(Ops& ops, const ModelConfig& config, const std::filesystem::path& file) {
  PairBook pair{file, load_plan_book(file), nullptr};
  if (pair.book.num_layers != config.num_layers) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{}: num_layers is {}: the model has {}", file.string(),
                              pair.book.num_layers, config.num_layers));
  }
  if (pair.book.maps_file.empty()) return pair;
  pair.maps = std::make_shared<LazyTranslator>(
      ops, pair.book.maps_file,
      LazyTranslator::Shape{config.num_layers, config.kv_columns(), config.d_model});
  require_own_maps(pair.book, file, pair.maps->digest());
  return pair;
}

// Whether there can be a variant that both are.
bool may_be_same(const MeasuredModel& a, const MeasuredModel& b) {
  return a.model == b.model && a.adapter == b.adapter &&
         (!a.formula || !b.formula || *a.formula == *b.formula);
}

// Which of two were used would be a matter of their order.
void check_one_each(const std::vector<PairBook>& pairs, const std::filesystem::path& family) {
  for (size_t i = 0; i < pairs.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const PlanBook& book = pairs[i].book;
      const PlanBook& other = pairs[j].book;
      if (!may_be_for_one_pair(book, other)) continue;
      throw Failure(ErrorCode::kInvalidArgument,
                    fmt::format("{}: plan_books: {} and {} are both for sender \"{}\" and receiver "
                                "\"{}\": expected one book for each pair",
                                family.string(), pairs[j].file.string(), pairs[i].file.string(),
                                book.sender, book.receiver));
    }
  }
}

}  // namespace

bool may_be_for_one_pair(const PlanBook& a, const PlanBook& b) {
  return may_be_same(sender_of(a), sender_of(b)) && may_be_same(receiver_of(a), receiver_of(b));
}

void set_pair(PlanBook& book, const Variant& sender, const Variant& receiver) {
  book.sender = sender.name;
  book.sender_model = sender.model_digest;
  book.sender_adapter = sender.adapter_digest;
  book.sender_formula = sender.transformer->formula();
  book.receiver = receiver.name;
  book.receiver_model = receiver.model_digest;
  book.receiver_adapter = receiver.adapter_digest;
  book.receiver_formula = receiver.transformer->formula();
}

std::string describe_activated_misuse(const Variant& sender,
                                      const Variant& receiver,
                                      std::string_view plan) {
  if (plan == "full") return "";
  if (is_activated(sender)) {
    return fmt::format(
        "\"{}\" is an activated LoRA: in front of its invocation its caches are those of \"{}\", "
        "which can be the sender",
        sender.name, sender.parent);
  }
  if (!is_activated(receiver)) return "";
  if (!takes_exactly(receiver, sender)) {
    return fmt::format(
        "\"{}\" is an activated LoRA, which takes caches of \"{}\" only, not of \"{}\"",
        receiver.name, receiver.parent, sender.name);
  }
  if (plan == "auto" || plan == "reuse") return "";
  return fmt::format(
      "plan \"{}\": \"{}\" is an activated LoRA, which takes every layer of \"{}\" in front of its "
      "invocation, exactly; expected auto, reuse or full",
      plan, receiver.name, receiver.parent);
}

PlanBooks::PlanBooks(Ops& ops, const ModelConfig& config, const FamilyFile& family)
    : num_layers_(config.num_layers) {
  for (const std::filesystem::path& file : family.plan_books)
    pairs_.push_back(load_pair(ops, config, file));
  check_one_each(pairs_, family.path);
  if (family.unprofiled.empty()) return;
  PlanRequest request;
  try {
    request = parse_plan_request(family.unprofiled, num_layers_);
  } catch (const Failure& failure) {
    throw Failure(failure.code(),
                  fmt::format("{}: unprofiled: {}", family.path.string(), failure.what()));
  }
  if (request.is_auto || !request.plan.is_reuse_all()) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{}: unprofiled is \"{}\": expected reuse or reuse+S%, which need no "
                              "plan book",
                              family.path.string(), family.unprofiled));
  }
  unprofiled_ = request.plan;
}

const PairBook* PlanBooks::find(const Variant& sender, const Variant& receiver) const {
  for (const PairBook& pair : pairs_) {
    if (is_measured(sender, sender_of(pair.book)) && is_measured(receiver, receiver_of(pair.book)))
      return &pair;
  }
  return nullptr;
}

std::vector<int32_t> PlanBooks::captured_layers(const Variant& sender) const {
  std::set<int32_t> layers;
  for (const PairBook& pair : pairs_) {
    if (!is_measured(sender, sender_of(pair.book))) continue;
    for (int32_t layer : pair.book.transition_layers()) layers.insert(layer);
  }
  return {layers.begin(), layers.end()};
}

std::optional<std::string> PairBook::why_unused(const ModelFamily& family) const {
  const auto variants = family.variants();
  auto any = [&](auto* fits, const MeasuredModel& model) {
    return std::ranges::any_of(variants, [&](const auto& v) { return fits(*v, model); });
  };
  const bool has_sender = any(is_measured, sender_of(book));
  if (has_sender && any(is_measured, receiver_of(book))) return std::nullopt;
  const MeasuredModel missing = has_sender ? receiver_of(book) : sender_of(book);
  if (any(has_weights, missing)) {
    return fmt::format(
        "made for another configuration of \"{}\" (RoPE, windows, norms or scales of its "
        "config.json); profile the pair again, or restore it",
        missing.name);
  }
  if (family.find(missing.name) == nullptr)
    return fmt::format("\"{}\" is not loaded", missing.name);
  return fmt::format("made for other weights of \"{}\"; profile the pair again", missing.name);
}

std::vector<std::string> PlanBooks::unused(const ModelFamily& family) const {
  std::vector<std::string> reasons;
  for (const PairBook& pair : pairs_) {
    if (auto why = pair.why_unused(family))
      reasons.push_back(fmt::format("{}: {}", pair.file.string(), *why));
  }
  return reasons;
}

ChosenPlan PlanBooks::choose_activated(const PlanRequest& request,
                                       const Variant& sender,
                                       const Variant& receiver) const {
  std::string plan = request.is_auto ? "auto" : request.plan.to_string(num_layers_);
  std::string misuse = describe_activated_misuse(sender, receiver, plan);
  if (!misuse.empty()) throw Failure(ErrorCode::kInvalidArgument, misuse);
  const ReusePlan taken = request.is_auto ? ReusePlan::reuse_all() : request.plan;
  return {taken, nullptr, taken.to_string(num_layers_)};
}

ChosenPlan PlanBooks::choose(const PlanRequest& request,
                             const Variant& sender,
                             const Variant& receiver,
                             double floor) const {
  if (is_activated(sender) || is_activated(receiver))
    return choose_activated(request, sender, receiver);
  const PairBook* pair = find(sender, receiver);
  ChosenPlan chosen{ReusePlan::full(num_layers_), nullptr, "full", default_look_layer(num_layers_)};
  if (pair != nullptr) chosen.look_layer = pair->book.first_look_layer();
  bool is_translated = !request.is_raw && pair != nullptr;
  if (!request.is_auto) {
    chosen.plan = request.plan;
  } else if (pair == nullptr) {
    if (!unprofiled_) return chosen;
    chosen.plan = *unprofiled_;
  } else {
    const PlanEntry* entry = pair->book.cheapest(floor);
    if (entry == nullptr) return chosen;
    chosen.plan = entry->plan;
    is_translated = entry->translated;
  }
  if (is_translated && pair->maps && !chosen.plan.is_full(num_layers_))
    chosen.translator = pair->maps->get().take_or_throw();
  chosen.shown = name_of_followed(chosen.plan, chosen.translator != nullptr, num_layers_);
  return chosen;
}

}  // namespace droidspeak
