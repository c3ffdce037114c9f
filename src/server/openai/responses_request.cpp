#include "server/openai/responses_request.h"

#include <limits>
#include <utility>

#include <fmt/format.h>

#include "server/json_writer.h"
#include "server/openai/generation_fields.h"
#include "server/openai/limits.h"
#include "server/openai/tool_fields.h"

namespace droidspeak::openai {

namespace {

const std::vector<std::string_view> kTextTypes = {"input_text", "output_text", "text"};

// Items become turns: calls and reasoning belong to the assistant's turn around them.
class ItemReader {
 public:
  std::vector<ChatTurn> take() && { return std::move(turns_); }

  void read(Fields& item) {
    std::string type = item.string("type", kAnyLength).value_or("message");
    if (type == "message") {
      read_message(item);
    } else if (type == "function_call") {
      read_call(item);
    } else if (type == "function_call_output") {
      read_result(item);
    } else if (type == "reasoning") {
      read_reasoning(item);
    } else {
      item.fail(bad_field(
          fmt::format("Unsupported item type '{}' in 'input': expected message, function_call, "
                      "function_call_output or reasoning.",
                      abbreviated(type)),
          item.path_of("type"), "unsupported_parameter"));
    }
  }

 private:
  ChatTurn& assistant() {
    bool is_open = !turns_.empty() && turns_.back().role == "assistant";
    if (!is_open) turns_.push_back({"assistant"});
    return turns_.back();
  }

  void read_message(Fields& item) {
    std::string role = item.required_string("role", kAnyLength);
    bool is_known =
        role == "system" || role == "developer" || role == "user" || role == "assistant";
    if (!item.has_failed() && !is_known) {
      item.invalid("role", fmt::format("'{}' is not 'system', 'developer', 'user' or 'assistant'",
                                       abbreviated(role)));
    }
    if (!item.find("content")) item.missing("content");
    std::string content = read_content(item, kTextTypes);
    bool is_begun = role == "assistant" && !turns_.empty() && turns_.back().role == role &&
                    turns_.back().content.empty() && turns_.back().calls.empty();
    if (is_begun) {
      turns_.back().content = std::move(content);
    } else {
      turns_.push_back({std::move(role), std::move(content)});
    }
  }

  void read_call(Fields& item) {
    ToolCall call;
    call.id = item.required_string("call_id", kMaxCallIdBytes);
    call.name = ToolList::name_of(item);
    call.arguments = read_arguments(item, "arguments");
    ChatTurn& turn = assistant();
    if (turn.calls.size() == kMaxToolCalls) {
      item.invalid("type",
                   fmt::format("more than {} calls in one turn of the assistant", kMaxToolCalls));
    } else {
      turn.calls.push_back(std::move(call));
    }
  }

  void read_result(Fields& item) {
    ChatTurn turn{"tool"};
    turn.answered_call_id = item.required_string("call_id", kMaxCallIdBytes);
    std::optional<JsonValue> output = item.find("output");
    if (!output) return item.missing("output");
    if (output->is(JsonKind::kString)) {
      turn.content = output->string();
    } else {
      read_output_parts(item, turn.content);
    }
    turns_.push_back(std::move(turn));
  }

  static void read_output_parts(Fields& item, std::string& content) {
    std::optional<JsonValue> parts = item.array("output");
    if (!parts || !item.check_count("output", parts->size(), kMaxParts)) return;
    for (size_t i = 0; i < parts->size(); ++i) {
      std::optional<Fields> part = item.object_at("output", *parts, i);
      if (!part) return;
      std::string type = part->required_string("type", kAnyLength);
      if (!part->has_failed() && type != "input_text") {
        part->fail(unsupported_content(type, item.path_of(fmt::format("output[{}]", i))));
      }
      if (i > 0) content += '\n';
      content += part->required_string("text", kAnyLength);
    }
  }

  // Its text, which a template may show again; a summary says less.
  void read_reasoning(Fields& item) {
    reject_unsupported(item, {"encrypted_content"});
    std::optional<JsonValue> parts = item.array("content");
    if (!parts || !item.check_count("content", parts->size(), kMaxParts)) return;
    for (size_t i = 0; i < parts->size(); ++i) {
      std::optional<Fields> part = item.object_at("content", *parts, i);
      if (!part) return;
      if (part->required_string("type", kAnyLength) != "reasoning_text") {
        part->reject("type", "other than 'reasoning_text' is not supported");
      }
      if (turns_.empty() || turns_.back().role != "assistant") turns_.push_back({"assistant"});
      turns_.back().reasoning += part->required_string("text", kAnyLength);
    }
  }

