#include "engine/plan_library.h"

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

PairBook load_pair(Ops& ops, const ModelConfig& config, const std::filesystem::path& file) {
  PairBook pair{load_plan_book(file), nullptr};
  if (pair.book.num_layers != config.num_layers) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{}: num_layers is {}: the model has {}", file.string(),
                              pair.book.num_layers, config.num_layers));
  }
  if (pair.book.maps_file.empty()) return pair;
  pair.maps = std::make_shared<LazyTranslator>(
      ops, pair.book.maps_file,
      LazyTranslator::Shape{config.num_layers, config.kv_columns(), config.d_model});
  return pair;
}

}  // namespace

PlanLibrary::PlanLibrary(Ops& ops,
                         const ModelConfig& config,
                         const std::vector<std::filesystem::path>& files) {
  for (const std::filesystem::path& file : files) pairs_.push_back(load_pair(ops, config, file));
}

const PairBook* PlanLibrary::find(const Variant& sender, const Variant& receiver) const {
  for (const PairBook& pair : pairs_) {
    if (is_sender(pair.book, sender) && is_receiver(pair.book, receiver)) return &pair;
  }
  return nullptr;
}

std::vector<int32_t> PlanLibrary::captured_layers(const Variant& sender) const {
  std::set<int32_t> layers;
  for (const PairBook& pair : pairs_) {
    if (!is_sender(pair.book, sender)) continue;
    for (int32_t layer : pair.book.transition_layers()) layers.insert(layer);
  }
  return {layers.begin(), layers.end()};
}

}  // namespace droidspeak
