#include "engine/cost_model.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "base/clock.h"

namespace droidspeak {
namespace {

constexpr double kWeight = 0.2;  // of a new measurement
// A single row costs about as much as so many of a prompt: it waits for the weights.
constexpr int32_t kDraftRows = 8;
// A load over a link that would take as long as computing would often take longer.
constexpr double kLinkCaution = 1.1;

double average(double old_value, double measured) {
  return old_value + kWeight * (measured - old_value);
}

class Calibration {
 public:
  Calibration(Ops& ops, Transformer& transformer, KvCache& kv)
      : ops_(ops),
        transformer_(transformer),
        kv_(kv),
        hidden_(ops.device(), ops.activation_dtype(), kRows, transformer.config().d_model) {}

  // Seconds of one layer over kRows rows from `first_position` on; the better of two.
  double layer_seconds(std::span<const int32_t> blocks, int32_t first_position) {
    BatchSlice slice{{0, kRows, first_position, blocks}, nullptr};
    auto run = [&] {
      embed();
      ops_.device().synchronize();
      Stopwatch watch;
      transformer_.forward_layers({0, 1}, std::span(&slice, 1), kv_, hidden_.view());
      ops_.device().synchronize();
      return watch.ms() * 1e-3;
    };
    run();  // allocates scratch, warms up
    return std::min(run(), run());
  }

  double output_seconds() {
    Tensor out(ops_.device(), DType::kF32, 1, transformer_.config().vocab_size);
    embed();
    transformer_.logits(hidden_.view().row_range(0, 1), out.view());
    ops_.device().synchronize();
    Stopwatch watch;
    transformer_.logits(hidden_.view().row_range(0, 1), out.view());
    ops_.device().synchronize();
    return watch.ms() * 1e-3;
  }

  static constexpr int32_t kRows = 2 * kBlockTokens;

 private:
  void embed() {
    std::vector<int32_t> tokens(kRows);
    for (int32_t i = 0; i < kRows; ++i)
      tokens[static_cast<size_t>(i)] = i % transformer_.config().vocab_size;
    transformer_.embed(tokens, hidden_.view());
  }

  Ops& ops_;
  Transformer& transformer_;
  KvCache& kv_;
  Tensor hidden_;
};

// Entries are copied out of host memory piece by piece into the blocks.
double measure_host_bandwidth(Ops& ops, KvCache& kv, int32_t block) {
  std::vector<std::byte> entry(kv.layout().layer_bytes());
  auto lane = ops.device().make_copy_lane();
  const int rounds = 16;
  kv.load(*lane, 0, block, entry);
  lane->synchronize();
  Stopwatch watch;
  for (int i = 0; i < rounds; ++i) kv.load(*lane, 0, block, entry);
  lane->synchronize();
  // Half of it: lookups, and memory that is not in the processor's caches.
  return 0.5 * rounds * static_cast<double>(entry.size()) / std::max(watch.ms() * 1e-3, 1e-7);
}

}  // namespace

double CostModel::compute_seconds(int32_t first_position, int32_t tokens, double layers) const {
  auto t = static_cast<double>(tokens);
  double pairs = t * first_position + t * t / 2;
  return compute_scale_ * layers *
         (coefficients_.token_seconds * t + coefficients_.attention_seconds * pairs);
}

double CostModel::load_seconds(uint64_t bytes,
                               Tier tier,
                               const std::optional<LinkCost>& link) const {
  if (bytes == 0) return 0;
  // How fast a link is, is found out before anything depends on it.
  if (!link && is_behind_link(tier)) return std::numeric_limits<double>::infinity();
  if (!link) return static_cast<double>(bytes) / bandwidths_[index_of(tier)];
  return link->round_trip_seconds +
         kLinkCaution * static_cast<double>(link->queued_bytes + bytes) / link->bytes_per_second;
}

double CostModel::prefill_seconds(const PrefillWork& work) const {
  double load = 0;
  for (Tier tier : kAllTiers)
    load += load_seconds(work.load_bytes[index_of(tier)], tier, work.links[index_of(tier)]);
  double context = std::max(load, compute_seconds(0, work.context_tokens, work.recompute_work));
  double suffix = compute_seconds(work.context_tokens, work.suffix_tokens, num_layers_) +
                  coefficients_.output_seconds;
  if (work.looked_at_tokens == 0) return context + suffix;
  // They lie all over the context, so each sees half of it; a draft passes over all weights.
  int32_t before = (work.context_tokens - work.looked_at_tokens) / 2;
  double draft = compute_seconds(work.context_tokens, kDraftRows, num_layers_);
  double again = compute_seconds(work.context_tokens, work.second_suffix_tokens, num_layers_) +
                 coefficients_.output_seconds;
  return context + suffix + draft + compute_seconds(before, work.looked_at_tokens, num_layers_) +
         again;
}

void CostModel::observe_compute(double predicted, double measured) {
  if (learning_ == Learning::kOff || predicted <= 0 || measured <= 0) return;
  double ratio =
      std::clamp(measured / predicted, 0.2, 5.0);  // one odd step must not turn the model over
  compute_scale_ = average(compute_scale_, compute_scale_ * ratio);
}

void CostModel::observe_load(uint64_t bytes, Tier tier, double seconds) {
  if (learning_ == Learning::kOff || bytes == 0 || seconds <= 0) return;
  double& bandwidth = bandwidths_[index_of(tier)];
  bandwidth = average(
      bandwidth, std::clamp(static_cast<double>(bytes) / seconds, 0.2 * bandwidth, 5 * bandwidth));
}

CostCoefficients calibrate(Ops& ops, Transformer& transformer, KvCache& kv) {
  CostCoefficients coefficients;
  const int32_t rows = Calibration::kRows;
  int32_t tokens =
      std::min({kv.pool().num_free() * kBlockTokens, transformer.max_positions(), 2048});
  BlockTable table;
  if (tokens < rows || !table.reserve(kv.pool(), tokens)) return coefficients;
  coefficients.bandwidths[index_of(Tier::kHost)] =
      measure_host_bandwidth(ops, kv, table.blocks().front());
  if (transformer.config().vocab_size < rows) return coefficients;
  Calibration calibration(ops, transformer, kv);
  double at_start = calibration.layer_seconds(table.blocks(), 0);
  int32_t far = tokens - rows;
  if (far >= 4 * rows) {
    double far_away = calibration.layer_seconds(table.blocks(), far);
    coefficients.attention_seconds =
        std::max((far_away - at_start) / (static_cast<double>(rows) * far), 1e-13);
  }
  double pairs = 0.5 * rows * rows * coefficients.attention_seconds;
  coefficients.token_seconds = std::max(at_start - pairs, 0.2 * at_start) / rows;
  coefficients.output_seconds = calibration.output_seconds();
  return coefficients;
}

}  // namespace droidspeak
