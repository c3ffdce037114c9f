#include "store/tiers/table_learner.h"

#include <algorithm>
#include <utility>

#include "codec/learn_tables.h"

namespace droidspeak {
namespace {

constexpr size_t kLearnedBlocks = kLearnedTokens / kBlockTokens;

}  // namespace

TableLearner::TableLearner(CodedModel model, const KvLayout& layout)
    : model_(std::move(model)), layout_(layout) {}

bool TableLearner::can_learn() const {
  return layout_.num_layers > 0 && layout_.dtype != DType::kI8;
}

void TableLearner::remember(std::span<const std::shared_ptr<PendingWrite>> batch) {
  for (const std::shared_ptr<PendingWrite>& write : batch) {
    if (!write->is_cancelled) remember(*write);
  }
}

void TableLearner::remember(const PendingWrite& write) {
  for (const PendingEntry& entry : write.entries) {
    if (entry.id.kind != EntryKind::kKeyValue || entry.bytes.size() != layout_.layer_bytes())
      continue;
    auto is_same = [&](const Remembered& r) { return r.label.layer == entry.id.layer; };
    auto seen = static_cast<size_t>(std::count_if(remembered_.begin(), remembered_.end(), is_same));
    if (seen >= kLearnedBlocks) continue;
    remembered_.push_back({{entry.id.layer, write.label.position * kBlockTokens},
                           {entry.bytes.begin(), entry.bytes.end()}});
  }
}

bool TableLearner::has_seen_enough() const {
  return remembered_.size() >= kLearnedBlocks * static_cast<size_t>(layout_.num_layers);
}

Result<CodecTables> TableLearner::learn() {
  std::vector<KvSample> samples;
  for (const Remembered& r : remembered_) samples.push_back({r.label, r.values});
  Result<CodecTables> learned =
      learn_tables(layout_, model_.rotation, samples, {.factors = model_.step_factors});
  remembered_.clear();
  return learned;
}

}  // namespace droidspeak
