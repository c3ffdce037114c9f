#include "server/chat/prepare.h"
#include "server/handlers.h"
#include "server/openai/responses_face.h"
#include "server/read_body.h"

namespace droidspeak {

namespace {

ApiResult<Answer> read_responses_request(Service& service, HttpRequest& request) {
  auto body = read_body(service, request, openai::parse_responses_request);
  if (!body) return body.error();
  openai::ResponsesRequest& wanted = body->wanted;
  auto prepared = prepare_chat(service, wanted.chat, request, std::move(body->slot));
  if (!prepared) return prepared.error();
  openai::GenerationFields fields = wanted.chat.generation;
  auto face = openai::make_responses_face(service, std::move(wanted), prepared->parser);
  return Answer{std::move(fields), std::move(prepared->generation), std::move(face)};
}

}  // namespace

HttpResponse responses(Service& service, HttpRequest& request) {
  ApiResult<Answer> answer = read_responses_request(service, request);
  if (!answer) {
    ApiError error = answer.error();
    if (error.param == "messages") error.param = "input";
    return error_response(error);
  }
  return answer_request(request, std::move(*answer));
}

}  // namespace droidspeak
