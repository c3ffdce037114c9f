#include "server/chat/tool_format.h"

#include <string>

#include <fmt/format.h>

#include "server/json_writer.h"

namespace droidspeak {

namespace {

using Mode = ToolChoice::Mode;

// Writes xgrammar's structural tags.
class FormatWriter {
 public:
  FormatWriter(const ToolOffer& offer, const CallSyntax& syntax) : offer_(offer), syntax_(syntax) {}

  std::string write(const std::optional<std::string>& answer_schema) {
    json_.begin_object().key("type").text("structural_tag").key("format");
    bool must_call = offer_.choice.mode != Mode::kAuto;
    if (must_call) {
      write_calls_only();
    } else if (answer_schema) {
      json_.begin_object().key("type").text("or").key("elements").begin_array();
      write_schema(*answer_schema, "the answer's format");
      write_calls_only();
      json_.end_array().end_object();
    } else {
      write_text_and_calls();
    }
    json_.end_object();
    return std::move(json_).take();
  }

 private:
  bool is_list() const { return !syntax_.opening.empty(); }

  bool has_one_call() const {
    return offer_.calls == ToolOffer::Calls::kOne || offer_.choice.mode == Mode::kNamed ||
           syntax_.repeats == CallSyntax::Repeats::kNo;
  }

  void write_schema(const std::string& schema, const std::string& label) {
    json_.begin_object().key("type").text("json_schema").key("json_schema").raw(schema);
    json_.key("label").text(label).end_object();
  }

  void begin_tag(const std::string& begin) {
    json_.begin_object().key("type").text("tag").key("begin").text(begin).key("content");
  }

  void end_tag(std::string_view end) { json_.key("end").text(end).end_object(); }

  void write_call(size_t index) {
    const Tool& tool = offer_.tools[index];
    std::string begin(syntax_.before_name);
    begin += tool.name;
    begin += syntax_.after_name;
    begin_tag(begin);
    write_schema(tool.parameters, fmt::format("tools[{}] '{}'", index, tool.name));
    end_tag(syntax_.after_arguments);
  }

  void write_tags() {
    json_.key("tags").begin_array();
    for (size_t i = 0; i < offer_.tools.size(); ++i) {
      bool is_named = offer_.tools[i].name == offer_.choice.name;
      if (offer_.choice.mode != Mode::kNamed || is_named) write_call(i);
    }
    json_.end_array();
  }

  // One call or more, and nothing else.
  void write_call_list() {
    json_.begin_object().key("type").text("tags_with_separator");
    write_tags();
    json_.key("separator").text(syntax_.separator);
    json_.key("at_least_one").boolean(true);
    json_.key("stop_after_first").boolean(has_one_call()).end_object();
  }

  void write_list_tag() {
    begin_tag(std::string(syntax_.opening));
    write_call_list();
    end_tag(syntax_.closing);
  }

  void write_calls_only() {
    if (is_list()) {
      write_list_tag();
    } else {
      write_call_list();
    }
  }

  void write_text_and_calls() {
    json_.begin_object().key("type").text("triggered_tags");
    json_.key("triggers").begin_array().text(syntax_.trigger).end_array();
    if (is_list()) {
      json_.key("tags").begin_array();
      write_list_tag();
      json_.end_array();
    } else {
      write_tags();
    }
    json_.key("at_least_one").boolean(false);
    json_.key("stop_after_first").boolean(is_list() || has_one_call()).end_object();
  }

  const ToolOffer& offer_;
  const CallSyntax& syntax_;
  JsonWriter json_;
};

}  // namespace

ApiResult<OutputFormat> tool_format(const ToolOffer& offer, const ToolFormatOptions& options) {
  std::optional<std::string> answer_schema;
  if (options.answer) {
    switch (options.answer->kind) {
      case OutputFormat::Kind::kJsonObject:
        answer_schema = R"({"type":"object"})";
        break;
      case OutputFormat::Kind::kJsonSchema:
        answer_schema = options.answer->text;
        break;
      case OutputFormat::Kind::kRegex:
      case OutputFormat::Kind::kChoice:
      case OutputFormat::Kind::kEbnf:
      case OutputFormat::Kind::kStructuralTag:
        return bad_field(
            "Unsupported parameter: 'structured_outputs' other than 'json' does not go with "
            "'tools'; leave one of them out.",
            "structured_outputs", "unsupported_parameter");
    }
  }
  FormatWriter writer(offer, options.syntax);
  return OutputFormat{OutputFormat::Kind::kStructuralTag, writer.write(answer_schema)};
}

}  // namespace droidspeak
