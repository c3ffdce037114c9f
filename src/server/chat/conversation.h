// A conversation and the tools it may use, whichever API it came by.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace droidspeak {

struct ToolCall {
  std::string id;
  std::string name;
  // Text of a JSON object, keys in the client's order; of a call that was cut off, a JSON string
  // with what there is.
  std::string arguments;
};

struct ChatTurn {
  std::string role;  // system, developer, user, assistant or tool
  std::string content = {};
  std::string reasoning = {};         // an assistant's, before its content
  std::vector<ToolCall> calls = {};   // an assistant's
  std::string answered_call_id = {};  // a tool's

  size_t bytes() const;
};

struct Tool {
  std::string name;
  std::string parameters;  // JSON schema of the arguments, which are an object
  std::string description = {};
  enum class Strictness { kUnsaid, kStrict } strictness = Strictness::kUnsaid;  // held either way
};

struct ToolChoice {
  enum class Mode { kNone, kAuto, kRequired, kNamed };
  Mode mode = Mode::kAuto;
  std::string name = {};  // of kNamed
};

struct ToolOffer {
  enum class Calls { kOne, kMany };  // in one answer

  std::vector<Tool> tools = {};
  std::string json = {};  // what templates see: [{"type": "function", "function": {...}}, ...]
  ToolChoice choice = {};
  Calls calls = Calls::kMany;

  // Whether the model is told of tools and may call them.
  bool is_open() const { return !tools.empty() && choice.mode != ToolChoice::Mode::kNone; }
};

}  // namespace droidspeak
