// Predicts prefill times, so that plans can be compared before one is run:
//
//   compute(tokens at position p, layers) = layers * (token * t + attention * (t * p + t * t / 2))
//   prefill of a plan = max(load, recompute of the context) + suffix + output
//                       + with tokens that are looked at: suffix + output + draft + these tokens
//
// The coefficients come from a calibration at start; while the engine runs, measured times correct
// the scale of computing and the bandwidth of each tier by exponential averages. Only prompts teach
// the former (is_plain_prefill() in batch.h, and recomputed contexts): decode rows cost a pass over
// the weights, whatever their number. Used by the engine thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "kv/kv_cache.h"
#include "model/transformer.h"
#include "store/cache_store.h"

namespace droidspeak {

struct CostCoefficients {
  double token_seconds = 1e-5;      // per token and layer
  double attention_seconds = 1e-9;  // per token, position before it, and layer
  double output_seconds = 1e-4;     // logits of one row
  // Bytes per second from the store to the blocks; not of tiers behind links, which have theirs.
  PerTier<double> bandwidths = {4e9, 5e8};
};

// What a prefill consists of. Without reuse, context_tokens is 0 and everything is suffix.
struct PrefillWork {
  int32_t context_tokens = 0;
  double recompute_work = 0;  // of the context, in layers
  PerTier<uint64_t> load_bytes = {};
  PerTier<std::optional<LinkCost>> links = {};  // that they come over, where they were measured
  int32_t suffix_tokens = 0;
  int32_t looked_at_tokens = 0;      // of the context
  int32_t second_suffix_tokens = 0;  // that run again once these were read
};

class CostModel {
 public:
  enum class Learning { kOn, kOff };

  CostModel(const CostCoefficients& coefficients,
            int32_t num_layers,
            Learning learning = Learning::kOn)
      : coefficients_(coefficients),
        num_layers_(num_layers),
        learning_(learning),
        bandwidths_(coefficients.bandwidths) {}

  int32_t num_layers() const { return num_layers_; }

  double compute_seconds(int32_t first_position, int32_t tokens, double layers) const;
  // Over a link the loads before it come first, and all share what the link carries. Over one that
  // nobody has measured it would take forever.
  double load_seconds(uint64_t bytes,
                      Tier tier,
                      const std::optional<LinkCost>& link = std::nullopt) const;
  double prefill_seconds(const PrefillWork& work) const;

  // `predicted` by compute_seconds() before the measurement.
  void observe_compute(double predicted, double measured);
  void observe_load(uint64_t bytes, Tier tier, double seconds);

 private:
  CostCoefficients coefficients_;
  int32_t num_layers_;
  Learning learning_;
  double compute_scale_ = 1;
  PerTier<double> bandwidths_;
};

// Runs one layer a few times on free blocks of `kv`; takes a small part of a second. Falls back to
// the defaults for what the free blocks do not allow to measure.
CostCoefficients calibrate(Ops& ops, Transformer& transformer, KvCache& kv);

}  // namespace droidspeak
