// Fits the translation maps of a pair from contexts that both models have read. Contexts are dealt
// to folds: a context is judged with maps fitted on the other folds, the maps that are shipped use
// all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <vector>

#include "profiler/context_trial.h"
#include "profiler/fit_rows.h"

namespace droidspeak {

struct MapShape {
  int32_t rank = 32;
  double lambda = 1e-2;
  bool operator==(const MapShape&) const = default;
};

// K/V and E differ in width and scale, so each has its own.
struct MapShapes {
  MapShape kv{32, 1e-2};
  MapShape inputs{64, 1e-2};
  std::set<int32_t> raw_layers;  // whose K/V has no map
  bool operator==(const MapShapes&) const = default;
};

struct TranslationFitOptions {
  int32_t num_folds = 4;
  std::vector<int32_t> input_layers;  // where E maps are fitted
};

class TranslationFit {
 public:
  TranslationFit(const ModelPair& pair, TranslationFitOptions options);

  int32_t fold_of(int32_t context) const { return context % options_.num_folds; }

  // Of contexts that are not judged; it is never left out.
  int32_t extra_fold() const { return options_.num_folds; }

  // What read_both() calls to add a context of `tokens` tokens to a fold.
  ContextTrial::LayerVisit visit(int32_t fold, int32_t tokens);

  static constexpr int32_t kNoFold = -1;
  enum class Kind { kKeyValue, kInput };
  using LayerMaps = std::map<int32_t, LinearMap>;
  // Maps of the given layers, fitted on all folds but `left_out` and cut to each rank.
  std::vector<LayerMaps> solve(Kind kind,
                               int32_t left_out,
                               double lambda,
                               const std::vector<int32_t>& ranks,
                               const std::vector<int32_t>& layers) const;

  // One shape.
  LayerMaps solve(Kind kind,
                  int32_t left_out,
                  const MapShape& shape,
                  const std::vector<int32_t>& layers) const {
    return solve(kind, left_out, shape.lambda, {shape.rank}, layers).front();
  }

  const std::vector<int32_t>& input_layers() const { return options_.input_layers; }

  std::vector<int32_t> all_layers() const;

  // What save() would write, about.
  size_t bytes() const;
  // The sums, so that a stopped profile can go on. Throws Failure.
  void save(const std::filesystem::path& path) const;
  void load(const std::filesystem::path& path);

 private:
  // Of all folds but one.
  static LowRankProblem make_problem(const std::vector<FitSums>& folds, int32_t left_out);
  template <class Fit, class Body>
  static void for_each_sum(Fit& fit, const Body& body);

  const ModelPair pair_;
  TranslationFitOptions options_;
  std::vector<std::vector<FitSums>> kv_;            // [layer][fold]
  std::map<int32_t, std::vector<FitSums>> inputs_;  // [layer][fold]
  Tensor sender_rows_;                              // K before RoPE and V of one context
  Tensor receiver_rows_;
};

}  // namespace droidspeak
