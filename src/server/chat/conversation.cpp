#include "server/chat/conversation.h"

namespace droidspeak {

size_t ChatTurn::bytes() const {
  size_t total = role.size() + content.size() + reasoning.size() + answered_call_id.size();
  for (const ToolCall& call : calls) {
    total += call.id.size() + call.name.size() + call.arguments.size();
  }
  return total;
}

}  // namespace droidspeak
