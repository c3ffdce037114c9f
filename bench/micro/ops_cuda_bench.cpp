// What the fast paths of decoding are worth: steps of a model of random weights, each path
// ("paths") or each kind of operation ("parts") left out in turn; products of few rows alone; the
// operations of a prompt's chunks.
//   ops_cuda_bench [8b|70b|small] [batch] [context] [step|paths|parts|products|prefill]
//   [bf16|q4_0|...]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include <fmt/format.h>

#include "kv/kv_cache.h"
#include "ops/cuda/products/few_rows.h"
#include "ops/cuda/steps/fast_paths.h"
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
                                  {"70b", 80, 8192, 64, 8, 128, 28672, 128256},
                                  {"small", 30, 576, 9, 3, 64, 1536, 49152}};
constexpr int32_t kRank = 16;

// Random weights as a file holds them, for matrices of any shape of up to `count` elements.
class Values {
 public:
  Values(DType dtype, int64_t count) : dtype_(dtype), bytes_(bytes_of(dtype, count)) {
    std::minstd_rand random(1);
    if (dtype == DType::kBF16) {
      for (size_t i = 0; i < bytes_.size(); i += 2)  // of magnitude 2^-8 to 2^-7
        store(i, static_cast<uint16_t>(0x3b80 | (random() & 0x807f)));
      return;
    }
    for (std::byte& byte : bytes_) byte = static_cast<std::byte>(random() >> 8);
    const auto step = static_cast<size_t>(traits(dtype).block_bytes);
    const uint16_t scale = strip_format(dtype).has_supers ? 0x0400 : 0x1000;  // f16, 2^-14, 2^-11
    for (size_t at = 0; at < bytes_.size(); at += step) {
      store(at + (dtype == DType::kQ6_K ? 208 : 0), scale);
      if (strip_format(dtype).has_minimum) store(at + 2, scale);
    }
  }

  std::unique_ptr<WeightMatrix> matrix(Ops& ops, int64_t rows, int64_t columns) const {
    const MatrixPart part{.dtype = dtype_,
                          .rows = rows,
                          .columns = columns,
                          .bytes = std::span(bytes_).first(bytes_of(dtype_, rows * columns)),
                          .row_order = {}};
    return ops.pack({&part, 1}, Precision::kFast);
  }

 private:
  void store(size_t at, uint16_t bits) { std::memcpy(bytes_.data() + at, &bits, sizeof bits); }

  DType dtype_;
  std::vector<std::byte> bytes_;
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

// Operations of a step.
struct Parts {
  bool norms = true;
  bool rotation = true;
  bool attention = true;
  bool activation = true;
  bool small_products = true;  // qkv and output
  bool large_products = true;  // gate and up, down
  bool logits = true;
};

class Model {
 public:
  struct Options {
    ModelShape shape;
    int32_t batch = 1;
    int32_t context = 1024;
    DType dtype = DType::kBF16;  // of the weights
  };

  Model(CudaDevice& device, Ops& ops, const Options& options)
      : shape_(options.shape),
        batch_(options.batch),
        context_(options.context),
        kv_(device,
            {.num_layers = shape_.layers,
             .num_kv_heads = shape_.kv_heads,
             .head_dim = shape_.head_dim,
             .dtype = DType::kBF16},
            kv_bytes()),
        norm_(device, DType::kF32, 1, shape_.dim),
        rope_(device, DType::kF32, max_positions(), shape_.head_dim),
        hidden_(device, DType::kBF16, batch_, shape_.dim),
        normed_(device, DType::kBF16, batch_, shape_.dim),
        qkv_(device, DType::kBF16, batch_, shape_.qkv_columns()),
        attended_(device, DType::kBF16, batch_, shape_.q_columns()),
        gate_up_(device, DType::kBF16, batch_, 2 * shape_.ffn),
        activated_(device, DType::kBF16, batch_, shape_.ffn),
        low_(device, DType::kBF16, batch_, 3 * kRank),
        logits_(device, DType::kF32, batch_, shape_.vocab),
        tokens_(static_cast<size_t>(batch_), 1) {
    const Values values(options.dtype, std::max(shape_.vocab, 2 * shape_.ffn) * shape_.dim);
    const Values corrections(DType::kBF16, 3 * kRank * std::max(shape_.ffn, shape_.dim));
    for (int32_t i = 0; i < shape_.layers; ++i)
      layers_.push_back(make_layer(ops, values, corrections));
    table_ = values.matrix(ops, shape_.vocab, shape_.dim);
    const int32_t blocks = blocks_for(max_positions());
    for (int32_t i = 0; i < batch_ * blocks; ++i) blocks_.push_back(i);
  }

