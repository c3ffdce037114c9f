// Any bytes as a tokenizer.json: it loads and encodes, or a Failure says why not.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "text/tokenizer.h"

using namespace droidspeak;  // NOLINT(google-build-using-namespace)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const TemporaryFolder folder;
  write_file_atomically(folder.path() / "tokenizer.json",
                        {reinterpret_cast<const char*>(data), size});
  try {
    auto tokenizer = load_hf_tokenizer(folder.path());
    std::vector<int32_t> ids =
        tokenizer->encode("Gr\xc3\xbc\xc3\x9f <|im_start|>dich 123\n\xff", SpecialTokens::kParse);
    tokenizer->decode(ids, SpecialTokens::kAsText);
  } catch (const Failure&) {
  }
  return 0;
}
