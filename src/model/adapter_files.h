// A PEFT folder (adapter_config.json, adapter_model.safetensors) or a GGUF file with a LoRA for one
// base, read into memory and checked. Nothing of it is on a device yet and the files are closed:
// reading needs no Ops, so it can be done on any thread, and packing then takes the device for one
// layer at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "base/hash.h"
#include "model/adapter_path.h"
#include "model/adapter_targets.h"
#include "model/model_config.h"
#include "model/weights.h"

namespace droidspeak {

class AdapterOpener;

class AdapterFiles {
 public:
  // Throws Failure naming file, field or tensor and what is wrong. kFast keeps 16-bit matrices as
  // they are.
  AdapterFiles(const AdapterOpener& opener, const ModelConfig& base, Precision precision);

  // Where it was found; without links where its path has a root.
  const std::filesystem::path& path() const { return path_; }

  const Digest& digest() const { return digest_; }

  // An adapter without layers yet.
  Adapter begin_adapter() const { return {digest_, invocation_, {}}; }

  int32_t num_layers() const { return static_cast<int32_t>(layers_.size()); }

  LoraLayer pack_layer(Ops& ops, int32_t layer) const;
  std::shared_ptr<const Adapter> pack(Ops& ops) const;  // all of it

 private:
  friend class AdapterReader;

  struct Matrix {
    DType dtype = DType::kF32;
    std::vector<std::byte> bytes;
  };

  // The correction of one linear layer.
  struct Pair {
    LinearPlace linear;
    int32_t first_column = 0;  // in the output of the fused layer
    int32_t rows = 0;
    int32_t columns = 0;
    int32_t rank = 0;
    Matrix down;  // A: [rank, columns]
    Matrix up;    // B, scaled: [rows, rank]
  };

  std::filesystem::path path_;
  Precision precision_;
  size_t num_experts_;
  Digest digest_;
  std::vector<int32_t> invocation_;
  std::vector<std::vector<Pair>> layers_;
};

// Reads what was opened; throws Failure.
using ReadAdapter =
    std::function<AdapterFiles(const AdapterOpener&, const ModelConfig&, Precision)>;

// The largest file with tensors that is read: as large as what it corrects, in 32 bits.
uint64_t max_adapter_bytes(const ModelConfig& base);

}  // namespace droidspeak
