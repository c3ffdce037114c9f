#include "server/openai/tool_fields.h"

#include <algorithm>

#include <fmt/format.h>

#include "server/json_writer.h"
#include "server/openai/generation_fields.h"
#include "server/openai/limits.h"
#include "server/openai/tool_schema.h"

namespace droidspeak::openai {

namespace {

constexpr std::string_view kNoArguments = R"({"type":"object","properties":{}})";

using Mode = ToolChoice::Mode;

bool is_name(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
  });
}

std::optional<Mode> find_mode(std::string_view text) {
  if (text == "none") return Mode::kNone;
  if (text == "auto") return Mode::kAuto;
  if (text == "required") return Mode::kRequired;
  return std::nullopt;
}

void require_type(Fields& object, std::string_view wanted, const std::string& why) {
  std::string type = object.required_string("type", kAnyLength);
  if (object.has_failed() || type == wanted) return;
  object.fail(bad_field(
      fmt::format("Unsupported '{}': '{}'; {}.", object.path_of("type"), abbreviated(type), why),
      object.path_of("type"), "unsupported_parameter"));
}

// How a tool may be seen and called, other than by the model that is told of it.
void reject_other_uses(Fields& tool) {
  reject_unsupported(tool, {"defer_loading"});
  auto callers = tool.array("allowed_callers");
  for (size_t i = 0; callers && i < callers->size(); ++i) {
    JsonValue caller = callers->at(i);
    if (!caller.is(JsonKind::kString) || caller.string() != "direct")
      tool.reject("allowed_callers", "other than [\"direct\"] is not supported");
  }
}

enum class Nesting { kFunction, kFlat };  // {"type", "function": {"name"}} or {"type", "name"}

ToolChoice read_choice(Fields& fields, Nesting nesting) {
  std::optional<JsonValue> value = fields.find("tool_choice");
  if (!value) return {};
  if (value->is(JsonKind::kString)) {
    if (auto mode = find_mode(value->string())) return {*mode};
    fields.invalid("tool_choice",
                   fmt::format("'{}' is not 'none', 'auto', 'required' or an object that names a "
                               "function",
                               abbreviated(value->string())));
    return {};
  }
  std::optional<Fields> choice = fields.object("tool_choice");
  if (!choice) return {};
  require_type(*choice, "function", "only a function can be chosen");
  if (choice->has_failed()) return {};
  if (nesting == Nesting::kFlat) {
    return {Mode::kNamed, choice->required_string("name", kMaxToolNameBytes)};
  }
  if (!choice->find("function")) choice->missing("function");
  std::optional<Fields> function = choice->object("function");
  if (!function) return {};
  return {Mode::kNamed, function->required_string("name", kMaxToolNameBytes)};
}

ToolOffer read_tools(Fields& fields, Nesting nesting) {
  ToolList list;
  std::optional<JsonValue> tools = fields.array("tools");
  size_t count = tools ? tools->size() : 0;
  if (!fields.check_count("tools", count, kMaxTools)) return {};
  for (size_t i = 0; i < count && !fields.has_failed(); ++i) {
    std::optional<Fields> found = fields.object_at("tools", *tools, i);
    if (!found) return {};
    Fields& tool = *found;
    require_type(tool, "function", "only functions are supported");
    if (tool.has_failed()) return {};
    if (nesting == Nesting::kFlat) {
      std::string description = tool.string("description", kMaxToolBytes).value_or("");
      auto schema = tool.find("parameters");
      list.add(tool, "parameters",
               template_tool(ToolList::name_of(tool), description, schema ? schema->text() : ""));
      continue;
    }
    if (!tool.find("function")) tool.missing("function");
    reject_other_uses(tool);
    std::optional<Fields> function = tool.object("function");
    if (function) list.add(*function, "parameters", tool.value().text());
  }
  ToolOffer offer = list.take(fields, read_choice(fields, nesting));
  bool is_parallel = fields.boolean("parallel_tool_calls").value_or(true);
  offer.calls = is_parallel ? ToolOffer::Calls::kMany : ToolOffer::Calls::kOne;
  return offer;
}

}  // namespace

std::string ToolList::name_of(Fields& tool) {
  std::string name = tool.required_string("name", kMaxToolNameBytes);
  if (!tool.has_failed() && !is_name(name)) {
    tool.invalid("name", fmt::format("'{}' is not a name; expected letters, digits, '_', '-' and "
                                     "'.'",
                                     abbreviated(name)));
  }
  return name;
}

void ToolList::add(Fields& tool, const char* schema, std::string json) {
  reject_other_uses(tool);
  Tool read{name_of(tool), std::string(kNoArguments)};
  read.description = tool.string("description", kMaxToolBytes).value_or("");
  if (tool.boolean("strict").value_or(false)) read.strictness = Tool::Strictness::kStrict;
  if (tool.object(schema)) read.parameters = read_arguments_schema(tool, schema, read.name);
  if (tool.has_failed() || !tool.check_length(schema, json, kMaxToolBytes)) return;
  bool is_taken =
      std::ranges::any_of(offer_.tools, [&](const Tool& t) { return t.name == read.name; });
  if (is_taken) tool.invalid("name", fmt::format("there is another tool '{}'", read.name));
  json_ += (json_.empty() ? "[" : ",") + json;
  if (json_.size() > kMaxToolsBytes) {
    tool.invalid(schema, fmt::format("with tool '{}' all tools have more than {} bytes", read.name,
                                     kMaxToolsBytes));
  }
  offer_.tools.push_back(std::move(read));
}

ToolOffer ToolList::take(Fields& fields, ToolChoice choice) {
  bool must_call = choice.mode == Mode::kRequired || choice.mode == Mode::kNamed;
  bool is_there =
      std::ranges::any_of(offer_.tools, [&](const Tool& tool) { return tool.name == choice.name; });
  if (must_call && offer_.tools.empty()) {
    fields.invalid("tool_choice", "there are no 'tools' to choose from");
  } else if (choice.mode == Mode::kNamed && !is_there) {
    fields.invalid("tool_choice",
                   fmt::format("there is no tool '{}' in 'tools'", abbreviated(choice.name)));
  }
  if (!json_.empty()) offer_.json = json_ + "]";
  offer_.choice = std::move(choice);
  return std::move(offer_);
}

std::string template_tool(const std::string& name,
                          const std::string& description,
                          const std::string& schema) {
  JsonWriter json;
  json.begin_object().key("type").text("function").key("function").begin_object();
  json.key("name").text(name);
  if (!description.empty()) json.key("description").text(description);
  if (!schema.empty()) json.key("parameters").raw(schema);
  json.end_object().end_object();
  return std::move(json).take();
}

ToolOffer read_chat_tools(Fields& fields) {
  return read_tools(fields, Nesting::kFunction);
}

ToolOffer read_response_tools(Fields& fields) {
  return read_tools(fields, Nesting::kFlat);
}

std::string read_arguments(Fields& call, const std::string& field) {
  std::string text = call.required_string(field, kAnyLength);
  if (text.empty()) return "{}";
  ApiResult<JsonDocument> document = JsonDocument::parse(text);
  if (!document) {
    JsonWriter json;
    json.text(text);
    return std::move(json).take();
  }
  if (!document->root().is(JsonKind::kObject)) {
    call.invalid(field, "it is not the text of a JSON object");
  }
  return document->root().text();
}

std::string object_or_none(const std::string& text) {
  ApiResult<JsonDocument> document = JsonDocument::parse(text);
  bool is_object = document && document->root().is(JsonKind::kObject);
  return is_object ? document->root().text() : "{}";
}

}  // namespace droidspeak::openai
