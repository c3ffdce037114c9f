// Any bytes as a folder of quantised weights: its "quantization_config" up to the first zero byte,
// the rest is model.safetensors. Every matrix is decoded to as many bytes as its shape has, or a
// Failure says why not.
#include <algorithm>
#include <fstream>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "base/file.h"
#include "model/json_fields.h"
#include "model/quantized/quantized_tensors.h"

using namespace droidspeak;  // NOLINT(google-build-using-namespace)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const TemporaryFolder folder;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t split = std::min(input.find('\0'), size);
  try {
    const QuantizationConfig config =
        read_quantization_config(JsonFields("config.json", input.substr(0, split), {}));
    const std::string_view file = input.substr(std::min(split + 1, size));
    std::ofstream(folder.path() / "model.safetensors", std::ios::binary)
        .write(file.data(), static_cast<std::streamsize>(file.size()));
    const SafetensorsFolder tensors(folder.path());
    const QuantizedTensors quantized(tensors, config);
    for (const auto& matrix : quantized.matrices()) {
      check(quantized.find_tensor(matrix->name) != nullptr, "a matrix is found by its name");
      check(std::ssize(matrix->read_floats()) == matrix->shape[0] * matrix->shape[1],
            "a matrix has the elements of its shape");
    }
  } catch (const Failure&) {
  }
  return 0;
}
