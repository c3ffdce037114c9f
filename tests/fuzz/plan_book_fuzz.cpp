// Any bytes as a plan book: it is read, or a Failure says why not.
#include "base/error.h"
#include "memory_file.h"
#include "sharing/plan_book.h"

using namespace droidspeak;  // NOLINT(google-build-using-namespace)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  MemoryFile input(data, size);
  try {
    load_plan_book(input.path());
  } catch (const Failure&) {
  }
  return 0;
}
