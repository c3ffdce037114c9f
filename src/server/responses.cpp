#include "server/chat/prepare.h"
#include "server/handlers.h"
#include "server/openai/responses_face.h"

namespace droidspeak {

namespace {

ApiResult<Answer> read_request(Service& service, HttpRequest& request) {
  ApiResult<WorkSlots::Slot> slot = service.take_work_slot(request);
  if (!slot) return slot.error();
  ApiResult<openai::ResponsesRequest> wanted =
      openai::parse_responses_request(std::move(request.body));
  request.release_body();
  if (!wanted) return wanted.error();
  ApiResult<PreparedChat> prepared = prepare_chat(service, wanted->chat, request, std::move(*slot));
  if (!prepared) return prepared.error();
  openai::GenerationFields fields = wanted->chat.generation;
  auto face = openai::make_responses_face(service, std::move(*wanted), prepared->parser);
  return Answer{std::move(fields), std::move(prepared->generation), std::move(face)};
}

}  // namespace

HttpResponse responses(Service& service, HttpRequest& request) {
  ApiResult<Answer> answer = read_request(service, request);
  if (!answer) {
    ApiError error = answer.error();
    if (error.param == "messages") error.param = "input";
    return error_response(error);
  }
  return answer_request(request, std::move(*answer));
}

}  // namespace droidspeak
