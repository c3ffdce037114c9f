// Any bytes as a PEFT folder: adapter_config.json up to the first zero byte, the rest is
// adapter_model.safetensors. It is loaded for a tiny base and for one with experts and corrects a
// row, or a Failure says why not.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <span>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "base/file.h"
#include "model/adapter_files.h"
#include "model/adapter_opener.h"
#include "model/weights.h"

using namespace droidspeak;  // NOLINT(google-build-using-namespace)

namespace {

// That of tests/data/models/smollm2, as far as adapters are concerned.
ModelConfig base_config() {
  ModelConfig config;
  config.architecture = "llama";
  config.num_layers = 3;
  config.d_model = 64;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.ffn_dim = 96;
  return config;
}

ModelConfig expert_config() {
  ModelConfig config = base_config();
  config.architecture = "mixtral";
  config.experts = {.count = 3, .per_row = 2, .ffn_dim = 24};
  config.ffn_dim = 0;
  return config;
}

void write(const std::filesystem::path& path, std::string_view content) {
  std::ofstream file(path, std::ios::binary);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
}

struct Shape {
  LoraLinear LoraLayer::*linear;
  int32_t columns;
  int32_t rows;
};

void correct_a_row(Ops& ops, const LoraLinear& linear, int32_t columns, int32_t rows) {
  if (!linear.down) return;
  check(linear.down->rows() > 0, "a correction has a rank");
  Tensor in(ops.device(), DType::kF32, 1, columns);
  Tensor low(ops.device(), DType::kF32, 1, linear.down->rows());
  Tensor out(ops.device(), DType::kF32, 1, rows);
  LoraRows corrected{0, 1, &linear};
  ops.add_lora(std::span(&corrected, 1), in.view(), low.view(), out.view());
}

void correct_a_row(Ops& ops, const Adapter& adapter, const ModelConfig& config) {
  const Shape shapes[] = {{&LoraLayer::qkv, config.d_model, config.qkv_columns()},
                          {&LoraLayer::output, config.q_columns(), config.d_model},
                          {&LoraLayer::gate_up, config.d_model, 2 * config.ffn_dim},
                          {&LoraLayer::down, config.ffn_dim, config.d_model}};
  for (const LoraLayer& layer : adapter.layers) {
    for (const Shape& shape : shapes)
      correct_a_row(ops, layer.*shape.linear, shape.columns, shape.rows);
    for (const ExpertLora& expert : layer.experts) {
      correct_a_row(ops, expert.gate_up, config.d_model, 2 * config.experts.ffn_dim);
      correct_a_row(ops, expert.down, config.experts.ffn_dim, config.d_model);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const TemporaryFolder folder;
  static const ModelConfig configs[] = {base_config(), expert_config()};
  static const std::unique_ptr<Device> device = make_cpu_device();
  static const std::unique_ptr<Ops> ops = make_cpu_ops(*device, 1);
  std::string_view input(reinterpret_cast<const char*>(data), size);
  size_t split = std::min(input.find('\0'), size);
  write(folder.path() / "adapter_config.json", input.substr(0, split));
  write(folder.path() / "adapter_model.safetensors",
        input.substr(std::min(split + 1, input.size())));
  for (const ModelConfig& config : configs) {
    for (Precision precision : {Precision::kFast, Precision::kExact}) {
      try {
        correct_a_row(*ops,
                      *AdapterFiles(AdapterOpener(folder.path()), config, precision).pack(*ops),
                      config);
      } catch (const Failure&) {
      }
    }
  }
  return 0;
}