  int32_t batch() const { return batch_; }

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

  // The fastest of three runs.
  double ms_of_step(Ops& ops, Adapters adapters, const Parts& parts = {}) {
    parts_ = parts;
    for (int32_t i = 0; i < kWarmUp; ++i) step(ops, adapters, i);
    double best = INFINITY;
    for (int32_t run = 0; run < 3; ++run) {
      const auto begin = std::chrono::steady_clock::now();
      for (int32_t i = 0; i < kSteps; ++i) step(ops, adapters, kWarmUp + i);
      const std::chrono::duration<double, std::milli> took =
          std::chrono::steady_clock::now() - begin;
      best = std::min(best, took.count() / kSteps);
    }
    return best;
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

  Layer make_layer(Ops& ops, const Values& values, const Values& corrections) const {
    const ModelShape& s = shape_;
    const int64_t kv_columns = int64_t{s.kv_heads} * s.head_dim;
    Layer layer;
    layer.qkv = values.matrix(ops, s.qkv_columns(), s.dim);
    layer.output = values.matrix(ops, s.dim, s.q_columns());
    layer.gate_up = values.matrix(ops, 2 * s.ffn, s.dim);
    layer.down = values.matrix(ops, s.dim, s.ffn);
    layer.qkv_lora = make_lora(ops, corrections, s.dim, {s.q_columns(), kv_columns, kv_columns});
    layer.output_lora = make_lora(ops, corrections, s.q_columns(), {s.dim});
    layer.gate_up_lora = make_lora(ops, corrections, s.dim, {s.ffn, s.ffn});
    layer.down_lora = make_lora(ops, corrections, s.ffn, {s.dim});
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
    if (parts_.logits) ops.linear(*table_, normed_.view(), logits_.view());
    if (parts_.logits) return ops.argmax(logits_.view(), tokens_);
    ops.device().synchronize();
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
    auto norm = [&] {
      if (parts_.norms) ops.rms_norm(hidden_.view(), norm_.view().f32(), 1e-5f, normed_.view());
    };
    norm();
    if (parts_.small_products) ops.linear(*layer.qkv, normed_.view(), qkv_.view());
    correct(layer.qkv_lora, normed_, qkv_);
    if (parts_.rotation) ops.rotate_and_store(qkv_.view(), rope, slices_, kv);
    if (parts_.attention)
      ops.attention(qkv_.view(), {shape_.heads, scale, 0}, slices_, kv, attended_.view());
    if (parts_.small_products)
      ops.linear(*layer.output, attended_.view(), hidden_.view(), Accumulate::kAdd);
    correct(layer.output_lora, attended_, hidden_);
    norm();
    if (parts_.large_products) ops.linear(*layer.gate_up, normed_.view(), gate_up_.view());
    correct(layer.gate_up_lora, normed_, gate_up_);
    if (parts_.activation)
      ops.gated_activation(gate_up_.view(), Activation::kSilu, activated_.view());
    if (parts_.large_products)
      ops.linear(*layer.down, activated_.view(), hidden_.view(), Accumulate::kAdd);
    correct(layer.down_lora, activated_, hidden_);
  }

  ModelShape shape_;
  Parts parts_;
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

constexpr NamedPaths kPaths[] = {{"all fast paths", {}},
                                 {"no graphs", {.graphs = false}},
                                 {"no fused LoRA", {.fused_lora = false}},
                                 {"no products of our own", {.few_row_products = false}},
                                 {"not joined", {.joined = false}},
                                 {"no timed choice", {.timed_choice = false}},
                                 {"none",
                                  {.graphs = false,
                                   .fused_lora = false,
                                   .few_row_products = false,
                                   .joined = false,
                                   .timed_choice = false}}};

void bench_paths(CudaDevice& device, Model& model, size_t num_paths) {
  const int32_t batch = model.batch();
  fmt::print("{:<24} {:>10} {:>10} {:>8} {:>12} {:>12}\n", "", "ms a step", "tokens/s", "of peak",
             "LoRA ms", "LoRA tok/s");
  for (const NamedPaths& named : std::span(kPaths).first(num_paths)) {
    auto ops = make_ops(device, Precision::kFast, named.paths);
    const double ms = model.ms_of_step(*ops, Adapters::kNone);
    const double lora_ms = model.ms_of_step(*ops, Adapters::kOne);
    fmt::print("{:<24} {:>10.3f} {:>10.1f} {:>7.1f}% {:>12.3f} {:>12.1f}\n", named.name, ms,
               batch * 1000 / ms, 100 * model.bytes() / (ms * 1e-3) / kPeakBandwidth, lora_ms,
               batch * 1000 / lora_ms);
  }
}

// Microseconds of one product with cold caches: our kernel, and the best of cuBLASLt.
void bench_products(CudaDevice& device, const ModelShape& s, DType dtype) {
  FastPaths library_only;
  library_only.few_row_products = false;
  auto ops = make_ops(device, Precision::kFast, library_only);
  const Values values(dtype, std::max(s.vocab, 2 * s.ffn) * s.dim);
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
    for (int64_t rows : {1, 2, 4, 8, 16, 32, 64}) {
      Tensor in(device, DType::kBF16, rows, columns);
      Tensor out(device, DType::kBF16, rows, outputs);
      auto clear = [&] {
        check_cuda(cudaMemsetAsync(sweep.view().data, 0, sweep.bytes(), device.stream()), "sweep");
      };
      const bool has_own = few_rows_support(as_cuda(*matrix), in.view(), out.view());
      const double own = !has_own ? NAN : watch.fastest(5, clear, [&] {
        multiply_few_rows(device.stream(), {as_cuda(*matrix), in.view(), out.view()});
      });
      ops->linear(*matrix, in.view(), out.view());  // chooses
      const double library =
          watch.fastest(5, clear, [&] { ops->linear(*matrix, in.view(), out.view()); });
      fmt::print("{:>5} {:>8} {:>8} {:>10.1f} {:>10.1f} {:>12.2f}\n", rows, outputs, columns,
                 own * 1e3, library * 1e3, static_cast<double>(matrix->bytes()) / own * 1e-9);
    }
  }
}

struct NamedParts {
  std::string_view name;
  Parts parts;
};

constexpr NamedParts kParts[] = {
    {"everything", {}},
    {"no logits", {.logits = false}},
    {"no norms", {.norms = false}},
    {"no rotation", {.rotation = false}},
    {"no attention", {.attention = false}},
    {"no rotation, attention", {.rotation = false, .attention = false}},
    {"no activation", {.activation = false}},
    {"no qkv, output", {.small_products = false}},
    {"no gate/up, down", {.large_products = false}},
    {"small operations only", {.small_products = false, .large_products = false}},
    {"products only",
     {.norms = false, .rotation = false, .attention = false, .activation = false}}};

void bench_parts(CudaDevice& device, Model& model) {
  fmt::print("{:<24} {:>12} {:>12}\n", "ms a step", "all paths", "library only");
  auto all = make_ops(device, Precision::kFast, {});
  auto library = make_ops(device, Precision::kFast, {.few_row_products = false});
  for (const NamedParts& named : kParts)
    fmt::print("{:<24} {:>12.3f} {:>12.3f}\n", named.name,
               model.ms_of_step(*all, Adapters::kNone, named.parts),
               model.ms_of_step(*library, Adapters::kNone, named.parts));
}

// Milliseconds of the operations of one layer for chunks of a long prompt.
class PrefillBench {
 public:
  PrefillBench(CudaDevice& device, const ModelShape& shape, DType dtype)
      : device_(device),
        s_(shape),
        dtype_(dtype),
        ops_(make_ops(device, Precision::kFast, {})),
        watch_(device.stream()),
        kv_(device, layout(), layout().block_bytes() * static_cast<size_t>(blocks_for(kTokens))),
        rope_(device, DType::kF32, kTokens, shape.head_dim),
        qkv_(device, DType::kBF16, kRows, shape.qkv_columns()),
        attended_(device, DType::kBF16, kRows, shape.q_columns()) {
    for (int32_t i = 0; i < blocks_for(kTokens); ++i) blocks_.push_back(i);
  }

