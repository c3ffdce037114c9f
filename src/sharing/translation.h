// Translation of a sender's caches towards a receiver: per layer a low-rank map on [K before RoPE |
// V], and one on E at each transition layer. x += (x A) B + bias, applied while a layer is loaded.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/hash.h"
#include "ops/ops.h"

namespace droidspeak {

class InputFile;

// Host form of a map, as fitted and as stored in the plan book's .safetensors file.
struct LinearMap {
  int32_t rank = 0;
  std::vector<float> down;  // [rank, columns]
  std::vector<float> up;    // [columns, rank]
  std::vector<float> bias;  // [columns]
};

struct TranslationMaps {
  std::map<int32_t, LinearMap> kv;      // by layer; columns = 2 * num_kv_heads * head_dim
  std::map<int32_t, LinearMap> inputs;  // by transition layer; columns = d_model
};

// Throws Failure naming file, tensor and what is wrong (shape, NaN).
TranslationMaps load_translation(const std::filesystem::path& path,
                                 int32_t num_layers,
                                 int32_t kv_columns,
                                 int32_t d_model);
// The same without the values: header, names, shapes and sizes.
void check_translation(const std::filesystem::path& path,
                       int32_t num_layers,
                       int32_t kv_columns,
                       int32_t d_model);
// Of the file's bytes.
Digest digest_of_maps(const std::filesystem::path& path);
Digest digest_of_maps(const std::shared_ptr<const InputFile>& file);
void save_translation(const std::filesystem::path& path, const TranslationMaps& maps);

// Packed for one Ops; views stay valid while this lives.
class Translator {
 public:
  Translator(Ops& ops, const TranslationMaps& maps);

  // Null when the layer has no map.
  const LowRankMap* kv(int32_t layer) const;
  const LowRankMap* input(int32_t layer) const;

 private:
  struct Packed;
  static std::unique_ptr<Packed> pack(Ops& ops, const LinearMap& map);

  std::map<int32_t, std::unique_ptr<Packed>> kv_;
  std::map<int32_t, std::unique_ptr<Packed>> inputs_;

 public:
  ~Translator();
};

}  // namespace droidspeak
