#include "profiler/data.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json_scan.h"
#include "kv/kv_view.h"
#include "text/chat_template.h"

namespace droidspeak {
namespace {

using nlohmann::json;

// The layout that the default family's variants were trained on.
constexpr std::string_view kSystem =
    "You are a helpful assistant. Read the documents and do what the user asks.";

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

std::string text_field(const json& object, const char* name) {
  auto found = object.find(name);
  if (found == object.end()) {
    throw Failure(ErrorCode::kDataCorrupt, fmt::format("field \"{}\" is missing", name));
  }
  if (!found->is_string()) {
    throw Failure(ErrorCode::kDataCorrupt,
                  fmt::format("field \"{}\" is {}: expected a string", name, found->type_name()));
  }
  return found->get<std::string>();
}

const json& list_field(const json& object, const char* name) {
  auto found = object.find(name);
  if (found == object.end() || !found->is_array()) {
    throw Failure(ErrorCode::kDataCorrupt, fmt::format("field \"{}\" is missing or no list", name));
  }
  return *found;
}

QaRow parse_row(std::string_view line) {
  if (auto excess = find_json_excess(line, {}))  // ids are shown, which takes stack for each level
    throw Failure(ErrorCode::kDataCorrupt, "JSON " + *excess);
  json in = json::parse(line, nullptr, false);
  if (in.is_discarded()) throw Failure(ErrorCode::kDataCorrupt, "not valid JSON");
  if (!in.is_object()) {
    throw Failure(ErrorCode::kDataCorrupt, fmt::format("{}: expected an object", in.type_name()));
  }
  QaRow row;
  if (in.contains("id"))
    row.id = in["id"].is_string() ? in["id"].get<std::string>() : in["id"].dump();
  bool has_text = false;
  for (const json& document : list_field(in, "documents")) {
    if (!document.is_object()) {
      throw Failure(ErrorCode::kDataCorrupt, "\"documents\" holds something that is no object");
    }
    row.documents.push_back({text_field(document, "title"), text_field(document, "text")});
    has_text = has_text || !is_blank(row.documents.back().text);
  }
  if (!has_text) {
    throw Failure(ErrorCode::kDataCorrupt,
                  "the documents are empty: expected at least one with text");
  }
  row.question = text_field(in, "question");
  for (const json& answer : list_field(in, "answers")) {
    if (!answer.is_string()) {
      throw Failure(ErrorCode::kDataCorrupt, "\"answers\" holds something that is no string");
    }
    row.answers.push_back(answer.get<std::string>());
  }
  return row;
}

struct PromptParts {
  std::string context;  // a prefix of text
  std::string text;
};

PromptParts lay_out(const Tokenizer& tokenizer, const QaRow& row) {
  std::string documents;
  for (const QaDocument& document : row.documents) {
    documents += fmt::format("{}: {}\n\n", document.title, document.text);
  }
  std::string question = "Question: " + row.question;
  if (tokenizer.find("<|im_start|>") >= 0) {
    std::string context =
        fmt::format("<|im_start|>system\n{}<|im_end|>\n<|im_start|>user\n{}", kSystem, documents);
    return {context, context + question + "<|im_end|>\n<|im_start|>assistant\n"};
  }
  if (tokenizer.chat_template.empty()) {
    throw Failure(ErrorCode::kInvalidArgument,
                  "the base has no chat template, so questions cannot be asked: expected one in "
                  "tokenizer_config.json, in chat_template.jinja or in the GGUF file");
  }
  ChatTemplateInput input;
  input.messages = {{"user", std::string(kSystem) + "\n\n" + documents + question}};
  input.bos_token = tokenizer.bos_text;
  input.eos_token = tokenizer.eos_text;
  std::string text = ChatTemplate(tokenizer.chat_template).render(input);
  size_t question_at = text.rfind(question);
  return {text.substr(0, question_at == std::string::npos ? 0 : question_at), text};
}

}  // namespace

QaFile read_qa_file(const std::filesystem::path& path) {
  std::string text = read_text_file(path);
  QaFile file{path, sha256(std::as_bytes(std::span(text))), {}};
  int64_t line_number = 0;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++line_number;
    if (is_blank(line)) continue;
    try {
      file.rows.push_back(parse_row(line));
    } catch (const Failure& failure) {
      throw Failure(failure.code(),
                    fmt::format("{}:{}: {}", path.string(), line_number, failure.what()));
    }
    QaRow& row = file.rows.back();
    if (row.id.empty()) row.id = fmt::format("line {}", line_number);
  }
  if (file.rows.empty()) {
    throw Failure(ErrorCode::kDataCorrupt,
                  fmt::format("{}: no rows: expected one JSON object a line", path.string()));
  }
  return file;
}

