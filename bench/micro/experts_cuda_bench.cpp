// The experts of one layer with random weights: every launch of few rows alone and all of them in
// recorded steps, then what a chunk of a prompt is made of.
//   experts_cuda_bench [mixtral|qwen3] [bf16|q4_0|...] [decode|prefill|all]
#include <algorithm>
#include <cstdlib>
#include <set>

#include <fmt/format.h>

#include "ops/cuda/experts/expert_product.h"
#include "ops/cuda/experts/route.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/quantized/expand.h"
#include "ops/cuda/steps/fast_paths.h"
#include "ops/cuda/stopwatch.h"
#include "random_weights.h"

namespace droidspeak::cuda {
namespace {

constexpr double kPeakBandwidth = 4.8e12;  // bytes a second, H200
constexpr int64_t kSweepFloats = int64_t{32} << 20;

struct LayerShape {
  std::string_view name;
  int64_t dim;
  int64_t ffn;
  int32_t experts;
  int32_t per_row;
};

constexpr LayerShape kShapes[] = {{"mixtral", 4096, 14336, 8, 2}, {"qwen3", 2048, 768, 128, 8}};

class Bench {
 public:
  Bench(CudaDevice& device, const LayerShape& shape, DType dtype)
      : device_(device),
        s_(shape),
        ops_(make_ops(device, Precision::kFast, {})),
        watch_(device.stream()),
        sweep_(device, DType::kF32, 1, kSweepFloats) {
    router_ = RandomWeights(DType::kBF16, s_.experts * s_.dim).matrix(*ops_, s_.experts, s_.dim);
    const RandomWeights values(dtype, 2 * s_.ffn * s_.dim);
    for (auto& layer : layers_) {
      for (int32_t e = 0; e < s_.experts; ++e) {
        matrices_.push_back(values.matrix(*ops_, 2 * s_.ffn, s_.dim));
        matrices_.push_back(values.matrix(*ops_, s_.dim, s_.ffn));
        layer.push_back({matrices_[matrices_.size() - 2].get(), matrices_.back().get()});
      }
    }
  }

  void decode() {
    fmt::print("{:>5} {:>8} {:>9} {:>9} {:>9} {:>7} {:>7} {:>9} {:>9} {:>9} {:>8}\n", "rows",
               "experts", "route us", "gate/up", "TB/s", "down", "TB/s", "sum us", "layer us",
               "no graph", "of peak");
    for (int64_t rows : {1, 2, 4, 8, 16, 32, 64}) {
      const bool is_possible = rows_of_expert_item(all(&ExpertMatrices::gate_up), rows) > 0;
      if (is_possible) decode_rows(rows);
    }
  }

  void prefill() {
    constexpr int64_t kRows = 8192;
    const int64_t places = kRows * s_.per_row;
    const int64_t each = places / s_.experts;
    Tensor logits(device_, DType::kF32, kRows, s_.experts);
    Tensor weights(device_, DType::kF32, kRows, s_.per_row);
    Tensor in(device_, DType::kBF16, kRows, s_.dim);
    Tensor gathered(device_, DType::kBF16, places, s_.dim);
    Tensor gate_up(device_, DType::kBF16, places, 2 * s_.ffn);
    Tensor activated(device_, DType::kBF16, places, s_.ffn);
    Tensor answers(device_, DType::kBF16, places, s_.dim);
    fill(logits);
    std::vector<int32_t> chosen(static_cast<size_t>(places));
    std::vector<int32_t> order(chosen.size());
    for (size_t i = 0; i < order.size(); ++i)
      order[i] = static_cast<int32_t>(i * 7919 % order.size()) / s_.per_row;
    const ExpertChoice choice{s_.per_row, ExpertChoice::Weights::kOfChosen};
    auto multiply = [&](const WeightMatrix* ExpertMatrices::*which, const Tensor& from,
                        const Tensor& to) {
      for (int32_t e = 0; e < s_.experts; ++e)
        ops_->linear(*(layers_[0][static_cast<size_t>(e)].*which),
                     from.view().row_range(e * each, (e + 1) * each),
                     to.view().row_range(e * each, (e + 1) * each));
    };
    auto report = [&](std::string_view name, double ms, double operations) {
      total_ms_ += ms;
      fmt::print("{:<28} {:>8.3f} ms", name, ms);
      if (operations > 0) fmt::print(" {:>6.0f} TFLOP/s", operations / ms * 1e-9);
      fmt::print("\n");
    };
    const double of_row = 2.0 * static_cast<double>(places * s_.dim * s_.ffn);
    fmt::print("{} rows, {} for each expert\n", kRows, each);
    report("choose, to the host",
           ms_of([&] { ops_->choose_experts(logits.view(), choice, chosen, weights.view()); }), 0);
    report("gather", ms_of([&] { ops_->gather_rows(in.view(), order, gathered.view()); }), 0);
    report("gate/up", ms_of([&] { multiply(&ExpertMatrices::gate_up, gathered, gate_up); }),
           2 * of_row);
    report("activation", ms_of([&] {
             ops_->gated_activation(gate_up.view(), Activation::kSilu, activated.view());
           }),
           0);
    report("down", ms_of([&] { multiply(&ExpertMatrices::down, activated, answers); }), of_row);
    for (size_t i = 0; i < order.size(); ++i)
      order[i] = static_cast<int32_t>(i * 7919 % order.size());
    report("sum", ms_of([&] {
             ops_->add_weighted_rows(answers.view(), order, weights.view(), in.view());
           }),
           0);
    report("all", std::exchange(total_ms_, 0.0), 3 * of_row);
    expansion();
  }

