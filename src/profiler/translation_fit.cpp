#include "profiler/translation_fit.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <fstream>
#include <mutex>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "base/file.h"
#include "device/thread_pool.h"

namespace droidspeak {
namespace {

// Names the layer of a map that cannot be fitted.
Failure in_layer(const Failure& failure, const char* what, int32_t layer) {
  return Failure(failure.code(),
                 fmt::format("translation map of {} at layer {}: {}", what, layer, failure.what()));
}

}  // namespace

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

NormalEquations TranslationFit::sum_over_folds(const std::vector<FitSums>& folds,
                                               int32_t left_out) const {
  NormalEquations sum(folds.front().columns());
  for (size_t i = 0; i < folds.size(); ++i) {
    if (static_cast<int32_t>(i) != left_out && folds[i].count() > 0) sum.add(folds[i].read());
  }
  return sum;
}

std::vector<TranslationFit::LayerMaps> TranslationFit::solve(
    Kind kind,
    int32_t left_out,
    double lambda,
    const std::vector<int32_t>& ranks,
    const std::vector<int32_t>& layers) const {
  check(!ranks.empty(), "a rank to fit");
  const char* what = kind == Kind::kKeyValue ? "K/V" : "E";
  int32_t max_rank = *std::ranges::max_element(ranks);
  std::vector<LayerMaps> maps(ranks.size());
  ThreadPool pool(options_.threads);
  // As many layers at a time as there are threads: only their sums are in host memory.
  for (size_t first = 0; first < layers.size(); first += static_cast<size_t>(pool.num_threads())) {
    size_t count = std::min(layers.size() - first, static_cast<size_t>(pool.num_threads()));
    std::vector<NormalEquations> sums;
    for (size_t i = 0; i < count; ++i) {
      int32_t layer = layers[first + i];
      try {
        sums.push_back(sum_over_folds(
            kind == Kind::kKeyValue ? kv_[static_cast<size_t>(layer)] : inputs_.at(layer),
            left_out));
      } catch (const Failure& failure) {
        throw in_layer(failure, what, layer);
      }
    }
    std::vector<std::vector<LinearMap>> cuts(count);
    std::mutex mutex;
    std::exception_ptr error;
    pool.for_each(static_cast<int64_t>(count), 1, [&](int64_t begin, int64_t end, int) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        try {
          FittedCorrection fitted(sums[i], lambda, max_rank);
          for (int32_t rank : ranks) cuts[i].push_back(fitted.cut(rank));
        } catch (const Failure& failure) {
          std::lock_guard lock(mutex);
          error = std::make_exception_ptr(in_layer(failure, what, layers[first + i]));
        }
      }
    });
    if (error) std::rethrow_exception(error);
    for (size_t i = 0; i < count; ++i) {
      for (size_t r = 0; r < ranks.size(); ++r) maps[r][layers[first + i]] = std::move(cuts[i][r]);
    }
  }
  return maps;
}

template <class Fit, class Body>
void TranslationFit::for_each_sum(Fit& fit, const Body& body) {
  for (auto& folds : fit.kv_) {
    for (auto& sums : folds) body(sums);
  }
  for (auto& [layer, folds] : fit.inputs_) {
    for (auto& sums : folds) body(sums);
  }
}

void TranslationFit::save(const std::filesystem::path& path) const {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  auto write = [&](const void* data, size_t bytes) {
    out.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  };
  for_each_sum(*this, [&](const FitSums& sums) {
    double count = sums.count();
    std::vector<float> values = sums.values();
    write(&count, sizeof(double));
    write(values.data(), values.size() * sizeof(float));
  });
  out.flush();
  if (!out)
    throw Failure(ErrorCode::kUnavailable,
                  fmt::format("{}: cannot be written (is the disk full?)", path.string()));
}

void TranslationFit::load(const std::filesystem::path& path) {
  MappedFile file(path);
  std::span<const std::byte> rest = file.bytes();
  auto read = [&](void* data, size_t bytes) {
    if (rest.size() < bytes)
      throw Failure(ErrorCode::kDataCorrupt,
                    fmt::format("{}: too short for this pair", path.string()));
    std::memcpy(data, rest.data(), bytes);
    rest = rest.subspan(bytes);
  };
  for_each_sum(*this, [&](FitSums& sums) {
    double count = 0;
    std::vector<float> values(static_cast<size_t>((sums.columns() + 1) * 2 * sums.columns()));
    read(&count, sizeof(double));
    read(values.data(), values.size() * sizeof(float));
    sums.restore(count, values);
  });
  if (!rest.empty())
    throw Failure(ErrorCode::kDataCorrupt,
                  fmt::format("{}: too long for this pair", path.string()));
}

}  // namespace droidspeak
