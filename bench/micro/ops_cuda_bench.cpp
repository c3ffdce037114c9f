// What the fast paths of decoding are worth: steps of a model of random weights, each path left out
// in turn, and products of few rows alone. Usage: ops_cuda_bench [8b|small] [batch] [context]
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <random>
#include <vector>

#include <fmt/format.h>

#include "kv/kv_cache.h"
#include "ops/cuda/fast_paths.h"
#include "ops/cuda/few_rows.h"
#include "ops/cuda/stopwatch.h"

namespace droidspeak::cuda {
namespace {

constexpr double kPeakBandwidth = 4.8e12;  // bytes a second, H200

struct ModelShape {
  std::string_view name;
  int32_t layers;
  int64_t dim;
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim;
  int64_t ffn;
  int64_t vocab;

  int64_t q_columns() const { return int64_t{heads} * head_dim; }

  int64_t qkv_columns() const { return int64_t{heads + 2 * kv_heads} * head_dim; }
};

constexpr ModelShape kShapes[] = {{"8b", 32, 4096, 32, 8, 128, 14336, 128256},
                                  {"small", 30, 576, 9, 3, 64, 1536, 49152}};
constexpr int32_t kRank = 16;

// Random bf16 values for matrices of any shape.
class Values {
 public:
  explicit Values(int64_t count) : halves_(static_cast<size_t>(count)) {
    std::minstd_rand random(1);
    for (uint16_t& half : halves_)  // of magnitude 2^-8 to 2^-7
      half = static_cast<uint16_t>(0x3b80 | (random() & 0x807f));
  }

  std::unique_ptr<WeightMatrix> matrix(Ops& ops, int64_t rows, int64_t columns) const {
    const MatrixPart part{
        .dtype = DType::kBF16,
        .rows = rows,
        .columns = columns,
        .bytes = std::as_bytes(std::span(halves_)).first(bytes_of(DType::kBF16, rows * columns)),
        .row_order = {}};
    return ops.pack({&part, 1}, Precision::kFast);
  }

 private:
  std::vector<uint16_t> halves_;
};

struct Layer {
  std::unique_ptr<WeightMatrix> qkv, output, gate_up, down;
  LoraLinear qkv_lora, output_lora, gate_up_lora, down_lora;
};

LoraLinear make_lora(Ops& ops,
                     const Values& values,
                     int64_t in_columns,
                     std::vector<int64_t> part_columns) {
  LoraLinear lora;
  int32_t ranks = 0;
  int64_t first = 0;
  for (int64_t columns : part_columns) {
    lora.parts.push_back({.up = values.matrix(ops, columns, kRank),
                          .first_rank = ranks,
                          .rank = kRank,
                          .first_column = static_cast<int32_t>(first)});
    ranks += kRank;
    first += columns;
  }
  lora.down = values.matrix(ops, ranks, in_columns);
  return lora;
}

enum class Adapters { kNone, kOne };

class Model {
 public:
  Model(CudaDevice& device, Ops& ops, const ModelShape& shape, int32_t batch, int32_t context)
      : shape_(shape),
        batch_(batch),
        context_(context),
        kv_(device,
            {.num_layers = shape.layers,
             .num_kv_heads = shape.kv_heads,
             .head_dim = shape.head_dim,
             .dtype = DType::kBF16},
            kv_bytes()),
        norm_(device, DType::kF32, 1, shape.dim),
        rope_(device, DType::kF32, max_positions(), shape.head_dim),
        hidden_(device, DType::kBF16, batch, shape.dim),
        normed_(device, DType::kBF16, batch, shape.dim),
        qkv_(device, DType::kBF16, batch, shape.qkv_columns()),
        attended_(device, DType::kBF16, batch, shape.q_columns()),
        gate_up_(device, DType::kBF16, batch, 2 * shape.ffn),
        activated_(device, DType::kBF16, batch, shape.ffn),
        low_(device, DType::kBF16, batch, 3 * kRank),
        logits_(device, DType::kF32, batch, shape.vocab),
        tokens_(static_cast<size_t>(batch), 1) {
    const Values values(shape.vocab * shape.dim);
    for (int32_t i = 0; i < shape.layers; ++i) layers_.push_back(make_layer(ops, values));
    table_ = values.matrix(ops, shape.vocab, shape.dim);
    const int32_t blocks = blocks_for(max_positions());
    for (int32_t i = 0; i < batch * blocks; ++i) blocks_.push_back(i);
  }

  // Bytes that a step of the base model reads.
  double bytes() const {
    double total = static_cast<double>(table_->bytes());
    for (const Layer& layer : layers_) {
      for (const auto* matrix : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down})
        total += static_cast<double>((*matrix)->bytes());
    }
    const double positions = static_cast<double>(batch_) * context_;
    return total + positions * 4.0 * shape_.layers * shape_.kv_heads * shape_.head_dim;
  }

