// Rows of caches as the fit wants them: host floats, one column of the cache per row of the result.
#pragma once

#include <span>
#include <vector>

#include "kv/kv_cache.h"
#include "model/family.h"
#include "profiler/map_fit.h"

namespace droidspeak {

// [columns, tokens], row-major.
struct Columns {
  int64_t columns = 0;
  int64_t tokens = 0;
  std::vector<float> values;

  Columns(int64_t c, int64_t t) : columns(c), tokens(t), values(static_cast<size_t>(c * t)) {}

  float* column(int64_t i) { return values.data() + i * tokens; }

  const float* column(int64_t i) const { return values.data() + i * tokens; }
};

// [K of all heads before RoPE | V of all heads] of the first `tokens` positions of a table, as
// translate_kv() sees them. rope: make_rope_table() of the model.
struct KvRowSource {
  Ops& ops;
  const KvCache& kv;
  std::span<const float> rope;
  int32_t rotary_dim = 0;
};

Columns gather_kv(const KvRowSource& source,
                  int32_t layer,
                  const BlockTable& table,
                  int32_t tokens);

// Hidden rows [tokens, d_model] of a device tensor.
Columns gather_hidden(Ops& ops, TensorView hidden);

// Adds the rows of one context. Products run on the device. Throws Failure when a value is not
// finite.
void accumulate(Ops& ops, const Columns& sender, const Columns& receiver, NormalEquations& sums);

}  // namespace droidspeak