 private:
  static constexpr size_t kLayers = 2;
  static constexpr int kTimes = 8;

  std::vector<const CudaMatrix*> all(const WeightMatrix* ExpertMatrices::*which) const {
    std::vector<const CudaMatrix*> found;
    for (const ExpertMatrices& expert : layers_[0]) found.push_back(&as_cuda(*(expert.*which)));
    return found;
  }

  void fill(const Tensor& logits) {
    std::vector<float> values(static_cast<size_t>(logits.rows() * s_.experts));
    for (float& value : values) value = static_cast<float>(random_() % 10007);
    device_.to_device(logits.view().data, values.data(), values.size() * sizeof(float));
    device_.synchronize();
  }

  // bf16 numbers from -2 to 2.
  void fill_rows(const Tensor& rows) {
    std::vector<uint16_t> values(static_cast<size_t>(rows.rows() * rows.columns()));
    for (uint16_t& value : values)
      value = static_cast<uint16_t>(0x3f00 | (random_() >> 8 & 0x80ff));
    device_.to_device(rows.view().data, values.data(), values.size() * sizeof(uint16_t));
    device_.synchronize();
  }

  // How many experts there are items of.
  double num_used(const ExpertRows& counts, const ExpertItems& items) {
    int32_t count = 0;
    device_.to_host(&count, items.count, sizeof count);
    std::vector<ExpertItem> all(
        static_cast<size_t>(std::clamp<int64_t>(count, 0, counts.most_items())));
    device_.to_host(all.data(), items.items, all.size() * sizeof(ExpertItem));
    std::set<int32_t> used;
    for (const ExpertItem& item : all) used.insert(item.expert);
    return static_cast<double>(used.size());
  }

  template <class Work>
  double cold_us(const Work& work) {
    auto clear = [&] {
      check_cuda(cudaMemsetAsync(sweep_.view().data, 0, sweep_.bytes(), device_.stream()), "sweep");
    };
    return 1e3 * watch_.fastest(10, clear, work);
  }

  // One after the other, as in a long prompt.
  template <class Work>
  double ms_of(const Work& work) {
    auto several = [&] {
      for (int i = 0; i < kTimes; ++i) work();
    };
    return watch_.fastest(
               2, [] {}, several) /
           kTimes;
  }

  // Of a layer, in steps of many layers that take turns with the weights.
  double layer_us(Ops& ops, const Tensor& in, const Tensor& out) {
    constexpr int kSteps = 32;
    const ExpertChoice choice{s_.per_row, ExpertChoice::Weights::kOfChosen};
    auto step = [&] {
      ops.repeat([&] {
        for (size_t i = 0; i < kSteps; ++i)
          ops.add_experts({router_.get(), layers_[i % kLayers], choice, Activation::kSilu},
                          in.view(), out.view());
      });
    };
    for (int i = 0; i < 3; ++i) step();
    return 1e3 *
           watch_.fastest(
               5, [] {}, step) /
           kSteps;
  }

