// Mistral: Llama with a sliding attention window. Its GGUF files call themselves "llama".
#include <algorithm>

#include "model/architectures/architecture.h"

namespace droidspeak {
namespace {

constexpr int32_t kDefaultWindow = 4096;  // of files that leave it out; null: none

void read_hf(const JsonFields& json, ModelConfig& config) {
  read_hf_window(json, config);
  const std::vector<std::string> fields = json.keys();
  if (std::ranges::find(fields, "sliding_window") == fields.end())
    config.sliding_window = kDefaultWindow;
}

}  // namespace

const Architecture& mistral_architecture() {
  static const Architecture architecture{
      .name = "mistral", .hf_model_types = {"mistral"}, .read_hf = read_hf};
  return architecture;
}

}  // namespace droidspeak
