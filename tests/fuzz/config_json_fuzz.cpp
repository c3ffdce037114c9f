// Any bytes as a config.json: it is read, and then every position has a rotation of finite numbers,
// or a Failure says why not.
#include <cmath>

#include "base/error.h"
#include "memory_file.h"
#include "model/checkpoint.h"

using namespace droidspeak;  // NOLINT(google-build-using-namespace)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  MemoryFile input(data, size);
  try {
    HfConfig read = read_hf_config(input.path());
    const RopeConfig* ropes[] = {&read.config.rope,
                                 read.config.local_rope ? &*read.config.local_rope : nullptr};
    for (int32_t length : {1, read.config.max_positions}) {
      for (const RopeConfig* rope : ropes) {
        if (rope == nullptr) continue;
        for (float value : make_rope_table(rotation_of(*rope, length), 2))
          check(std::isfinite(value), "cosines and sines are numbers");
      }
      configuration_digest(read.config, {Precision::kFast, length});
    }
    check(describe_mismatch(read.config, read.config).empty(), "a model fits itself");
  } catch (const Failure&) {
  }
  return 0;
}
