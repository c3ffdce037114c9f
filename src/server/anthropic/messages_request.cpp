#include "server/anthropic/messages_request.h"

#include <limits>
#include <utility>

#include <fmt/format.h>

#include "server/anthropic/errors.h"
#include "server/openai/generation_fields.h"
#include "server/openai/limits.h"
#include "server/openai/tool_fields.h"

namespace droidspeak::anthropic {

namespace {

using openai::abbreviated;
using openai::Fields;
using openai::JsonKind;
using openai::JsonValue;
using openai::kAnyLength;
using Mode = ToolChoice::Mode;

// {"type": "ephemeral"}: prompts are cached anyway.
void read_cache_control(Fields& block) {
  std::optional<Fields> control = block.object("cache_control");
  if (control && control->required_string("type", kAnyLength) != "ephemeral") {
    control->reject("type", "other than 'ephemeral' is not supported");
  }
}

void reject_citations(Fields& block) {
  std::optional<JsonValue> citations = block.find("citations");
  if (!citations || !citations->is(JsonKind::kObject)) {
    return reject_unsupported(block, {"citations"});
  }
  if (block.object("citations")->boolean("enabled").value_or(true)) {
    block.reject("citations", "other than {\"enabled\": false} is not supported");
  }
}

void refuse_block(Fields& block, const std::string& type) {
  block.fail(bad_field(
      fmt::format("Unsupported content block '{}' in '{}': expected text, tool_use or tool_result "
                  "where it belongs.",
                  abbreviated(type), block.path_of("type")),
      block.path_of("type"), "unsupported_parameter"));
}

// A text, or text blocks as one text, a line each.
std::string read_texts(Fields& fields, const char* name) {
  std::optional<JsonValue> value = fields.find(name);
  if (!value) return {};
  if (value->is(JsonKind::kString)) return value->string();
  if (!value->is(JsonKind::kArray)) {
    fields.wrong_type(name, "a string or an array of text blocks", value->kind());
    return {};
  }
  if (!fields.check_count(name, value->size(), openai::kMaxParts)) return {};
  std::string text;
  for (size_t i = 0; i < value->size() && !fields.has_failed(); ++i) {
    std::optional<Fields> block = fields.object_at(name, *value, i);
    if (!block) return {};
    std::string type = block->required_string("type", kAnyLength);
    if (!block->has_failed() && type != "text") refuse_block(*block, type);
    read_cache_control(*block);
    reject_citations(*block);
    if (i > 0) text += '\n';
    text += block->required_string("text", kAnyLength);
  }
  return text;
}

// The blocks of one message. Results of tools become turns of their own, before what the user says.
class BlockReader {
 public:
  explicit BlockReader(std::string role) : turn_{std::move(role)} {}

  void read(Fields& block) {
    std::string type = block.required_string("type", kAnyLength);
    if (block.has_failed()) return;
    read_cache_control(block);
    bool is_assistant = turn_.role == "assistant";
    if (type == "text") {
      add_text(block.required_string("text", kAnyLength));
      reject_citations(block);
    } else if (type == "tool_use" && is_assistant) {
      read_call(block);
    } else if (type == "thinking" && is_assistant) {
      turn_.reasoning += block.required_string("thinking", kAnyLength);
    } else if (type == "tool_result" && !is_assistant) {
      read_result(block);
    } else {
      refuse_block(block, type);
    }
  }

  void add_text(const std::string& text) {
    if (has_text_) turn_.content += '\n';
    has_text_ = true;
    turn_.content += text;
  }

  void append_to(std::vector<ChatTurn>& turns) && {
    bool only_results = !results_.empty() && !has_text_;
    for (ChatTurn& result : results_) turns.push_back(std::move(result));
    if (!only_results) turns.push_back(std::move(turn_));
  }

 private:
  void read_call(Fields& block) {
    ToolCall call;
    call.id = block.required_string("id", openai::kMaxCallIdBytes);
    call.name = openai::ToolList::name_of(block);
    if (!block.find("input")) block.missing("input");
    if (block.object("input")) call.arguments = block.find("input")->text();
    turn_.calls.push_back(std::move(call));
  }

  void read_result(Fields& block) {
    ChatTurn result{"tool"};
    result.answered_call_id = block.required_string("tool_use_id", openai::kMaxCallIdBytes);
    result.content = read_texts(block, "content");
    if (block.boolean("is_error").value_or(false)) result.content = "Error: " + result.content;
    results_.push_back(std::move(result));
  }

