#include "text/chat_template.h"

#include <unordered_map>

#include <fmt/format.h>

#include "base/error.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/json.h"
#include "text/jinja/lexer.h"
#include "text/jinja/parser.h"

namespace droidspeak {

namespace {

constexpr size_t kMaxSourceBytes = size_t{1} << 20;

using Variables = std::unordered_map<std::string, jinja::Value>;

[[noreturn]] void fail(int line, std::string_view cause) {
  throw Failure(ErrorCode::kInvalidArgument,
                fmt::format("chat template, line {}: {}", line, cause));
}

[[noreturn]] void fail_input(std::string_view field, std::string_view cause) {
  throw Failure(ErrorCode::kInvalidArgument,
                fmt::format("chat template input, {}: {}", field, cause));
}

// Adds the fields of a JSON object, if there is one.
void add_fields(jinja::Context& context,
                const std::string& json,
                std::string_view field,
                jinja::Dict& dict) {
  if (json.empty()) return;
  try {
    jinja::Value extra = jinja::parse_json(context, json);
    if (extra.dict() == nullptr) throw jinja::TemplateError("must be a JSON object");
    for (const auto& [key, value] : extra.dict()->entries()) dict.set(key, value);
  } catch (const jinja::TemplateError& error) {
    fail_input(field, error.what());
  }
}

jinja::Value text_of(jinja::Context& context, const std::string& text) {
  return jinja::make_text(context, text);
}

jinja::Value message_value(jinja::Context& context, const ChatMessage& message) {
  jinja::Dict dict;
  dict.set(text_of(context, "role"), text_of(context, message.role));
  dict.set(text_of(context, "content"), text_of(context, message.content));
  add_fields(context, message.extra_json, "extra_json of a message", dict);
  return jinja::make_dict(context, std::move(dict));
}

jinja::Value tools_value(jinja::Context& context, const std::string& json) {
  if (json.empty()) return {};
  try {
    return jinja::parse_json(context, json);
  } catch (const jinja::TemplateError& error) {
    fail_input("tools_json", error.what());
  }
}

// The variables that transformers' apply_chat_template hands to a template.
Variables make_variables(jinja::Context& context, const ChatTemplateInput& input) {
  std::vector<jinja::Value> messages;
  for (const ChatMessage& message : input.messages)
    messages.push_back(message_value(context, message));
  jinja::Dict dict;
  dict.set(text_of(context, "messages"),
           jinja::make_sequence(context, jinja::SequenceKind::kList, std::move(messages)));
  dict.set(text_of(context, "tools"), tools_value(context, input.tools_json));
  dict.set(text_of(context, "documents"), jinja::Value());
  dict.set(text_of(context, "add_generation_prompt"), jinja::Value(input.add_generation_prompt));
  dict.set(text_of(context, "bos_token"), text_of(context, input.bos_token));
  dict.set(text_of(context, "eos_token"), text_of(context, input.eos_token));
  add_fields(context, input.extra_json, "extra_json", dict);
  Variables variables;
  for (const auto& [name, value] : dict.entries()) variables.emplace(*name.text(), value);
  return variables;
}

size_t bytes_of(const ChatTemplateInput& input) {
  size_t bytes = input.extra_json.size() + input.tools_json.size();
  for (const ChatMessage& message : input.messages) {
    bytes += sizeof(ChatMessage) + message.role.size() + message.content.size() +
             message.extra_json.size();
  }
  return bytes;
}

}  // namespace

struct ChatTemplate::Program {
  jinja::Block block;
};

ChatTemplate::ChatTemplate(std::string_view source) : program_(std::make_unique<Program>()) {
  if (source.size() > kMaxSourceBytes) {
    throw Failure(
        ErrorCode::kInvalidArgument,
        fmt::format("chat template has {} bytes, more than {}", source.size(), kMaxSourceBytes));
  }
  try {
    program_->block = jinja::parse_template(source);
  } catch (const jinja::SyntaxError& error) {
    fail(error.line, error.message);
  }
}

ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

std::string ChatTemplate::render(const ChatTemplateInput& input) const {
  jinja::Context context{jinja::Work(bytes_of(input)),
                         input.now.value_or(std::chrono::system_clock::now())};
  jinja::Interpreter interpreter(context, make_variables(context, input));
  try {
    return interpreter.run(program_->block);
  } catch (const jinja::TemplateError& error) {
    fail(interpreter.line(), error.what());
  }
}

}  // namespace droidspeak
