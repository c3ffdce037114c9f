// Any bytes as a GGUF file: it opens, and then every tensor can be read, or a Failure says why not.
#include "base/error.h"
#include "formats/gguf.h"
#include "memory_file.h"

using namespace droidspeak;  // NOLINT(google-build-using-namespace)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  MemoryFile input(data, size);
  try {
    GgufFile file(input.path());
    for (const FileTensor& tensor : file.tensors()) {
      size_t elements = 1;
      for (int64_t dimension : tensor.shape) elements *= static_cast<size_t>(dimension);
      check(tensor.read_floats().size() == elements, "a tensor has the elements of its shape");
      check(file.find_tensor(tensor.name) == &tensor, "a tensor is found by its name");
    }
    file.get_int_or("general.alignment", 32);
    file.get_string_or("general.architecture", "");
    file.get_double_or("test.float32", 0);
    file.get_strings("tokenizer.ggml.tokens");
  } catch (const Failure&) {
  }
  return 0;
}
