// Marks what a client says in a turn, see client_text.h.
#pragma once

#include "server/chat/client_text.h"
#include "server/chat/conversation.h"

namespace droidspeak {

// All parts of a user's, a tool's or the assistant's turn: what a model wrote may repeat what it
// read, and a history may be anyone's. Whoever writes the system's turns may write control tokens.
void mark_turn(const ClientText& text, ChatTurn& turn);

}  // namespace droidspeak
