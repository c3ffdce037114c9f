#include <bit>
#include <cstring>

#include <fmt/format.h>

#include "server/base64.h"
#include "server/embedder.h"
#include "server/handlers.h"
#include "server/openai/embedding_request.h"
#include "server/read_body.h"

namespace droidspeak {

namespace {

static_assert(std::endian::native == std::endian::little, "base64 is of little-endian floats");

void write_embedding(JsonWriter& json,
                     const std::vector<float>& values,
                     openai::EmbeddingFormat format) {
  if (format == openai::EmbeddingFormat::kBase64) {
    std::vector<uint8_t> bytes(values.size() * sizeof(float));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    json.text(base64(bytes));
    return;
  }
  json.begin_array();
  for (float value : values) json.single_number(value);
  json.end_array();
}

// Shorter embeddings are a matter of how the model was trained, which nobody declares.
std::optional<ApiError> check_dimensions(const openai::EmbeddingRequest& wanted, Service& service) {
  int64_t dimensions = service.engine().config().d_model;
  if (!wanted.dimensions || *wanted.dimensions == dimensions) return std::nullopt;
  return bad_field(fmt::format("Invalid 'dimensions': {}; this model's embeddings have {}.",
                               *wanted.dimensions, dimensions),
                   "dimensions", "unsupported_value");
}

ApiResult<HttpResponse> answer_embeddings(Service& service, HttpRequest& request) {
  auto body = read_body(service, request, openai::parse_embedding_request);
  if (!body) return body.error();
  openai::EmbeddingRequest& wanted = body->wanted;
  if (auto error = check_dimensions(wanted, service)) return *error;
  TextsToEmbed texts;
  texts.model = wanted.model;
  texts.params.assign(wanted.inputs.size(), "input");
  texts.texts = std::move(wanted.inputs);
  texts.adds_special_tokens = wanted.adds_special_tokens;
  texts.priority = wanted.priority;
  auto embedded = embed_texts(service, std::move(texts), request, std::move(body->slot));
  if (!embedded) return embedded.error();
  JsonWriter json;
  json.begin_object().key("object").text("list").key("data").begin_array();
  for (size_t i = 0; i < embedded->embeddings.size(); ++i) {
    json.begin_object().key("object").text("embedding").key("index").unsigned_integer(i);
    json.key("embedding");
    write_embedding(json, embedded->embeddings[i], wanted.format);
    json.end_object();
  }
  json.end_array().key("model").text(wanted.model);
  return with_usage(std::move(json), *embedded);
}

}  // namespace

HttpResponse embeddings(Service& service, HttpRequest& request) {
  ApiResult<HttpResponse> response = answer_embeddings(service, request);
  return response ? std::move(*response) : error_response(response.error());
}

}  // namespace droidspeak
