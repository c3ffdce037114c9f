// A PEFT folder that tests change and load.
#pragma once

#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "formats/safetensors.h"
#include "model/adapter_files.h"
#include "model/adapter_opener.h"
#include "support/tiny_model.h"

namespace droidspeak {

inline std::string failure_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Failure& failure) {
    return failure.what();
  }
  return "";
}

// A small adapter of the tiny base, rank 2 on some linear layers, to be changed by tests.
class AdapterTest : public testing::Test {
 protected:
  struct Matrix {
    std::vector<int64_t> shape;
    std::vector<float> values;
  };

  AdapterTest() : device_(make_cpu_device()), ops_(make_cpu_ops(*device_, 1)) {
    write_tiny_checkpoint(folder_.path() / "base");
    base_ = load_config(folder_.path() / "base");
    add_pair("model.layers.0.self_attn.q_proj", 2, 64, 64);
    add_pair("model.layers.1.self_attn.v_proj", 2, 32, 64);
    add_pair("model.layers.1.mlp.down_proj", 2, 64, 128);
  }

  void add(const std::string& name, int64_t rows, int64_t columns) {
    Matrix& matrix = tensors_[name];
    matrix.shape = {rows, columns};
    matrix.values.clear();
    for (int64_t i = 0; i < rows * columns; ++i)
      matrix.values.push_back(static_cast<float>(i % 7 - 3) / 8);
  }

  void add_pair(const std::string& module, int64_t rank, int64_t rows, int64_t columns) {
    add("base_model.model." + module + ".lora_A.weight", rank, columns);
    add("base_model.model." + module + ".lora_B.weight", rows, rank);
  }

  void write() const {
    std::vector<FileTensor> tensors;
    for (const auto& [name, matrix] : tensors_) {
      tensors.push_back(
          {name, DType::kF32, matrix.shape, std::as_bytes(std::span<const float>(matrix.values))});
    }
    write_safetensors(folder_.path() / "adapter_model.safetensors", tensors, {});
    write_config();
  }

  void write_config() const {
    std::ofstream(folder_.path() / "adapter_config.json") << config_text_.value_or(config_.dump());
  }

  std::shared_ptr<const Adapter> load() {
    write();
    return AdapterFiles(AdapterOpener(folder_.path()), base_, Precision::kExact).pack(*ops_);
  }

  Digest digest() { return load()->digest; }

  std::string refusal() {
    return failure_of([&] { load(); });
  }

  std::string refusal_with(const std::string& field, const nlohmann::json& value) {
    nlohmann::json before = config_;
    config_[field] = value;
    std::string text = refusal();
    config_ = before;
    return text;
  }

  // config_ as a text in which `value` stands in the place of a field's value.
  std::string refusal_with_text(const std::string& field, const std::string& value) {
    nlohmann::json edited = config_;
    edited[field] = "HERE";
    std::string text = edited.dump();
    config_text_ = text.replace(text.find("\"HERE\""), 6, value);
    std::string refused = refusal();
    config_text_.reset();
    return refused;
  }

  static constexpr const char* kQueryA =
      "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
  static constexpr const char* kQueryB =
      "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight";

  TemporaryFolder folder_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Ops> ops_;
  ModelConfig base_;
  std::map<std::string, Matrix> tensors_;
  nlohmann::json config_ = {
      {"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 4}, {"target_modules", "all-linear"}};
  std::optional<std::string> config_text_;
};

}  // namespace droidspeak
