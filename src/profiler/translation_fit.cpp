#include "profiler/translation_fit.h"

#include <algorithm>
#include <cstring>
#include <fstream>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "base/file.h"
#include "base/size.h"
#include "profiler/map_fit.h"

namespace droidspeak {
namespace {

// Names the layer of a map that cannot be fitted.
Failure in_layer(const Failure& failure, const char* what, int32_t layer) {
  return Failure(failure.code(),
                 fmt::format("translation map of {} at layer {}: {}", what, layer, failure.what()));
}

// Sums are allocated while contexts are read; that they fit is better known before.
void check_room(const Device& device, size_t bytes) {
  if (device.kind() == DeviceKind::kCpu || bytes <= device.free_bytes()) return;
  throw Failure(ErrorCode::kExhausted,
                fmt::format("the sums of the maps' fit take {} of device memory, and {} are free: "
                            "lower --kv-memory",
                            format_size(bytes), format_size(device.free_bytes())));
}

}  // namespace

template <class Fit, class Body>
void TranslationFit::for_each_sum(Fit& fit, const Body& body) {
  for (auto& folds : fit.kv_) {
    for (auto& sums : folds) body(sums);
  }
  for (auto& [layer, folds] : fit.inputs_) {
    for (auto& sums : folds) body(sums);
  }
}

TranslationFit::TranslationFit(const ModelPair& pair, TranslationFitOptions options)
    : pair_(pair), options_(std::move(options)) {
  const ModelConfig& config = pair.receiver->transformer->config();
  auto make_folds = [&](int64_t columns) {
    std::vector<FitSums> folds;
    for (int32_t fold = 0; fold <= extra_fold(); ++fold)
      folds.emplace_back(pair.ops.device(), columns);
    return folds;
  };
  for (int32_t layer = 0; layer < pair.num_layers(); ++layer)
    kv_.push_back(make_folds(2 * config.kv_columns()));
  for (int32_t layer : options_.input_layers) inputs_.emplace(layer, make_folds(config.d_model));
  size_t needed = 0;
  for_each_sum(*this, [&](const FitSums& sums) { needed += sums.bytes(); });
  auto folds = static_cast<size_t>(options_.num_folds);
  check_room(pair.ops.device(), needed / (folds + 1) * folds);  // the extra fold may stay empty
}

std::vector<int32_t> TranslationFit::all_layers() const {
  std::vector<int32_t> layers;
  for (int32_t layer = 0; layer < pair_.num_layers(); ++layer) layers.push_back(layer);
  return layers;
}

ContextTrial::LayerVisit TranslationFit::visit(int32_t fold, int32_t tokens) {
  auto index = static_cast<size_t>(fold);
  auto add_inputs = [this, index](int32_t layer, TensorView sender, TensorView receiver) {
    auto found = inputs_.find(layer);
    if (found != inputs_.end()) found->second[index].add(pair_.ops, sender, receiver);
  };
  auto add_outputs = [this, index, tokens](int32_t layer, const BlockTable& sender,
                                           const BlockTable& receiver) {
    FitSums& sums = kv_[static_cast<size_t>(layer)][index];
    RopeOptions rope = pair_.receiver->transformer->rope_options(layer);
    auto read = [&](const BlockTable& table, Tensor& rows) {
      TensorView view = rows.reshape(pair_.ops.device(), DType::kF32, tokens, sums.columns());
      pair_.ops.read_kv(rope, {0, tokens, 0, table.blocks()}, pair_.kv.layer(layer), view);
      return view;
    };
    TensorView x = read(sender, sender_rows_);
    sums.add(pair_.ops, x, read(receiver, receiver_rows_));
  };
  return {add_inputs, add_outputs};
}

LowRankProblem TranslationFit::make_problem(const std::vector<FitSums>& folds, int32_t left_out) {
  LowRankProblem problem;
  for (size_t i = 0; i < folds.size(); ++i) {
    if (static_cast<int32_t>(i) == left_out || folds[i].count() == 0) continue;
    problem.sums.push_back(folds[i].view());
    problem.count += folds[i].count();
  }
  return problem;
}

std::vector<TranslationFit::LayerMaps> TranslationFit::solve(
    Kind kind,
    int32_t left_out,
    double lambda,
    const std::vector<int32_t>& ranks,
    const std::vector<int32_t>& layers) const {
  check(!ranks.empty(), "a rank to fit");
  std::vector<LowRankProblem> problems;
  for (int32_t layer : layers) {
    LowRankProblem problem = make_problem(
        kind == Kind::kKeyValue ? kv_[static_cast<size_t>(layer)] : inputs_.at(layer), left_out);
    problem.lambda = lambda;
    problem.max_rank = *std::ranges::max_element(ranks);
    problems.push_back(std::move(problem));
  }
  std::vector<Result<LowRankFit>> fits = pair_.ops.fit_low_rank(problems);
  std::vector<LayerMaps> maps(ranks.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    try {
      LowRankFit fit = std::move(fits[i]).take_or_throw();
      for (size_t r = 0; r < ranks.size(); ++r) maps[r][layers[i]] = cut_to_rank(fit, ranks[r]);
    } catch (const Failure& failure) {
      throw in_layer(failure, kind == Kind::kKeyValue ? "K/V" : "E", layers[i]);
    }
  }
  return maps;
}

size_t TranslationFit::bytes() const {
  size_t total = 0;
  for_each_sum(*this, [&](const FitSums& sums) { total += sums.count() > 0 ? sums.bytes() : 0; });
  return total;
}

void TranslationFit::save(const std::filesystem::path& path) const {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  auto write = [&](const void* data, size_t bytes) {
    out.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  };
  for_each_sum(*this, [&](const FitSums& sums) {
    double count = sums.count();
    write(&count, sizeof(double));
    if (count == 0) return;
    std::vector<float> values = sums.values();
    write(values.data(), values.size() * sizeof(float));
  });
  out.flush();
  if (!out)
    throw Failure(ErrorCode::kUnavailable,
                  fmt::format("{}: cannot be written (is the disk full?)", path.string()));
}

void TranslationFit::load(const std::filesystem::path& path) {
  InputFile file(path);
  uint64_t done = 0;
  auto read = [&](void* data, size_t bytes) {
    if (file.size() - done < bytes)
      throw Failure(ErrorCode::kDataCorrupt,
                    fmt::format("{}: too short for this pair", path.string()));
    file.read(done, {static_cast<std::byte*>(data), bytes});
    done += bytes;
  };
  for_each_sum(*this, [&](FitSums& sums) {
    double count = 0;
    read(&count, sizeof(double));
    if (count == 0) return;
    std::vector<float> values(static_cast<size_t>(sums.num_values()));
    read(values.data(), values.size() * sizeof(float));
    sums.restore(count, values);
  });
  if (done < file.size())
    throw Failure(ErrorCode::kDataCorrupt,
                  fmt::format("{}: too long for this pair", path.string()));
}

}  // namespace droidspeak