  void run() {
    for (int32_t first = 0; first < kTokens; first += kRows) attention(first);
    const Values values(dtype_, 2 * s_.ffn * s_.dim);
    product("qkv", values, s_.qkv_columns(), s_.dim);
    product("output", values, s_.dim, s_.q_columns());
    product("gate/up", values, 2 * s_.ffn, s_.dim);
    product("down", values, s_.dim, s_.ffn);
    others();
  }

 private:
  static constexpr int32_t kRows = 8192;
  static constexpr int32_t kTokens = 4 * kRows;
  static constexpr int kTimes = 10;  // one after the other: the clocks of a long prompt

  KvLayout layout() const {
    return {.num_layers = 1,
            .num_kv_heads = s_.kv_heads,
            .head_dim = s_.head_dim,
            .dtype = DType::kBF16};
  }

  template <class Work>
  double ms_of(const Work& work) {
    return watch_.fastest(
               2, [] {},
               [&] {
                 for (int i = 0; i < kTimes; ++i) work();
               }) /
           kTimes;
  }

  void attention(int32_t first) {
    const SequenceSlice slice{0, kRows, first, blocks_};
    const float scale = 1.0f / std::sqrt(static_cast<float>(s_.head_dim));
    const double ms = ms_of([&] {
      ops_->attention(qkv_.view(), {s_.heads, scale, 0}, {&slice, 1}, kv_.layer(0),
                      attended_.view());
    });
    const double operations = 4.0 * s_.heads * s_.head_dim * kRows * (first + 0.5 * kRows);
    fmt::print("attention after {:>6} {:>10.3f} ms {:>8.0f} TFLOP/s\n", first, ms,
               operations / ms * 1e-9);
  }

