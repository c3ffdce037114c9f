#include "profiler/suffix_scorer.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"

namespace droidspeak {
namespace {

// Rows per forward pass, on devices that are content with few: little enough for the caches.
constexpr int64_t kMaxRows = 1536;
// Logits made at a time: 64 MiB.
constexpr int64_t kMaxLogits = 16 << 20;

bool is_same(std::span<const int32_t> a, std::span<const int32_t> b) {
  return a.data() == b.data();
}

}  // namespace

SuffixScorer::SuffixScorer(Ops& ops, KvCache& kv, const Variant& receiver)
    : ops_(ops), kv_(kv), receiver_(receiver) {}

int64_t SuffixScorer::batch_size(const SuffixRows& suffix) const {
  check(suffix.first_position % kBlockTokens == 0, "a suffix starts with a block");
  check(suffix.num_scored() > 0, "a suffix with rows to score");
  auto rows = static_cast<int32_t>(suffix.tokens.size());
  int64_t most_rows = std::max<int64_t>(kMaxRows, ops_.prefill_rows());
  int64_t most = std::min<int64_t>(kv_.pool().num_free() / blocks_for(rows),
                                   std::max<int64_t>(1, most_rows / rows));
  if (most == 0) {
    throw Failure(ErrorCode::kExhausted, fmt::format("a question of {} tokens behind a context of "
                                                     "{}: K/V memory is full (raise --kv-memory)",
                                                     rows, suffix.first_position));
  }
  return most;
}

TensorView SuffixScorer::run(const SuffixRows& suffix, const ContextMixture& mixture) {
  batch_size(suffix);
  run_batch(suffix, std::span(&mixture, 1));
  return hidden_.view().row_range(suffix.first_scored, std::ssize(suffix.tokens));
}

std::vector<RowDivergence> SuffixScorer::compare(const SuffixRows& suffix,
                                                 std::span<const ContextMixture> mixtures,
                                                 TensorView reference) {
  auto most = static_cast<size_t>(batch_size(suffix));
  auto scored = static_cast<size_t>(suffix.num_scored());
  std::vector<RowDivergence> results(mixtures.size() * scored);
  for (size_t first = 0; first < mixtures.size(); first += most) {
    size_t count = std::min(mixtures.size() - first, most);
    std::vector<Group> groups = run_batch(suffix, mixtures.subspan(first, count));
    std::vector<RowDivergence> rows = compare_slots(suffix, groups.size(), reference);
    for (const Group& group : groups) {
      auto from = std::span(rows).subspan(group.slot * scored, scored);
      for (size_t mixture : group.mixtures)
        std::ranges::copy(
            from, results.begin() + static_cast<std::ptrdiff_t>((first + mixture) * scored));
    }
  }
  return results;
}

std::vector<SuffixScorer::Group> SuffixScorer::run_batch(const SuffixRows& suffix,
                                                         std::span<const ContextMixture> mixtures) {
  Transformer& transformer = *receiver_.transformer;
  auto rows = std::ssize(suffix.tokens);
  tails_.resize(mixtures.size());
  for (BlockTable& tail : tails_)
    check(tail.reserve(kv_.pool(), static_cast<int32_t>(rows)), "blocks were counted");
  TensorView hidden = hidden_.reshape(ops_.device(), ops_.activation_dtype(),
                                      rows * std::ssize(mixtures), transformer.config().d_model);
  transformer.embed(suffix.tokens, hidden.row_range(0, rows));
  std::vector<Group> groups(1);
  for (size_t i = 0; i < mixtures.size(); ++i) groups[0].mixtures.push_back(i);
  for (int32_t layer = 0; layer < transformer.config().num_layers; ++layer) {
    split_groups(groups, mixtures, static_cast<size_t>(layer), rows);
    run_layer(suffix, groups, mixtures, layer);
  }
  tails_.clear();
  return groups;
}

void SuffixScorer::split_groups(std::vector<Group>& groups,
                                std::span<const ContextMixture> mixtures,
                                size_t layer,
                                int64_t rows) {
  TensorView hidden = hidden_.view();
  auto rows_of = [&](size_t slot) {
    auto begin = static_cast<int64_t>(slot) * rows;
    return hidden.row_range(begin, begin + rows);
  };
  // Groups that split off come behind the others and are looked at in their turn.
  for (size_t g = 0; g < groups.size(); ++g) {
    std::vector<size_t> all = std::move(groups[g].mixtures);
    std::span<const int32_t> source = mixtures[all.front()][layer];
    Group others{{}, groups.size()};
    groups[g].mixtures.clear();
    for (size_t mixture : all) {
      bool stays = is_same(mixtures[mixture][layer], source);
      (stays ? groups[g].mixtures : others.mixtures).push_back(mixture);
    }
    if (others.mixtures.empty()) continue;
    ops_.copy(rows_of(groups[g].slot), rows_of(others.slot));
    groups.push_back(std::move(others));
  }
}

void SuffixScorer::run_layer(const SuffixRows& suffix,
                             const std::vector<Group>& groups,
                             std::span<const ContextMixture> mixtures,
                             int32_t layer) {
  auto rows = static_cast<int32_t>(suffix.tokens.size());
  auto context_blocks = static_cast<size_t>(suffix.first_position / kBlockTokens);
  std::vector<std::vector<int32_t>> blocks(groups.size());
  std::vector<BatchSlice> slices;
  for (size_t g = 0; g < groups.size(); ++g) {
    std::span<const int32_t> context =
        mixtures[groups[g].mixtures.front()][static_cast<size_t>(layer)];
    check(context.size() >= context_blocks, "a mixture covers the context");
    blocks[g].assign(context.begin(),
                     context.begin() + static_cast<std::ptrdiff_t>(context_blocks));
    std::span<const int32_t> tail = tails_[groups[g].slot].blocks();
    blocks[g].insert(blocks[g].end(), tail.begin(), tail.end());
    int64_t first_row = static_cast<int64_t>(groups[g].slot) * rows;
    slices.push_back(
        {{first_row, rows, suffix.first_position, blocks[g]}, receiver_.adapter.get()});
  }
  TensorView hidden = hidden_.view().row_range(0, std::ssize(groups) * rows);
  receiver_.transformer->forward_layers({layer, layer + 1}, slices, kv_, hidden);
}

std::vector<RowDivergence> SuffixScorer::compare_slots(const SuffixRows& suffix,
                                                       size_t num_slots,
                                                       TensorView reference) {
  Transformer& transformer = *receiver_.transformer;
  const ModelConfig& config = transformer.config();
  int64_t rows = std::ssize(suffix.tokens);
  int64_t scored = suffix.num_scored();
  auto slots = static_cast<int64_t>(num_slots);
  auto bytes = slots * scored * static_cast<int64_t>(sizeof(RowDivergence));
  TensorView out = compared_.reshape(ops_.device(), DType::kI8, 1, bytes);
  int64_t most = std::max<int64_t>(1, kMaxLogits / (int64_t{config.vocab_size} * scored));
  for (int64_t first = 0; first < slots; first += most) {
    int64_t count = std::min(most, slots - first);
    TensorView gathered =
        scored_.reshape(ops_.device(), ops_.activation_dtype(), count * scored, config.d_model);
    for (int64_t i = 0; i < count; ++i) {
      int64_t end = (first + i + 1) * rows;
      ops_.copy(hidden_.view().row_range(end - scored, end),
                gathered.row_range(i * scored, (i + 1) * scored));
    }
    TensorView logits =
        logits_.reshape(ops_.device(), DType::kF32, count * scored, config.vocab_size);
    transformer.logits(gathered, logits);
    ops_.divergence(reference, logits, static_cast<RowDivergence*>(out.data) + first * scored);
  }
  std::vector<RowDivergence> results(static_cast<size_t>(slots * scored));
  ops_.device().to_host(results.data(), out.data, static_cast<size_t>(bytes));
  return results;
}

}  // namespace droidspeak
