// Parses and renders arbitrary bytes as a chat template. Failure is fine; crashes, hangs, leaks and
// other exceptions are not.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "text/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace droidspeak;
  ChatTemplateInput input;
  input.messages = {{"system", "Be brief."},
                    {"user", "Gr\xc3\xbc\xc3\x9f dich \xff\n"},
                    {"assistant", "",
                     R"({"tool_calls": [{"function": {"name": "f", "arguments": {"a": 1.5}}}]})"},
                    {"tool", "{}"}};
  input.bos_token = "<s>";
  input.eos_token = "</s>";
  input.extra_json = R"({"tools": [{"type": "function", "function": {"name": "f"}}], "n": 7})";
  try {
    ChatTemplate parsed(std::string_view(reinterpret_cast<const char*>(data), size));
    (void)parsed.render(input);
  } catch (const Failure&) {
  }
  return 0;
}
