#include "server/anthropic/errors.h"
#include "server/anthropic/messages_face.h"
#include "server/anthropic/messages_request.h"
#include "server/chat/prepare.h"
#include "server/handlers.h"
#include "server/json_writer.h"
#include "server/read_body.h"

namespace droidspeak {

namespace {

ApiResult<Answer> read_messages_request(Service& service, HttpRequest& request) {
  auto body = read_body(service, request, anthropic::parse_messages_request);
  if (!body) return body.error();
  auto prepared = prepare_chat(service, body->wanted, request, std::move(body->slot));
  if (!prepared) return prepared.error();
  openai::GenerationFields& fields = body->wanted.generation;
  auto face = anthropic::make_messages_face(service, fields.model, prepared->parser);
  return Answer{std::move(fields), std::move(prepared->generation), std::move(face)};
}

ApiResult<size_t> count_tokens(Service& service, HttpRequest& request) {
  auto body = read_body(service, request, anthropic::parse_count_request);
  if (!body) return body.error();
  const std::string& model = body->wanted.generation.model;
  if (!service.find_model(model)) return model_not_found(model);
  auto prompt = service.encode_chat(std::move(body->wanted.prompt));
  if (!prompt) return prompt.error();
  return prompt->tokens.size();
}

}  // namespace

HttpResponse messages(Service& service, HttpRequest& request) {
  ApiResult<Answer> answer = read_messages_request(service, request);
  if (!answer) return anthropic::error_response(answer.error());
  return answer_request(request, std::move(*answer));
}

HttpResponse count_message_tokens(Service& service, HttpRequest& request) {
  ApiResult<size_t> count = count_tokens(service, request);
  if (!count) return anthropic::error_response(count.error());
  JsonWriter json;
  json.begin_object().key("input_tokens").unsigned_integer(*count).end_object();
  HttpResponse response;
  response.body = std::move(json).take();
  return response;
}

}  // namespace droidspeak
