// What the fast paths of decoding are worth: steps of a model of random weights, each path
// ("paths") or each kind of operation ("parts") left out in turn; products of few rows alone; the
// operations of a prompt's chunks.
//   ops_cuda_bench [8b|70b|small|mixtral] [batch] [context]
//   [step|whole|paths|parts|products|prefill|sampling] [bf16|fp8|q4_0|...]
// "whole": a prompt of 8192 tokens through all layers, then steps of one and of all sequences.
// "sampling": steps with each way to sample and with adapters and batches that change.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>
#include <vector>

#include <fmt/format.h>

#include "cuda_model.h"
#include "ops/cuda/products/few_rows.h"
#include "ops/cuda/stopwatch.h"
#include "sampling_bench.h"

namespace droidspeak::cuda {
namespace {

constexpr double kPeakBandwidth = 4.8e12;  // bytes a second, H200
constexpr int32_t kWholePrompt = 8192;

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
    const double ms = model.ms_of_step(*ops, model.fixed_plan(Model::kNoAdapter));
    const double lora_ms = model.ms_of_step(*ops, model.fixed_plan(0));
    fmt::print("{:<24} {:>10.3f} {:>10.1f} {:>7.1f}% {:>12.3f} {:>12.1f}\n", named.name, ms,
               batch * 1000 / ms, 100 * model.bytes(batch) / (ms * 1e-3) / kPeakBandwidth, lora_ms,
               batch * 1000 / lora_ms);
  }
}

void bench_whole(CudaDevice& device, Model& model, int32_t prompt) {
  constexpr double kPeakRate = 990e12;  // bf16 operations a second, H200
  auto ops = make_ops(device, Precision::kFast, {});
  const double ms = model.ms_of_prompt(*ops, prompt);
  const double operations = 2.0 * prompt * model.weights_of_layers();
  fmt::print(
      "prompt of {}: {:.1f} ms, products {:.0f} TFLOP/s of all time, {:.1f}% of bf16's peak\n",
      prompt, ms, operations / ms * 1e-9, 100 * operations / (ms * 1e-3) / kPeakRate);
  for (int32_t batch : {1, model.batch()}) {
    Model::Work work;
    for (int32_t i = 0; i < batch; ++i) work.rows.push_back({i, Model::kNoAdapter});
    const double step = model.ms_of_step(*ops, [&](int32_t) { return work; });
    fmt::print("step of {}: {:.3f} ms, {:.1f} tokens/s, {:.1f}% of the bandwidth\n", batch, step,
               batch * 1000 / step, 100 * model.bytes(batch) / (step * 1e-3) / kPeakBandwidth);
  }
}

// Microseconds of one product with cold caches: our kernel, and the best of cuBLASLt.
void bench_products(CudaDevice& device, const ModelShape& s, DType dtype) {
  FastPaths library_only;
  library_only.few_row_products = false;
  auto ops = make_ops(device, Precision::kFast, library_only);
  const RandomWeights values(dtype, std::max(s.vocab, 2 * s.ffn) * s.dim);
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
               model.ms_of_step(*all, model.fixed_plan(Model::kNoAdapter, named.parts)),
               model.ms_of_step(*library, model.fixed_plan(Model::kNoAdapter, named.parts)));
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
    const RandomWeights values(dtype_, 2 * s_.ffn * s_.dim);
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

  void product(std::string_view name,
               const RandomWeights& values,
               int64_t outputs,
               int64_t columns) {
    const auto matrix = values.matrix(*ops_, outputs, columns);
    Tensor in(device_, DType::kBF16, kRows, columns);
    Tensor out(device_, DType::kBF16, kRows, outputs);
    fill(in);
    const double ms = ms_of([&] { ops_->linear(*matrix, in.view(), out.view()); });
    fmt::print(
        "{:<22} {:>10.3f} ms {:>8.0f} TFLOP/s\n", name, ms,
        2.0 * kRows * static_cast<double>(outputs) * static_cast<double>(columns) / ms * 1e-9);
  }

  // Products of zeros would be faster.
  void fill(const Tensor& rows) {
    std::vector<uint16_t> values(rows.bytes() / sizeof(uint16_t));
    std::minstd_rand random(1);
    for (uint16_t& value : values) value = static_cast<uint16_t>(0x3f00 | (random() >> 8 & 0x80ff));
    device_.to_device(rows.view().data, values.data(), rows.bytes());
    device_.synchronize();
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
    fmt::print(stderr, "unknown shape \"{}\": 8b, 70b, small or mixtral\n", name);
    return EXIT_FAILURE;
  }
  const std::string_view format = count > 5 ? arguments[5] : "bf16";
  const auto* quantized = std::ranges::find(kStripDtypes, format, name_of);
  constexpr DType kOthers[] = {DType::kBF16, DType::kFp8};
  const auto* other = std::ranges::find(kOthers, format, name_of);
  if (other == std::end(kOthers) && quantized == std::end(kStripDtypes)) {
    fmt::print(stderr, "unknown format of weights \"{}\": bf16 or one that stays quantised\n",
               format);
    return EXIT_FAILURE;
  }
  const DType dtype = other == std::end(kOthers) ? *quantized : *other;
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
  const bool samples = what == "sampling";
  Model model(device, *packer,
              {.shape = *shape,
               .batch = batch,
               .context = context,
               .dtype = dtype,
               .num_adapters = samples ? kMixedAdapters : 1,
               .prompt = what == "whole" ? kWholePrompt : 0});
  fmt::print("{} {} batch {} context {}\n", name, format, batch, context);
  if (what == "whole") {
    bench_whole(device, model, kWholePrompt);
  } else if (samples) {
    bench_sampling(device, *packer, model);
    bench_mixture(device, *packer, model);
  } else if (what == "parts") {
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
