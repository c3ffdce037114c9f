// Turns of a conversation as a template takes them, tools included. Models whose template knows no
// tools are told in a section of the system message, see their own calls as text and the results in
// the user's name.
#pragma once

#include <string>
#include <vector>

#include "server/chat/call_syntax.h"
#include "server/chat/conversation.h"
#include "text/chat_template.h"

namespace droidspeak {

enum class DeveloperRole { kOwn, kSystem };  // whether the template has one

struct TurnOptions {
  ToolPrompt prompt = ToolPrompt::kSection;
  DeveloperRole developer = DeveloperRole::kSystem;
};

// `offer` is looked at by kSection only: a template gets the tools beside the messages.
std::vector<ChatMessage> template_messages(std::vector<ChatTurn> turns,
                                           const ToolOffer& offer,
                                           const TurnOptions& options);

}  // namespace droidspeak
