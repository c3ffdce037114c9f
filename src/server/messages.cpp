#include "server/anthropic/errors.h"
#include "server/anthropic/messages_face.h"
#include "server/anthropic/messages_request.h"
#include "server/chat/prepare.h"
#include "server/handlers.h"
#include "server/json_writer.h"

namespace droidspeak {

namespace {

ApiResult<Answer> read_request(Service& service, HttpRequest& request) {
  ApiResult<WorkSlots::Slot> slot = service.take_work_slot(request);
  if (!slot) return slot.error();
  ApiResult<openai::ChatRequest> chat = anthropic::parse_messages_request(std::move(request.body));
  request.release_body();
  if (!chat) return chat.error();
  ApiResult<PreparedChat> prepared = prepare_chat(service, *chat, request, std::move(*slot));
  if (!prepared) return prepared.error();
  openai::GenerationFields& fields = chat->generation;
  auto face = anthropic::make_messages_face(service, fields.model, prepared->parser);
  return Answer{std::move(fields), std::move(prepared->generation), std::move(face)};
}

ApiResult<size_t> count_tokens(Service& service, HttpRequest& request) {
  ApiResult<WorkSlots::Slot> slot = service.take_work_slot(request);
  if (!slot) return slot.error();
  ApiResult<openai::ChatRequest> chat = anthropic::parse_count_request(std::move(request.body));
  request.release_body();
  if (!chat) return chat.error();
  if (!service.find_model(chat->generation.model)) return model_not_found(chat->generation.model);
  auto prompt = service.encode_chat(std::move(chat->prompt));
  if (!prompt) return prompt.error();
  return prompt->tokens.size();
}

}  // namespace

HttpResponse messages(Service& service, HttpRequest& request) {
  ApiResult<Answer> answer = read_request(service, request);
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