  double ms_of_step(Ops& ops, Adapters adapters) {
    for (int32_t i = 0; i < kWarmUp; ++i) step(ops, adapters, i);
    const auto begin = std::chrono::steady_clock::now();
    for (int32_t i = 0; i < kSteps; ++i) step(ops, adapters, kWarmUp + i);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    return took.count() / kSteps;
  }

 private:
  static constexpr int32_t kWarmUp = 4;
  static constexpr int32_t kSteps = 40;

  int32_t max_positions() const { return context_ + kWarmUp + kSteps; }

  size_t kv_bytes() const {
    const KvLayout layout{.num_layers = shape_.layers,
                          .num_kv_heads = shape_.kv_heads,
                          .head_dim = shape_.head_dim,
                          .dtype = DType::kBF16};
    return layout.block_bytes() * static_cast<size_t>(batch_) *
           static_cast<size_t>(blocks_for(max_positions()));
  }

  Layer make_layer(Ops& ops, const Values& values) const {
    const ModelShape& s = shape_;
    const int64_t kv_columns = int64_t{s.kv_heads} * s.head_dim;
    Layer layer;
    layer.qkv = values.matrix(ops, s.qkv_columns(), s.dim);
    layer.output = values.matrix(ops, s.dim, s.q_columns());
    layer.gate_up = values.matrix(ops, 2 * s.ffn, s.dim);
    layer.down = values.matrix(ops, s.dim, s.ffn);
    layer.qkv_lora = make_lora(ops, values, s.dim, {s.q_columns(), kv_columns, kv_columns});
    layer.output_lora = make_lora(ops, values, s.q_columns(), {s.dim});
    layer.gate_up_lora = make_lora(ops, values, s.dim, {s.ffn, s.ffn});
    layer.down_lora = make_lora(ops, values, s.ffn, {s.dim});
    return layer;
  }

  void step(Ops& ops, Adapters adapters, int32_t number) {
    const auto blocks = static_cast<size_t>(blocks_for(max_positions()));
    slices_.clear();
    for (int32_t i = 0; i < batch_; ++i)
      slices_.push_back({i, 1, context_ + number,
                         std::span(blocks_).subspan(static_cast<size_t>(i) * blocks, blocks)});
    ops.embed(*table_, tokens_, hidden_.view());
    ops.repeat([&] {
      for (int32_t i = 0; i < shape_.layers; ++i)
        queue_layer(ops, layers_[static_cast<size_t>(i)], kv_.layer(i), adapters);
    });
    ops.rms_norm(hidden_.view(), norm_.view().f32(), 1e-5f, normed_.view());
    ops.linear(*table_, normed_.view(), logits_.view());
    ops.argmax(logits_.view(), tokens_);
  }

  void queue_layer(Ops& ops, const Layer& layer, const KvLayerView& kv, Adapters adapters) {
    auto correct = [&](const LoraLinear& lora, const Tensor& in, const Tensor& out) {
      if (adapters == Adapters::kNone) return;
      const LoraRows rows{0, batch_, &lora};
      ops.add_lora({&rows, 1}, in.view(), low_.view(), out.view());
    };
    const RopeOptions rope{.num_heads = shape_.heads,
                           .num_kv_heads = shape_.kv_heads,
                           .head_dim = shape_.head_dim,
                           .rotary_dim = shape_.head_dim,
                           .table = rope_.view().f32(),
                           .q_norm = nullptr,
                           .k_norm = nullptr,
                           .norm_epsilon = 1e-5f};
    const float scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
    ops.rms_norm(hidden_.view(), norm_.view().f32(), 1e-5f, normed_.view());
    ops.linear(*layer.qkv, normed_.view(), qkv_.view());
    correct(layer.qkv_lora, normed_, qkv_);
    ops.rotate_and_store(qkv_.view(), rope, slices_, kv);
    ops.attention(qkv_.view(), {shape_.heads, scale, 0}, slices_, kv, attended_.view());
    ops.linear(*layer.output, attended_.view(), hidden_.view(), Accumulate::kAdd);
    correct(layer.output_lora, attended_, hidden_);
    ops.rms_norm(hidden_.view(), norm_.view().f32(), 1e-5f, normed_.view());
    ops.linear(*layer.gate_up, normed_.view(), gate_up_.view());
    correct(layer.gate_up_lora, normed_, gate_up_);
    ops.gated_activation(gate_up_.view(), Activation::kSilu, activated_.view());
    ops.linear(*layer.down, activated_.view(), hidden_.view(), Accumulate::kAdd);
    correct(layer.down_lora, activated_, hidden_);
  }

