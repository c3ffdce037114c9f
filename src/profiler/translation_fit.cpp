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
  const Transformer& receiver = *pair.receiver->transformer;
  rope_ = make_rope_table(receiver.config(), receiver.max_positions());
  auto folds = static_cast<size_t>(options_.num_folds);
  for (int32_t layer = 0; layer < pair.num_layers(); ++layer) {
    kv_.emplace_back(folds, NormalEquations(2 * receiver.config().kv_columns()));
  }
  for (int32_t layer : options_.input_layers) {
    inputs_.emplace(
        layer, std::vector<NormalEquations>(folds, NormalEquations(receiver.config().d_model)));
  }
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
    if (found == inputs_.end()) return;
    try {
      accumulate(pair_.ops, gather_hidden(pair_.ops, sender), gather_hidden(pair_.ops, receiver),
                 found->second[index]);
    } catch (const Failure& failure) {
      throw in_layer(failure, "E", layer);
    }
  };
  auto add_outputs = [this, index, tokens](int32_t layer, const BlockTable& sender,
                                           const BlockTable& receiver) {
    KvRowSource source{pair_.ops, pair_.kv, rope_,
                       pair_.receiver->transformer->config().rotary_dim};
    try {
      accumulate(pair_.ops, gather_kv(source, layer, sender, tokens),
                 gather_kv(source, layer, receiver, tokens),
                 kv_[static_cast<size_t>(layer)][index]);
    } catch (const Failure& failure) {
      throw in_layer(failure, "K/V", layer);
    }
  };
  return {add_inputs, add_outputs};
}

NormalEquations TranslationFit::sum_over_folds(const std::vector<NormalEquations>& folds,
                                               int32_t left_out) const {
  NormalEquations sum(folds.front().columns);
  for (size_t i = 0; i < folds.size(); ++i) {
    if (static_cast<int32_t>(i) != left_out) sum.add(folds[i]);
  }
  return sum;
}

std::vector<TranslationMaps> TranslationFit::solve(int32_t left_out,
                                                   const std::vector<MapShape>& shapes,
                                                   const std::vector<int32_t>& kv_layers,
                                                   const std::vector<int32_t>& input_layers) const {
  check(!shapes.empty(), "a shape to fit");
  int32_t max_rank = 0;
  for (const MapShape& shape : shapes) {
    max_rank = std::max(max_rank, shape.rank);
    check(shape.lambda == shapes.front().lambda, "shapes of one lambda");
  }

  struct Job {
    const std::vector<NormalEquations>* folds;
    std::map<int32_t, LinearMap> TranslationMaps::*target;
    int32_t layer;
  };

  std::vector<Job> jobs;
  // The larger ones first, so that threads end together.
  for (int32_t layer : input_layers)
    jobs.push_back({&inputs_.at(layer), &TranslationMaps::inputs, layer});
  for (int32_t layer : kv_layers)
    jobs.push_back({&kv_[static_cast<size_t>(layer)], &TranslationMaps::kv, layer});
  std::vector<TranslationMaps> maps(shapes.size());
  std::mutex mutex;
  std::exception_ptr error;
  ThreadPool pool(options_.threads);
  pool.for_each(std::ssize(jobs), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const Job& job = jobs[static_cast<size_t>(i)];
      try {
        FittedCorrection fitted(sum_over_folds(*job.folds, left_out), shapes.front().lambda,
                                max_rank);
        std::lock_guard lock(mutex);
        for (size_t s = 0; s < shapes.size(); ++s)
          (maps[s].*job.target)[job.layer] = fitted.cut(shapes[s].rank);
      } catch (const Failure& failure) {
        std::lock_guard lock(mutex);
        error = std::make_exception_ptr(
            in_layer(failure, job.target == &TranslationMaps::kv ? "K/V" : "E", job.layer));
      }
    }
  });
  if (error) std::rethrow_exception(error);
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
  for_each_sum(*this, [&](const NormalEquations& sums) {
    write(&sums.count, sizeof(double));
    write(sums.input_sum.data(), sums.input_sum.size() * sizeof(double));
    write(sums.difference_sum.data(), sums.difference_sum.size() * sizeof(double));
    write(sums.products.data(), sums.products.size() * sizeof(float));
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
  for_each_sum(*this, [&](NormalEquations& sums) {
    read(&sums.count, sizeof(double));
    read(sums.input_sum.data(), sums.input_sum.size() * sizeof(double));
    read(sums.difference_sum.data(), sums.difference_sum.size() * sizeof(double));
    read(sums.products.data(), sums.products.size() * sizeof(float));
  });
  if (!rest.empty())
    throw Failure(ErrorCode::kDataCorrupt,
                  fmt::format("{}: too long for this pair", path.string()));
}

}  // namespace droidspeak
