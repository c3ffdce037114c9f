// From a chat, whichever API it came by, to a generation and the parser of its answers.
#pragma once

#include <memory>

#include "server/api_error.h"
#include "server/chat/answer_parser.h"
#include "server/generation.h"
#include "server/http.h"
#include "server/openai/requests.h"
#include "server/service.h"

namespace droidspeak {

struct PreparedChat {
  std::shared_ptr<Generation> generation;
  AnswerParser parser;  // to be copied for each choice
};

// Takes the chat's prompt, and what the generation needs of the shared budgets until `request` has
// been answered. `slot` is given back before what takes long.
ApiResult<PreparedChat> prepare_chat(Service& service,
                                     openai::ChatRequest& chat,
                                     HttpRequest& request,
                                     WorkSlots::Slot slot);

}  // namespace droidspeak
