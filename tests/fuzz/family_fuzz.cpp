// Any bytes as a family.json: it is read, or a Failure says why not.
#include "base/error.h"
#include "memory_file.h"
#include "model/family.h"

using namespace droidspeak;  // NOLINT(google-build-using-namespace)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  MemoryFile input(data, size);
  try {
    read_family_file(input.path());
  } catch (const Failure&) {
  }
  return 0;
}
