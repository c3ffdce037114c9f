// What the files of Gemma 2 and Gemma 3 have in common: norms before and after, scaled embeddings,
// GELU, windows on most layers, a scale of scores that is not always that of the head size.
#pragma once

#include <vector>

#include "model/architectures/architecture.h"

namespace droidspeak {

std::vector<RoleNames> gemma_tensor_names();

// Every `period`-th layer has no window. The scale of scores is that of "query_pre_attn_scalar".
void read_gemma_hf(const JsonFields& json, int64_t period, ModelConfig& config);

// GGUF files do not say how scores are scaled: by the head size, but in the model of
// `largest_layers` layers by the hidden size over the number of heads.
struct GemmaGguf {
  int64_t period = 0;
  int32_t largest_layers = 0;
};

void read_gemma_gguf(const GgufFile& file,
                     std::string_view prefix,
                     const GemmaGguf& rules,
                     ModelConfig& config);

}  // namespace droidspeak
