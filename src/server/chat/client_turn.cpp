#include "server/chat/client_turn.h"

#include <utility>

namespace droidspeak {

void mark_turn(const ClientText& text, ChatTurn& turn) {
  if (turn.role == "system" || turn.role == "developer") return;
  for (std::string* part : {&turn.content, &turn.reasoning, &turn.answered_call_id})
    *part = text.mark(std::move(*part));
  for (ToolCall& call : turn.calls) {
    call.id = text.mark(std::move(call.id));
    call.arguments = text.mark(std::move(call.arguments));
  }
}

}  // namespace droidspeak