  ModelShape shape_;
  int32_t batch_;
  int32_t context_;
  KvCache kv_;
  Tensor norm_, rope_, hidden_, normed_, qkv_, attended_, gate_up_, activated_, low_, logits_;
  std::vector<Layer> layers_;
  std::unique_ptr<WeightMatrix> table_;  // embedding and output
  std::vector<int32_t> blocks_;
  std::vector<int32_t> tokens_;
  std::vector<SequenceSlice> slices_;
};

struct NamedPaths {
  std::string_view name;
  FastPaths paths;
};

constexpr NamedPaths kPaths[] = {
    {"all fast paths", {}},
    {"no graphs", {.graphs = false}},
    {"no fused LoRA", {.fused_lora = false}},
    {"no products of our own", {.few_row_products = false}},
    {"no timed choice", {.timed_choice = false}},
    {"none",
     {.graphs = false, .fused_lora = false, .few_row_products = false, .timed_choice = false}}};

void bench_steps(CudaDevice& device, const ModelShape& shape, int32_t batch, int32_t context) {
  auto packer = make_ops(device, Precision::kFast, {});
  Model model(device, *packer, shape, batch, context);
  fmt::print("{} batch {} context {}\n{:<24} {:>10} {:>10} {:>8} {:>12} {:>12}\n", shape.name,
             batch, context, "", "ms a step", "tokens/s", "of peak", "LoRA ms", "LoRA tok/s");
  for (const NamedPaths& named : kPaths) {
    auto ops = make_ops(device, Precision::kFast, named.paths);
    const double ms = model.ms_of_step(*ops, Adapters::kNone);
    const double lora_ms = model.ms_of_step(*ops, Adapters::kOne);
    fmt::print("{:<24} {:>10.3f} {:>10.1f} {:>7.1f}% {:>12.3f} {:>12.1f}\n", named.name, ms,
               batch * 1000 / ms, 100 * model.bytes() / (ms * 1e-3) / kPeakBandwidth, lora_ms,
               batch * 1000 / lora_ms);
  }
}

// Microseconds of one product with cold caches: our kernel, and the best of cuBLASLt.
void bench_products(CudaDevice& device, const ModelShape& s) {
  FastPaths library_only;
  library_only.few_row_products = false;
  auto ops = make_ops(device, Precision::kFast, library_only);
  const Values values(s.vocab * s.dim);
  Tensor sweep(device, DType::kF32, 1, int64_t{32} << 20);
  StreamStopwatch watch(device.stream());
  fmt::print("{:>5} {:>8} {:>8} {:>10} {:>10} {:>12}\n", "rows", "outputs", "columns", "own us",
             "library us", "own TB/s");
  const std::pair<int64_t, int64_t> shapes[] = {{s.qkv_columns(), s.dim},
                                                {s.dim, s.q_columns()},
                                                {2 * s.ffn, s.dim},
                                                {s.dim, s.ffn},
                                                {s.vocab, s.dim}};
  for (const auto& [outputs, columns] : shapes) {
    const auto matrix = values.matrix(*ops, outputs, columns);
    for (int64_t rows : {1, 2, 4}) {
      Tensor in(device, DType::kBF16, rows, columns);
      Tensor out(device, DType::kBF16, rows, outputs);
      auto clear = [&] {
        check_cuda(cudaMemsetAsync(sweep.view().data, 0, sweep.bytes(), device.stream()), "sweep");
      };
      const bool has_own =
          few_rows_support(static_cast<const CudaMatrix&>(*matrix), in.view(), out.view());
      const double own = !has_own ? NAN : watch.fastest(5, clear, [&] {
        multiply_few_rows(device.stream(), static_cast<const CudaMatrix&>(*matrix), in.view(),
                          out.view(), Accumulate::kOverwrite, nullptr);
      });
      ops->linear(*matrix, in.view(), out.view());  // chooses
      const double library =
          watch.fastest(5, clear, [&] { ops->linear(*matrix, in.view(), out.view()); });
      fmt::print("{:>5} {:>8} {:>8} {:>10.1f} {:>10.1f} {:>12.2f}\n", rows, outputs, columns,
                 own * 1e3, library * 1e3, static_cast<double>(matrix->bytes()) / own * 1e-9);
    }
  }
}

int run(int count, char** arguments) {
  const std::string_view name = count > 1 ? arguments[1] : "8b";
  const int32_t batch = count > 2 ? std::atoi(arguments[2]) : 1;
  const int32_t context = count > 3 ? std::atoi(arguments[3]) : 1024;
  for (const ModelShape& shape : kShapes) {
    if (shape.name != name) continue;
    CudaDevice device;
    bench_products(device, shape);
    bench_steps(device, shape, batch, context);
    return EXIT_SUCCESS;
  }
  fmt::print(stderr, "unknown shape \"{}\": 8b or small\n", name);
  return EXIT_FAILURE;
}

}  // namespace
}  // namespace droidspeak::cuda

int main(int count, char** arguments) {
  return droidspeak::cuda::run(count, arguments);
}
