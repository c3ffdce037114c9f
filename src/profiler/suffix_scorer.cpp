#include "profiler/suffix_scorer.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"

namespace droidspeak {
namespace {

// Rows per forward pass: enough for full speed, little enough for the caches.
constexpr int64_t kMaxRows = 1536;

bool is_same(std::span<const int32_t> a, std::span<const int32_t> b) {
  return a.data() == b.data();
}

}  // namespace

SuffixScorer::SuffixScorer(Ops& ops, KvCache& kv, const Variant& receiver)
    : ops_(ops), kv_(kv), receiver_(receiver) {}

void SuffixScorer::score(const SuffixRows& suffix,
                         std::span<const ContextMixture> mixtures,
                         const Visit& visit) {
  check(suffix.first_position % kBlockTokens == 0, "a suffix starts with a block");
  check(suffix.num_scored() > 0, "a suffix with rows to score");
  auto rows = static_cast<int32_t>(suffix.tokens.size());
  int32_t tail_blocks = blocks_for(rows);
  int64_t most =
      std::min<int64_t>(kv_.pool().num_free() / tail_blocks, std::max<int64_t>(1, kMaxRows / rows));
  if (most == 0) {
    throw Failure(ErrorCode::kExhausted, fmt::format("a question of {} tokens behind a context of "
                                                     "{}: K/V memory is full (raise --kv-memory)",
                                                     rows, suffix.first_position));
  }
  for (size_t first = 0; first < mixtures.size(); first += static_cast<size_t>(most)) {
    size_t count = std::min(mixtures.size() - first, static_cast<size_t>(most));
    tails_.resize(count);
    for (BlockTable& tail : tails_) {
      check(tail.reserve(kv_.pool(), rows), "blocks were counted");
    }
    score_batch(suffix, mixtures.subspan(first, count), first, visit);
    tails_.clear();
  }
}

void SuffixScorer::score_batch(const SuffixRows& suffix,
                               std::span<const ContextMixture> mixtures,
                               size_t first,
                               const Visit& visit) {
  Transformer& transformer = *receiver_.transformer;
  auto rows = std::ssize(suffix.tokens);
  TensorView hidden = hidden_.reshape(ops_.device(), ops_.activation_dtype(),
                                      rows * std::ssize(mixtures), transformer.config().d_model);
  transformer.embed(suffix.tokens, hidden.row_range(0, rows));
  std::vector<Group> groups(1);
  for (size_t i = 0; i < mixtures.size(); ++i) groups[0].mixtures.push_back(i);
  for (int32_t layer = 0; layer < transformer.config().num_layers; ++layer) {
    split_groups(groups, mixtures, static_cast<size_t>(layer), rows);
    run_layer(suffix, groups, mixtures, layer);
  }
  visit_logits(suffix, groups, first, visit);
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

void SuffixScorer::visit_logits(const SuffixRows& suffix,
                                const std::vector<Group>& groups,
                                size_t first,
                                const Visit& visit) {
  for (const Group& group : groups) {
    int64_t end = static_cast<int64_t>(group.slot + 1) * std::ssize(suffix.tokens);
    TensorView hidden = hidden_.view().row_range(end - suffix.num_scored(), end);
    ScoredRows rows{logits(hidden), hidden};
    for (size_t mixture : group.mixtures) visit(first + mixture, rows);
  }
}

std::span<const float> SuffixScorer::logits(TensorView hidden) {
  Transformer& transformer = *receiver_.transformer;
  TensorView out =
      logits_.reshape(ops_.device(), DType::kF32, hidden.rows, transformer.config().vocab_size);
  transformer.logits(hidden, out);
  host_logits_.resize(static_cast<size_t>(out.rows * out.columns));
  ops_.device().to_host(host_logits_.data(), out.data, host_logits_.size() * sizeof(float));
  return host_logits_;
}

}  // namespace droidspeak