  void decode_rows(int64_t rows) {
    const auto gate_up = all(&ExpertMatrices::gate_up);
    const auto down = all(&ExpertMatrices::down);
    const ExpertRows counts{rows, s_.per_row, s_.experts, rows_of_expert_item(gate_up, rows)};
    Tensor logits(device_, DType::kF32, rows, s_.experts);
    Tensor weights(device_, DType::kF32, rows, s_.per_row);
    Tensor in(device_, DType::kBF16, rows, s_.dim);
    Tensor out(device_, DType::kBF16, rows, s_.dim);
    Tensor activated(device_, DType::kBF16, counts.places(), s_.ffn);
    Tensor answers(device_, DType::kBF16, counts.places(), s_.dim);
    Tensor memory(device_, DType::kI32, 1,
                  static_cast<int64_t>(counts.bytes_of_items() / sizeof(int32_t)));
    fill_rows(in);
    const ExpertItems items = counts.items_in(static_cast<std::byte*>(memory.view().data));
    const ExpertChoice choice{s_.per_row, ExpertChoice::Weights::kOfChosen};
    cudaStream_t stream = device_.stream();
    const bool is_routed = can_route(as_cuda(*router_), in.view());
    const double choose_us = cold_us([&] {
      if (is_routed)
        return route(stream,
                     {as_cuda(*router_), {in.view(), {}}, choice, counts, items, weights.view()});
      ops_->linear(*router_, in.view(), logits.view());
      choose_items(stream, logits.view(), choice, counts, items, weights.view());
    });
    const double used = num_used(counts, items);
    const double gate_up_us = cold_us([&] {
      multiply_experts(stream, {.weights = gate_up,
                                .rows = counts,
                                .items = items,
                                .in = in.view(),
                                .out = {},
                                .gate = GateAfter{Activation::kSilu, activated.view()}});
    });
    const double down_us = cold_us([&] {
      multiply_experts(stream, {.weights = down,
                                .rows = counts,
                                .items = items,
                                .in_order = ExpertProduct::In::kPlaces,
                                .in = activated.view(),
                                .out = answers.view()});
    });
    const double sum_us = cold_us([&] {
      add_weighted_rows(stream, answers.view(), items.places, weights.view(), out.view());
    });
    auto plain = make_ops(device_, Precision::kFast, {.graphs = false});
    const double in_graph = layer_us(*ops_, in, out);
    const double without = layer_us(*plain, in, out);
    const double gate_up_bytes = used * static_cast<double>(gate_up[0]->bytes());
    const double down_bytes = used * static_cast<double>(down[0]->bytes());
    fmt::print(
        "{:>5} {:>8} {:>9.1f} {:>9.1f} {:>9.2f} {:>7.1f} {:>7.2f} {:>9.1f} {:>9.1f} {:>9.1f} "
        "{:>7.1f}%\n",
        rows, used, choose_us, gate_up_us, gate_up_bytes / gate_up_us * 1e-6, down_us,
        down_bytes / down_us * 1e-6, sum_us, in_graph, without,
        100 * (gate_up_bytes + down_bytes) / (in_graph * 1e-6) / kPeakBandwidth);
  }

  void expansion() {
    const CudaMatrix& matrix = *all(&ExpertMatrices::gate_up)[0];
    if (!matrix.is_strips()) return;
    Tensor plain(device_, DType::kBF16, matrix.rows(), matrix.columns());
    const double ms =
        ms_of([&] { expand_strips(device_.stream(), matrix.stacks()[0], 0, plain.view()); });
    const double bytes = static_cast<double>(matrix.bytes() + plain.bytes());
    fmt::print("of these: expanding one gate/up {:.3f} ms, {:.2f} TB/s; all experts {:.3f} ms\n",
               ms, bytes / ms * 1e-9, 1.5 * s_.experts * ms);
  }

  CudaDevice& device_;
  LayerShape s_;
  std::unique_ptr<Ops> ops_;
  StreamStopwatch watch_;
  Tensor sweep_;
  std::minstd_rand random_{5};
  std::vector<std::unique_ptr<WeightMatrix>> matrices_;
  std::unique_ptr<WeightMatrix> router_;
  std::vector<ExpertMatrices> layers_[kLayers];
  double total_ms_ = 0;
};

int run(int count, char** arguments) {
  const std::string_view name = count > 1 ? arguments[1] : "mixtral";
  const std::string_view format = count > 2 ? arguments[2] : "q4_0";
  const std::string_view what = count > 3 ? arguments[3] : "all";
  const auto* shape = std::ranges::find(kShapes, name, &LayerShape::name);
  const auto* quantized = std::ranges::find(kStripDtypes, format, name_of);
  const bool is_plain = format == name_of(DType::kBF16);
  if (shape == std::end(kShapes) || (!is_plain && quantized == std::end(kStripDtypes))) {
    fmt::print(stderr, "\"{} {}\": mixtral or qwen3, in bf16 or a format that stays quantised\n",
               name, format);
    return EXIT_FAILURE;
  }
  CudaDevice device;
  Bench bench(device, *shape, is_plain ? DType::kBF16 : *quantized);
  fmt::print("{} {}\n", name, format);
  if (what != "prefill") bench.decode();
  if (what != "decode") bench.prefill();
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace droidspeak::cuda

int main(int count, char** arguments) {
  return droidspeak::cuda::run(count, arguments);
}