QaPrompt make_qa_prompt(const Tokenizer& tokenizer, const QaRow& row) {
  PromptParts parts = lay_out(tokenizer, row);
  QaPrompt prompt;
  prompt.id = row.id;
  prompt.answers = row.answers;
  prompt.tokens = tokenizer.encode(parts.text, SpecialTokens::kParse);
  std::vector<int32_t> alone = tokenizer.encode(parts.context, SpecialTokens::kParse);
  auto [end, unused] = std::ranges::mismatch(prompt.tokens, alone);
  prompt.context_tokens = static_cast<int32_t>(end - prompt.tokens.begin());
  return prompt;
}

std::vector<int32_t> gold_tokens(const Tokenizer& tokenizer,
                                 const QaPrompt& prompt,
                                 int32_t max_tokens) {
  const std::string* shortest = nullptr;
  for (const std::string& answer : prompt.answers) {
    if (!answer.empty() && (shortest == nullptr || answer.size() < shortest->size()))
      shortest = &answer;
  }
  if (shortest == nullptr) return {};
  std::vector<int32_t> tokens = tokenizer.encode(*shortest, SpecialTokens::kAsText);
  tokens.resize(std::min(tokens.size(), static_cast<size_t>(max_tokens)));
  return tokens;
}

PromptSet make_prompts(const Tokenizer& tokenizer, const QaFile& file, const PromptLimits& limits) {
  PromptSet set;
  for (const QaRow& row : file.rows) {
    if (limits.max_rows > 0 && std::ssize(set.prompts) == limits.max_rows) break;
    QaPrompt prompt = make_qa_prompt(tokenizer, row);
    if (std::ssize(prompt.tokens) + limits.new_tokens > limits.max_tokens) {
      ++set.num_too_long;
    } else if (prompt.context_tokens < kBlockTokens) {
      ++set.num_too_short;
    } else if (limits.known != nullptr && !limits.known->insert(prompt.tokens).second) {
      ++set.num_known;
    } else {
      set.prompts.push_back(std::move(prompt));
    }
  }
  if (set.prompts.empty() && set.num_known == 0) {
    throw Failure(
        ErrorCode::kInvalidArgument,
        fmt::format("{}: no usable row: {}", file.path.string(), describe_skipped(set, limits)));
  }
  return set;
}

std::string describe_skipped(const PromptSet& set, const PromptLimits& limits) {
  std::string text;
  if (set.num_too_long > 0) {
    text = fmt::format("{} of more than {} tokens (the model's context less {} for the answer)",
                       set.num_too_long, limits.max_tokens - limits.new_tokens, limits.new_tokens);
  }
  if (set.num_too_short > 0) {
    text += fmt::format("{}{} with a context of less than {} tokens", text.empty() ? "" : ", ",
                        set.num_too_short, kBlockTokens);
  }
  if (set.num_known > 0) {
    text +=
        fmt::format("{}{} whose prompt occurred before", text.empty() ? "" : ", ", set.num_known);
  }
  return text.empty() ? "" : "skipped rows: " + text;
}

}  // namespace droidspeak