  void product(std::string_view name, const Values& values, int64_t outputs, int64_t columns) {
    const auto matrix = values.matrix(*ops_, outputs, columns);
    Tensor in(device_, DType::kBF16, kRows, columns);
    Tensor out(device_, DType::kBF16, kRows, outputs);
    const double ms = ms_of([&] { ops_->linear(*matrix, in.view(), out.view()); });
    fmt::print(
        "{:<22} {:>10.3f} ms {:>8.0f} TFLOP/s\n", name, ms,
        2.0 * kRows * static_cast<double>(outputs) * static_cast<double>(columns) / ms * 1e-9);
  }

  void others() {
    Tensor hidden(device_, DType::kBF16, kRows, s_.dim);
    Tensor weight(device_, DType::kF32, 1, s_.dim);
    Tensor gate_up(device_, DType::kBF16, kRows, 2 * s_.ffn);
    Tensor activated(device_, DType::kBF16, kRows, s_.ffn);
    const SequenceSlice slice{0, kRows, 0, blocks_};
    const RopeOptions rope{.num_heads = s_.heads,
                           .num_kv_heads = s_.kv_heads,
                           .head_dim = s_.head_dim,
                           .rotary_dim = s_.head_dim,
                           .table = rope_.view().f32(),
                           .q_norm = nullptr,
                           .k_norm = nullptr,
                           .norm_epsilon = 1e-5f};
    fmt::print(
        "norm {:.3f} ms, rotation {:.3f} ms, activation {:.3f} ms\n",
        ms_of([&] { ops_->rms_norm(hidden.view(), weight.view().f32(), 1e-5f, hidden.view()); }),
        ms_of([&] {
          ops_->rotate_and_store(qkv_.view(), rope, {&slice, 1}, kv_.layer(0));
        }),
        ms_of(
            [&] { ops_->gated_activation(gate_up.view(), Activation::kSilu, activated.view()); }));
  }

  CudaDevice& device_;
  ModelShape s_;
  DType dtype_;
  std::unique_ptr<Ops> ops_;
  StreamStopwatch watch_;
  KvCache kv_;
  Tensor rope_, qkv_, attended_;
  std::vector<int32_t> blocks_;
};

int run(int count, char** arguments) {
  const std::string_view name = count > 1 ? arguments[1] : "8b";
  const int32_t batch = count > 2 ? std::atoi(arguments[2]) : 1;
  const int32_t context = count > 3 ? std::atoi(arguments[3]) : 1024;
  const std::string_view what = count > 4 ? arguments[4] : "paths";
  const auto* shape = std::ranges::find(kShapes, name, &ModelShape::name);
  if (shape == std::end(kShapes)) {
    fmt::print(stderr, "unknown shape \"{}\": 8b, 70b or small\n", name);
    return EXIT_FAILURE;
  }
  const std::string_view format = count > 5 ? arguments[5] : "bf16";
  const auto* quantized = std::ranges::find(kStripDtypes, format, name_of);
  if (format != name_of(DType::kBF16) && quantized == std::end(kStripDtypes)) {
    fmt::print(stderr, "unknown format of weights \"{}\": bf16 or one that stays quantised\n",
               format);
    return EXIT_FAILURE;
  }
  const DType dtype = quantized == std::end(kStripDtypes) ? DType::kBF16 : *quantized;
  CudaDevice device;
  if (what == "prefill") {
    PrefillBench(device, *shape, dtype).run();
    return EXIT_SUCCESS;
  }
  if (what == "products") {
    bench_products(device, *shape, dtype);
    return EXIT_SUCCESS;
  }
  auto packer = make_ops(device, Precision::kFast, {});
  Model model(device, *packer,
              {.shape = *shape, .batch = batch, .context = context, .dtype = dtype});
  fmt::print("{} {} batch {} context {}\n", name, format, batch, context);
  if (what == "parts") {
    bench_parts(device, model);
  } else {
    bench_paths(device, model, what == "step" ? 1 : std::size(kPaths));
  }
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace droidspeak::cuda

int main(int count, char** arguments) {
  return droidspeak::cuda::run(count, arguments);
}
