// What an answer that may call tools must look like: free text as the model likes, calls in its
// syntax, arguments after their schemas.
#pragma once

#include <optional>

#include "grammar/output_format.h"
#include "server/api_error.h"
#include "server/chat/call_syntax.h"
#include "server/chat/conversation.h"

namespace droidspeak {

struct ToolFormatOptions {
  const CallSyntax& syntax;
  std::optional<OutputFormat> answer = {};  // of an answer without calls; none: any text
};

// The offer is open. 400 for an answer format that does not go with tools.
ApiResult<OutputFormat> tool_format(const ToolOffer& offer, const ToolFormatOptions& options);

}  // namespace droidspeak
