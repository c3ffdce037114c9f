// The slow, obvious transformer: double precision, one token at a time over plain vectors, written
// from the definition. Llama architecture, Hugging Face checkpoint, optional LoRA merged by hand.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "model/model_config.h"
#include "sharing/reuse_plan.h"

namespace droidspeak {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

// What a model leaves behind for a context: per layer its input, keys (rotated) and values per
// token.
struct ReferenceCache {
  std::vector<Rows> inputs;  // [layer][token][d_model]
  std::vector<Rows> keys;    // [layer][token][kv columns]
  std::vector<Rows> values;
};

// x += (x A) B + bias on each row: `down` is [rank][columns], `up` [columns][rank].
struct ReferenceMap {
  Rows down;
  Rows up;
  Row bias;

  Row apply(const Row& row) const;
};

struct ReferenceMaps {
  std::map<int32_t, ReferenceMap> kv;      // by layer, on [K before RoPE | V]
  std::map<int32_t, ReferenceMap> inputs;  // by transition layer
};

class ReferenceModel {
 public:
  // `adapter` empty: the checkpoint alone.
  ReferenceModel(const std::filesystem::path& checkpoint, const std::filesystem::path& adapter);

  const ModelConfig& config() const { return config_; }

  // Ordinary prefill.
  ReferenceCache read(const std::vector<int32_t>& tokens) const;
  // Recomputes layers [begin, end) of a context from the input of `begin`.
  void recompute(int32_t begin, int32_t end, Rows input, ReferenceCache& cache) const;
  // Logits of every token of `suffix` that follows the cached context. The cache is not changed.
  Rows suffix_logits(const std::vector<int32_t>& suffix, ReferenceCache cache) const;
  // Final states of the same tokens, behind the last norm.
  Rows suffix_states(const std::vector<int32_t>& suffix, ReferenceCache cache) const;
  Rows embed(const std::vector<int32_t>& tokens) const;
  // How much the last of `suffix` and the most likely token behind it look at each context token,
  // from `first_layer` on.
  Row attention_mass(std::vector<int32_t> suffix, ReferenceCache cache, int32_t first_layer) const;
  // Reads the tokens at these positions, ascending, anew through all layers.
  void read_again(const std::vector<int32_t>& context,
                  const std::vector<int32_t>& positions,
                  ReferenceCache& cache) const;
  // K and V of every token of a layer through the map, K before RoPE.
  void translate(int32_t layer, const ReferenceMap& map, ReferenceCache& cache) const;

 private:
  using Matrix = std::vector<Row>;
  Matrix load(const std::string& name) const;
  Matrix load_linear(int32_t layer, const std::string& name) const;
  // Runs one layer over rows that follow what the cache holds, and appends their K/V.
  Rows layer(int32_t index, const Rows& hidden, ReferenceCache& cache) const;
  // One row at a position that the cache has or ends at; its K/V is put there. Adds its attention
  // on the leading positions, over all heads, to `mass` unless that is empty.
  Row layer_row(
      int32_t index, const Row& input, size_t position, ReferenceCache& cache, Row& mass) const;
  // By the angles of `position`; a negative one turns back.
  void rotate(double* head, int32_t position) const;

  std::filesystem::path checkpoint_;
  std::filesystem::path adapter_;
  ModelConfig config_;
  std::map<std::string, Matrix> weights_;
};

// Partial prefill by the definition: what `receiver` holds for the context under plan (a, b, c).
ReferenceCache mixed_cache(const ReferenceModel& receiver,
                           const ReferenceCache& sender,
                           const std::vector<int32_t>& context,
                           const ReusePlan& plan,
                           const ReferenceMaps& maps = {});

// Which tokens are read: the first four, then those with most attention around them.
std::vector<int32_t> looked_at_positions(const Row& mass, size_t count);

}  // namespace droidspeak
