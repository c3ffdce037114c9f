// Any bytes as a safetensors file: it opens, and then every tensor can be read, or a Failure says
// why not.
#include "base/error.h"
#include "formats/safetensors.h"
#include "memory_file.h"

using namespace droidspeak;  // NOLINT(google-build-using-namespace)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  MemoryFile input(data, size);
  try {
    SafetensorsFile file(input.path());
    for (const FileTensor& tensor : file.tensors()) {
      size_t elements = 1;
      for (int64_t dimension : tensor.shape) elements *= static_cast<size_t>(dimension);
      check(tensor.read_floats().size() == elements, "a tensor has the elements of its shape");
      check(file.find_tensor(tensor.name) == &tensor, "a tensor is found by its name");
    }
    file.find_tensor("positions");
  } catch (const Failure&) {
  }
  return 0;
}
