// Any bytes as what an answer must look like; the first one says of which kind. Each is refused
// with a reason or becomes a grammar within its limits.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "base/error.h"
#include "grammar/grammar_compiler.h"

using namespace droidspeak;  // NOLINT(google-build-using-namespace)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  OutputFormat format;
  format.kind = static_cast<OutputFormat::Kind>(data[0] % 6);
  format.text.assign(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    std::string grammar = grammar_of(format);
    check(grammar.size() < (size_t{8} << 20), "a grammar is within its limits");
  } catch (const Failure& failure) {
    check(failure.code() == ErrorCode::kInvalidArgument, "what is refused is the client's");
    check(*failure.what() != '\0', "what is refused has a reason");
  }
  return 0;
}
