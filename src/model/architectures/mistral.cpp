// Mistral: Llama with a sliding attention window. Its GGUF files call themselves "llama".
#include "model/architectures/architecture.h"

namespace droidspeak {
namespace {

void read_hf(const JsonFields& json, ModelConfig& config) {
  read_hf_windows(json, 4096, no_layer, config);
}

}  // namespace

const Architecture& mistral_architecture() {
  static const Architecture architecture{.name = "mistral",
                                         .models = "Mistral",
                                         .hf_model_types = {"mistral"},
                                         .gguf_as = "llama",
                                         .read_hf = read_hf};
  return architecture;
}

}  // namespace droidspeak
