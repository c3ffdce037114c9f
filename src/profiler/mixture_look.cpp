#include "profiler/mixture_look.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "sharing/look.h"
#include "sharing/prompt_runner.h"

namespace droidspeak {

MixtureLook::MixtureLook(Ops& ops, KvCache& kv, const Variant& receiver)
    : ops_(ops), kv_(kv), receiver_(receiver) {}

std::vector<float> MixtureLook::scout(std::span<const int32_t> question,
                                      int32_t context_tokens,
                                      const ContextMixture& mixture) {
  Transformer& transformer = *receiver_.transformer;
  BlockTable tail;
  if (!tail.reserve(kv_.pool(), static_cast<int32_t>(question.size()) + 1)) {
    throw Failure(ErrorCode::kExhausted,
                  fmt::format("a question of {} tokens: K/V memory is full (raise --kv-memory)",
                              question.size()));
  }
  const Look look(ops_, context_tokens, default_look_layer(transformer.config().num_layers));
  TensorView hidden = run(question, context_tokens, mixture, tail, look.mass());
  TensorView logits =
      logits_.reshape(ops_.device(), DType::kF32, 1, transformer.config().vocab_size);
  transformer.logits(hidden.row_range(hidden.rows - 1, hidden.rows), logits);
  int32_t draft = 0;
  greedy_tokens(ops_, logits, std::span(&draft, 1));
  const int32_t end = context_tokens + static_cast<int32_t>(question.size());
  if (end < transformer.max_positions()) run(std::span(&draft, 1), end, mixture, tail, look.mass());
  return look.sums();
}

TensorView MixtureLook::run(std::span<const int32_t> tokens,
                            int32_t first_position,
                            const ContextMixture& mixture,
                            const BlockTable& tail,
                            const AttentionMass& mass) {
  Transformer& transformer = *receiver_.transformer;
  const auto rows = static_cast<int32_t>(tokens.size());
  TensorView hidden =
      hidden_.reshape(ops_.device(), ops_.activation_dtype(), rows, transformer.config().d_model);
  transformer.embed(tokens, hidden);
  std::vector<int32_t> blocks;
  for (int32_t layer = 0; layer < transformer.config().num_layers; ++layer) {
    std::span<const int32_t> context = mixture[static_cast<size_t>(layer)];
    blocks.assign(context.begin(), context.end());
    blocks.insert(blocks.end(), tail.blocks().begin(), tail.blocks().end());
    BatchSlice slice{{0, rows, first_position, blocks}, receiver_.adapter.get(), 1, &mass};
    transformer.forward_layers({layer, layer + 1}, std::span(&slice, 1), kv_, hidden);
  }
  return hidden;
}

void MixtureLook::read(std::span<const int32_t> context,
                       std::span<const int32_t> positions,
                       const BlockTable& table) {
  Transformer& transformer = *receiver_.transformer;
  const auto most = static_cast<size_t>(ops_.prefill_rows());
  while (!positions.empty()) {
    std::span<const int32_t> some = positions.first(std::min(positions.size(), most));
    positions = positions.subspan(some.size());
    std::vector<int32_t> tokens;
    for (int32_t position : some) tokens.push_back(context[static_cast<size_t>(position)]);
    TensorView hidden = hidden_.reshape(ops_.device(), ops_.activation_dtype(), std::ssize(tokens),
                                        transformer.config().d_model);
    transformer.embed(tokens, hidden);
    const auto answer_begin = static_cast<int32_t>(context.size());
    BatchSlice slice{{0, static_cast<int32_t>(some.size()), 0, table.blocks(), some, answer_begin},
                     receiver_.adapter.get()};
    transformer.forward_to_kv({0, transformer.config().num_layers}, std::span(&slice, 1), kv_,
                              hidden);
  }
}

}  // namespace droidspeak
