#include "server/openai/embedding_request.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "server/openai/generation_fields.h"
#include "server/openai/limits.h"

namespace droidspeak::openai {

namespace {

int32_t read_priority(Fields& fields) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  return static_cast<int32_t>(fields.integer("priority", {-kMost, kMost}).value_or(0));
}

EmbeddingFormat read_format(Fields& fields) {
  std::string format = fields.string("encoding_format", kAnyLength).value_or("float");
  if (format == "base64") return EmbeddingFormat::kBase64;
  if (format != "float") {
    fields.invalid("encoding_format",
                   fmt::format("'{}' is not 'float' or 'base64'", abbreviated(format)));
  }
  return EmbeddingFormat::kFloat;
}

// Texts, or objects with a `text`.
std::vector<std::string> read_documents(Fields& fields) {
  if (!fields.find("documents")) fields.missing("documents");
  std::optional<JsonValue> array = fields.array("documents");
  if (!array) return {};
  if (array->size() == 0) fields.invalid("documents", "it is empty; expected at least one text");
  if (!fields.check_count("documents", array->size(), kMaxPrompts - 1)) return {};
  std::vector<std::string> documents;
  for (size_t i = 0; i < array->size() && !fields.has_failed(); ++i) {
    JsonValue item = array->at(i);
    if (item.is(JsonKind::kString)) {
      documents.push_back(item.string());
    } else if (auto object = fields.object_at("documents", *array, i)) {
      documents.push_back(object->required_string("text", kAnyLength));
    }
    if (!fields.has_failed() && documents.back().empty())
      fields.invalid(fmt::format("documents[{}]", i), "it is empty");
  }
  return documents;
}

}  // namespace

ApiResult<EmbeddingRequest> parse_embedding_request(std::string body) {
  ApiResult<JsonDocument> document = parse_object(body);
  if (!document) return document.error();
  body = std::string();
  std::optional<ApiError> error;
  Fields fields(document->root(), "", error);
  EmbeddingRequest request;
  request.model = fields.required_string("model", kMaxModelNameBytes);
  request.inputs = read_prompts(fields, "input");
  request.format = read_format(fields);
  request.dimensions = fields.integer("dimensions", {1});
  request.adds_special_tokens = fields.boolean("add_special_tokens").value_or(true);
  request.priority = read_priority(fields);
  fields.string("user", kMaxUserBytes);
  reject_false(fields, {"normalize"});
  accept_only(fields, "embed_dtype", {"float32"});
  reject_any_value(fields, {"truncate_prompt_tokens", "messages", "additional_data", "endianness"});
  if (error) return *error;
  return request;
}

ApiResult<RerankRequest> parse_rerank_request(std::string body) {
  ApiResult<JsonDocument> document = parse_object(body);
  if (!document) return document.error();
  body = std::string();
  std::optional<ApiError> error;
  Fields fields(document->root(), "", error);
  RerankRequest request;
  request.model = fields.required_string("model", kMaxModelNameBytes);
  request.query = fields.required_string("query", kAnyLength);
  if (!fields.has_failed() && request.query.empty()) fields.invalid("query", "it is empty");
  request.documents = read_documents(fields);
  auto most = static_cast<int64_t>(request.documents.size());
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  int64_t wanted = fields.integer("top_n", {1, kMost}).value_or(most);
  request.num_results = static_cast<size_t>(std::min(wanted, most));
  request.returns_documents = fields.boolean("return_documents").value_or(true);
  request.adds_special_tokens = fields.boolean("add_special_tokens").value_or(true);
  request.priority = read_priority(fields);
  fields.string("user", kMaxUserBytes);
  reject_any_value(fields, {"truncate_prompt_tokens", "max_chunks_per_doc", "max_tokens_per_doc",
                            "rank_fields", "activation", "use_activation", "instruction"});
  if (error) return *error;
  return request;
}

}  // namespace droidspeak::openai
