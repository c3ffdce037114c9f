// The look of answers to Anthropic's POST /v1/messages: content blocks, or the events of their
// making.
#pragma once

#include <memory>

#include "server/answer.h"
#include "server/chat/answer_parser.h"
#include "server/service.h"

namespace droidspeak::anthropic {

std::shared_ptr<AnswerFace> make_messages_face(Service& service,
                                               std::string model,
                                               AnswerParser parser);

}  // namespace droidspeak::anthropic
