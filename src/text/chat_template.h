// Chat templates: the part of Jinja that real templates use, interpreted.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace droidspeak {

struct ChatMessage {
  std::string role;
  std::string content;
  // More fields as a JSON object, e.g. {"tool_calls": [...]}; they win over role and content, so
  // that {"content": null} is possible. Empty for none.
  std::string extra_json = {};
};

struct ChatTemplateInput {
  std::vector<ChatMessage> messages;
  bool add_generation_prompt = true;
  std::string bos_token;
  std::string eos_token;
  std::string tools_json = {};  // JSON array, seen by the template as `tools`; empty: none
  // More variables as JSON text, e.g. {"enable_thinking": false}; empty for none.
  std::string extra_json;
  // What strftime_now() shows, in local time; the present when empty.
  std::optional<std::chrono::system_clock::time_point> now = {};
};

class ChatTemplate {
 public:
  // Parses; throws Failure (invalid argument) with line and what is wrong.
  explicit ChatTemplate(std::string_view source);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // Throws Failure (invalid argument) for raise_exception, unknown names used wrongly, and output
  // or work beyond sane limits (templates come from model files).
  std::string render(const ChatTemplateInput& input) const;

 private:
  struct Program;
  std::unique_ptr<Program> program_;
};

}  // namespace droidspeak
