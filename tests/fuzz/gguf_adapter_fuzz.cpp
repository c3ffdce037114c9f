// Any bytes as an adapter in GGUF: it is read for a tiny dense base and for one with experts, or a
// Failure says why not.
#include <fstream>

#include "base/check.h"
#include "base/error.h"
#include "base/file.h"
#include "model/adapter_files.h"
#include "model/adapter_opener.h"

using namespace droidspeak;  // NOLINT(google-build-using-namespace)

namespace {

// Those of tests/data/models/granite and mixtral, as far as adapters are concerned.
ModelConfig base_config(std::string_view architecture, int32_t num_experts) {
  ModelConfig config;
  config.architecture = architecture;
  config.num_layers = 3;
  config.d_model = 32;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 8;
  config.vocab_size = 320;
  config.ffn_dim = num_experts > 0 ? 0 : 40;
  if (num_experts > 0) config.experts = {.count = num_experts, .per_row = 2, .ffn_dim = 40};
  return config;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const TemporaryFolder folder;
  static const ModelConfig bases[] = {base_config("granite", 0), base_config("mixtral", 5)};
  const std::filesystem::path path = folder.path() / "adapter.gguf";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  for (const ModelConfig& base : bases) {
    for (Precision precision : {Precision::kFast, Precision::kExact}) {
      try {
        const AdapterFiles files(AdapterOpener(path), base, precision);
        check(files.num_layers() == base.num_layers, "an adapter has the layers of its base");
      } catch (const Failure&) {
      }
    }
  }
  return 0;
}