  ChatTurn turn_;
  std::vector<ChatTurn> results_;
  bool has_text_ = false;
};

void read_message(Fields& message, std::vector<ChatTurn>& turns) {
  std::string role = message.required_string("role", kAnyLength);
  if (!message.has_failed() && role != "user" && role != "assistant") {
    message.invalid("role", fmt::format("'{}' is not 'user' or 'assistant'", abbreviated(role)));
  }
  std::optional<JsonValue> content = message.find("content");
  if (!content) return message.missing("content");
  BlockReader reader(std::move(role));
  if (content->is(JsonKind::kString)) {
    reader.add_text(content->string());
  } else if (content->is(JsonKind::kArray)) {
    if (content->size() == 0) message.invalid("content", "it is empty");
    if (!message.check_count("content", content->size(), openai::kMaxParts)) return;
    for (size_t i = 0; i < content->size() && !message.has_failed(); ++i) {
      if (auto block = message.object_at("content", *content, i)) reader.read(*block);
    }
  } else {
    message.wrong_type("content", "a string or an array of blocks", content->kind());
  }
  std::move(reader).append_to(turns);
}

std::vector<ChatTurn> read_turns(Fields& fields) {
  std::vector<ChatTurn> turns;
  if (fields.find("system")) turns.push_back({"system", read_texts(fields, "system")});
  if (!fields.find("messages")) fields.missing("messages");
  std::optional<JsonValue> array = fields.array("messages");
  if (!array) return turns;
  if (array->size() == 0) fields.invalid("messages", "it is empty; expected at least one message");
  if (!fields.check_count("messages", array->size(), openai::kMaxMessages)) return turns;
  for (size_t i = 0; i < array->size() && !fields.has_failed(); ++i) {
    if (auto message = fields.object_at("messages", *array, i)) read_message(*message, turns);
  }
  if (!fields.has_failed() && turns.back().role == "assistant") {
    fields.reject("messages",
                  "that end with the assistant's are not supported: an answer cannot "
                  "be begun for the model");
  }
  return turns;
}

ToolChoice read_choice(Fields& fields, ToolOffer::Calls& calls) {
  std::optional<Fields> choice = fields.object("tool_choice");
  if (!choice) return {};
  bool is_alone = choice->boolean("disable_parallel_tool_use").value_or(false);
  calls = is_alone ? ToolOffer::Calls::kOne : ToolOffer::Calls::kMany;
  std::string type = choice->required_string("type", kAnyLength);
  if (type == "auto") return {Mode::kAuto};
  if (type == "any") return {Mode::kRequired};
  if (type == "none") return {Mode::kNone};
  if (type == "tool") {
    return {Mode::kNamed, choice->required_string("name", openai::kMaxToolNameBytes)};
  }
  choice->invalid("type",
                  fmt::format("'{}' is not 'auto', 'any', 'tool' or 'none'", abbreviated(type)));
  return {};
}

ToolOffer read_tools(Fields& fields) {
  openai::ToolList list;
  std::optional<JsonValue> tools = fields.array("tools");
  size_t count = tools ? tools->size() : 0;
  if (!fields.check_count("tools", count, openai::kMaxTools)) return {};
  for (size_t i = 0; i < count && !fields.has_failed(); ++i) {
    std::optional<Fields> tool = fields.object_at("tools", *tools, i);
    if (!tool) return {};
    std::string type = tool->string("type", kAnyLength).value_or("custom");
    if (type != "custom")
      tool->reject("type", fmt::format("'{}' is not supported: this server has "
                                       "no tools of its own",
                                       abbreviated(type)));
    read_cache_control(*tool);
    reject_unsupported(*tool, {"input_examples"});
    if (!tool->find("input_schema")) tool->missing("input_schema");
    if (tool->has_failed()) return {};
    std::string description = tool->string("description", openai::kMaxToolBytes).value_or("");
    list.add(*tool, "input_schema",
             openai::template_tool(openai::ToolList::name_of(*tool), description,
                                   tool->find("input_schema")->text()));
  }
  ToolOffer::Calls calls = ToolOffer::Calls::kMany;
  ToolChoice choice = read_choice(fields, calls);
  ToolOffer offer = list.take(fields, std::move(choice));
  offer.calls = calls;
  return offer;
}

void read_stop(Fields& fields, openai::GenerationFields& generation) {
  std::optional<JsonValue> stops = fields.array("stop_sequences");
  if (!stops || !fields.check_count("stop_sequences", stops->size(), openai::kMaxStops)) return;
  std::vector<std::string> texts;
  for (size_t i = 0; i < stops->size(); ++i) {
    JsonValue item = stops->at(i);
    if (!item.is(JsonKind::kString)) {
      return fields.wrong_type("stop_sequences", "an array of strings", item.kind());
    }
    if (item.string().empty()) return fields.invalid("stop_sequences", "one of them is empty");
    if (!fields.check_length("stop_sequences", item.string(), openai::kMaxStopBytes)) return;
    texts.push_back(item.string());
  }
  generation.stop = std::move(texts);
}

void read_output_config(Fields& fields, openai::GenerationFields& generation) {
  std::optional<Fields> config = fields.object("output_config");
  if (!config) return;
  reject_unsupported(*config, {"effort", "task_budget"});
  std::optional<Fields> format = config->object("format");
  if (!format) return;
  std::string type = format->required_string("type", kAnyLength);
  if (format->has_failed()) return;
  if (type != "json_schema")
    return format->invalid("type", fmt::format("'{}' is not 'json_schema'", abbreviated(type)));
  set_output_format(fields, generation, "output_config.format",
                    openai::read_schema(*format, "schema"));
}

// Clients that would keep the conversation on the server send all of it when they read this code.
void reject_thread(Fields& fields) {
  if (!openai::asks_for_something(fields, "thread")) return;
  fields.fail(bad_field(
      "'thread' is not supported by this server: conversations are not stored; send all messages.",
      "thread", kNoThreads));
}

void reject_unsupported_features(Fields& fields, const openai::GenerationFields& generation) {
  if (generation.num_choices != 1) fields.reject("n", "other than 1 is not supported here");
  accept_only(fields, "service_tier", {"auto", "standard_only"});
  accept_only(fields, "speed", {"standard"});
  reject_other_limits(fields, "max_tokens");
  reject_unsupported(fields, {"mcp_servers", "container", "context_management", "compaction",
                              "fallbacks", "output_format", "inference_geo"});
  // Those of the other calls.
  reject_unsupported(fields,
                     {"stop", "response_format", "structured_outputs", "text", "instructions",
                      "parallel_tool_calls", "logprobs", "top_logprobs", "prompt_logprobs",
                      "chat_template_kwargs", "echo", "enable_thinking"});
  reject_reasoning(fields);
  reject_any_value(fields, {"guided_json", "guided_choice"});
  reject_any_text(fields, {"guided_regex", "guided_grammar"});
}

ApiResult<openai::ChatRequest> parse(std::string body, openai::IntegerRange max_tokens) {
  ApiResult<openai::JsonDocument> document = openai::parse_object(body);
  if (!document) return document.error();
  body = std::string();
  std::optional<ApiError> error;
  Fields fields(document->root(), "", error);
  openai::ChatRequest request;
  reject_thread(fields);  // first: without it what follows is no whole conversation
  openai::read_generation_fields(fields, request.generation);
  request.prompt.messages = read_turns(fields);
  request.prompt.tools = read_tools(fields);
  read_stop(fields, request.generation);
  read_cache_control(fields);
  read_output_config(fields, request.generation);
  reject_unsupported_features(fields, request.generation);
  read_thoughts(fields, request.prompt);
  bool needs_max_tokens = max_tokens.low > 0;
  if (needs_max_tokens && !fields.find("max_tokens")) fields.missing("max_tokens");
  if (auto most = fields.integer("max_tokens", max_tokens)) {
    request.generation.max_tokens = static_cast<int32_t>(*most);
  }
  if (error) return *error;
  return request;
}

constexpr int64_t kMost = std::numeric_limits<int32_t>::max();

}  // namespace

ApiResult<openai::ChatRequest> parse_messages_request(std::string body) {
  return parse(std::move(body), {1, kMost});
}

ApiResult<openai::ChatRequest> parse_count_request(std::string body) {
  return parse(std::move(body), {0, kMost});
}

}  // namespace droidspeak::anthropic
