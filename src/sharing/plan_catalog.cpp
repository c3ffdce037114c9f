#include "sharing/plan_catalog.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "base/error.h"
#include "sharing/look.h"

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
  const int32_t look_layer =
      book != nullptr ? book->first_look_layer() : default_look_layer(num_layers_);
  if (!request.is_auto) {
    auto maps = request.is_raw || book == nullptr || request.plan.is_full(num_layers_)
                    ? nullptr
                    : translator(*book);
    // Numbers, where "reuse" would be the raw plan.
    bool is_word_taken = !request.is_raw && request.plan == ReusePlan::reuse_all();
    std::string shown = is_word_taken ? "0,0,0" : request.plan.to_string(num_layers_);
    return {request.plan, maps, shown, look_layer};
  }
  const PlanEntry* entry = book == nullptr ? nullptr : book->cheapest(floor);
  if (entry == nullptr) return {ReusePlan::full(num_layers_), nullptr, "full", look_layer};
  return {entry->plan, entry->translated ? translator(*book) : nullptr,
          entry->plan.to_string(num_layers_), look_layer};
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
