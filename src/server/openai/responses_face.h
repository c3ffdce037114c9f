// The look of answers to POST /v1/responses: a list of items, or the events of their making.
#pragma once

#include <memory>

#include "server/answer.h"
#include "server/chat/answer_parser.h"
#include "server/openai/responses_request.h"
#include "server/service.h"

namespace droidspeak::openai {

std::shared_ptr<AnswerFace> make_responses_face(Service& service,
                                                ResponsesRequest request,
                                                AnswerParser parser);

}  // namespace droidspeak::openai
