#include "sharing/plan_catalog.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "base/error.h"

namespace droidspeak {
namespace {

bool is_sender(const PlanBook& book, const Variant& variant) {
  return book.sender_model == variant.model_digest && book.sender_adapter == variant.adapter_digest;
}

bool is_receiver(const PlanBook& book, const Variant& variant) {
  return book.receiver_model == variant.model_digest &&
         book.receiver_adapter == variant.adapter_digest;
}

}  // namespace

PlanRequest parse_plan_request(std::string_view text, int32_t num_layers) {
  if (text == "auto") return {.is_auto = true, .is_raw = false, .plan = {}};
  bool is_raw = text == "reuse" || (text.size() > 1 && text.ends_with('r'));
  if (is_raw && text != "reuse") text.remove_suffix(1);
  return {.is_auto = false, .is_raw = is_raw, .plan = parse_plan(text, num_layers)};
}

PlanCatalog::PlanCatalog(Ops& ops, const ModelFamily& family)
    : ops_(ops),
      num_layers_(family.config().num_layers),
      kv_columns_(family.config().kv_columns()),
      d_model_(family.config().d_model) {
  for (const std::filesystem::path& path : family.file().plan_books) {
    PlanBook book = load_plan_book(path);
    auto sender = family.find(book.sender);
    auto receiver = family.find(book.receiver);
    if (sender == nullptr || receiver == nullptr) {
      skipped_.push_back(fmt::format("{}: \"{}\" is not loaded", path.string(),
                                     sender == nullptr ? book.sender : book.receiver));
    } else if (book.num_layers != num_layers_ || !is_sender(book, *sender) ||
               !is_receiver(book, *receiver)) {
      skipped_.push_back(fmt::format("{}: made for other weights of \"{}\"; profile the pair again",
                                     path.string(),
                                     is_sender(book, *sender) ? book.receiver : book.sender));
    } else {
      books_.push_back(std::move(book));
    }
  }
}

const PlanBook* PlanCatalog::find(const Variant& sender, const Variant& receiver) const {
  auto found = std::ranges::find_if(books_, [&](const PlanBook& book) {
    return is_sender(book, sender) && is_receiver(book, receiver);
  });
  return found == books_.end() ? nullptr : &*found;
}

std::shared_ptr<const Translator> PlanCatalog::translator(const PlanBook& book) const {
  if (book.maps_file.empty()) return nullptr;
  MutexLock lock(mutex_);
  auto& cached = translators_[book.maps_file.string()];
  if (!cached)
    cached = std::make_shared<Translator>(
        ops_, load_translation(book.maps_file, num_layers_, kv_columns_, d_model_));
  return cached;
}

ChosenPlan PlanCatalog::choose(const PlanRequest& request,
                               const Variant& sender,
                               const Variant& receiver,
                               double floor) const {
  const PlanBook* book = find(sender, receiver);
  if (!request.is_auto) {
    bool is_plain_reuse = request.is_raw && request.plan.is_reuse_all();
    auto maps = request.is_raw || book == nullptr || request.plan.is_full(num_layers_)
                    ? nullptr
                    : translator(*book);
    std::string shown =
        is_plain_reuse || request.plan.is_full(num_layers_)
            ? request.plan.to_string(num_layers_)
            : fmt::format("{},{},{}", request.plan.a, request.plan.b, request.plan.c);
    return {request.plan, maps, shown};
  }
  const PlanEntry* entry = book == nullptr ? nullptr : book->cheapest(floor);
  if (entry == nullptr) return {ReusePlan::full(num_layers_), nullptr, "full"};
  return {entry->plan, entry->translated ? translator(*book) : nullptr,
          fmt::format("{},{},{}", entry->plan.a, entry->plan.b, entry->plan.c)};
}

std::vector<int32_t> PlanCatalog::captured_layers(const Variant& sender) const {
  std::set<int32_t> layers;
  for (const PlanBook& book : books_) {
    if (!is_sender(book, sender)) continue;
    for (int32_t layer : book.transition_layers()) layers.insert(layer);
  }
  return {layers.begin(), layers.end()};
}

}  // namespace droidspeak