  std::vector<ChatTurn> turns_;
};

std::vector<ChatTurn> read_input(Fields& fields) {
  std::optional<JsonValue> input = fields.find("input");
  if (!input) {
    fields.missing("input");
    return {};
  }
  if (input->is(JsonKind::kString)) return {{"user", input->string()}};
  if (!input->is(JsonKind::kArray)) {
    fields.wrong_type("input", "a string or an array of items", input->kind());
    return {};
  }
  if (input->size() == 0) fields.invalid("input", "it is empty; expected at least one item");
  if (!fields.check_count("input", input->size(), kMaxMessages)) return {};
  ItemReader reader;
  for (size_t i = 0; i < input->size() && !fields.has_failed(); ++i) {
    if (auto item = fields.object_at("input", *input, i)) reader.read(*item);
  }
  return std::move(reader).take();
}

void read_text_format(Fields& fields, ResponsesRequest& request) {
  std::optional<Fields> text = fields.object("text");
  if (!text) return;
  reject_verbosity(*text);
  std::optional<Fields> format = text->object("format");
  if (!format) return;
  std::string type = format->required_string("type", kAnyLength);
  if (format->has_failed() || type == "text") return;
  GenerationFields& generation = request.chat.generation;
  if (type == "json_object") {
    set_output_format(fields, generation, "text.format", {OutputFormat::Kind::kJsonObject, {}});
    request.text_format = R"({"type":"json_object"})";
  } else if (type == "json_schema") {
    std::string name = format->required_string("name", kMaxSchemaNameBytes);
    bool is_strict = format->boolean("strict").value_or(false);
    set_output_format(fields, generation, "text.format", read_schema(*format, "schema"));
    if (format->has_failed()) return;
    JsonWriter json;
    json.begin_object().key("type").text(type).key("name").text(name);
    json.key("schema").raw(generation.output_format->text);
    json.key("strict").boolean(is_strict).end_object();
    request.text_format = std::move(json).take();
  } else {
    format->invalid("type", fmt::format("'{}' is not 'text', 'json_object' or 'json_schema'",
                                        abbreviated(type)));
  }
}

void reject_what_needs_more(Fields& fields) {
  reject_with(fields, "previous_response_id",
              "is not supported: responses are not stored; send the conversation in 'input'");
  reject_other_limits(fields, "max_output_tokens");
  fields.boolean("store");  // the clients' default is true; the answer says false
  reject_unsupported(
      fields, {"background", "conversation", "prompt", "max_tool_calls", "include", "top_logprobs",
               "prompt_logprobs", "context_management", "logprobs", "echo", "system",
               "stop_sequences", "output_config", "chat_template_kwargs", "enable_thinking"});
  reject_any_value(fields, {"guided_json", "guided_choice"});
  reject_any_text(fields, {"guided_regex", "guided_grammar"});
  if (auto reasoning = fields.object("reasoning")) {
    const auto effort = reasoning->find("effort");
    const bool is_none = effort && effort->is(JsonKind::kString) && effort->string() == "none";
    is_none ? reject_unsupported(*reasoning, {"enabled"})
            : reject_unsupported(*reasoning, {"effort"});
    reject_unsupported(*reasoning, {"summary", "generate_summary"});
  }
  accept_only(fields, "service_tier", {"auto", "default"});
}

// What was read of the tools, not all that the client wrote.
std::string tools_json(const ToolOffer& offer) {
  JsonWriter json;
  json.begin_array();
  for (const Tool& tool : offer.tools) {
    json.begin_object().key("type").text("function").key("name").text(tool.name);
    json.key("description").text_or_null(tool.description);
    json.key("parameters").raw(tool.parameters);
    json.key("strict").boolean(tool.strictness == Tool::Strictness::kStrict).end_object();
  }
  json.end_array();
  return std::move(json).take();
}

std::string choice_json(const ToolChoice& choice) {
  switch (choice.mode) {
    case ToolChoice::Mode::kNone:
      return "\"none\"";
    case ToolChoice::Mode::kAuto:
      return "\"auto\"";
    case ToolChoice::Mode::kRequired:
      return "\"required\"";
    case ToolChoice::Mode::kNamed:
      break;
  }
  JsonWriter json;
  json.begin_object().key("type").text("function").key("name").text(choice.name).end_object();
  return std::move(json).take();
}

// By either name; what is no text asks for none in particular.
std::string effort_json(const Fields& fields) {
  const auto reasoning = fields.find("reasoning");
  const bool is_object = reasoning && reasoning->is(JsonKind::kObject);
  for (const auto& effort :
       {is_object ? reasoning->find("effort") : std::nullopt, fields.find("reasoning_effort")}) {
    if (effort && effort->is(JsonKind::kString) && !effort->string().empty()) return effort->text();
  }
  return {};
}

// What the answer repeats.
void keep_parts(Fields& fields, ResponsesRequest& request) {
  if (fields.has_failed()) return;
  for (auto [name, kept] :
       {std::pair{"instructions", &request.instructions}, {"metadata", &request.metadata}}) {
    if (auto value = fields.find(name)) *kept = value->text();
  }
  const ToolOffer& offer = request.chat.prompt.tools;
  request.tool_choice = choice_json(offer.choice);
  request.tools = tools_json(offer);
  request.reasoning_effort = effort_json(fields);
  request.chat.generation.kept_bytes = request.instructions.size() + request.metadata.size() +
                                       request.text_format.size() + request.tool_choice.size() +
                                       request.tools.size() + request.reasoning_effort.size();
}

}  // namespace

ApiResult<ResponsesRequest> parse_responses_request(std::string body) {
  ApiResult<JsonDocument> document = parse_object(body);
  if (!document) return document.error();
  body = std::string();
  std::optional<ApiError> error;
  Fields fields(document->root(), "", error);
  ResponsesRequest request;
  ChatRequest& chat = request.chat;
  read_generation_fields(fields, chat.generation);
  if (chat.generation.num_choices != 1) fields.reject("n", "other than 1 is not supported here");
  reject_unsupported(fields, {"response_format", "structured_outputs", "messages"});
  chat.prompt.messages = read_input(fields);
  if (auto instructions = fields.string("instructions", kMaxInstructionBytes)) {
    chat.prompt.messages.insert(chat.prompt.messages.begin(), {"system", *instructions});
  }
  chat.prompt.tools = read_response_tools(fields);
  read_text_format(fields, request);
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  if (auto most = fields.integer("max_output_tokens", {1, kMax})) {
    chat.generation.max_tokens = static_cast<int32_t>(*most);
  }
  reject_what_needs_more(fields);
  read_thoughts(fields, chat.prompt);
  keep_parts(fields, request);
  if (error) return *error;
  return request;
}

}  // namespace droidspeak::openai
