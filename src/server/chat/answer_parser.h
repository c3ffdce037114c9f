// Takes an answer apart while it comes: reasoning (<think>...</think> at its beginning), text, and
// tool calls. Text that may be the beginning of a call is held back, and so are blanks, which
// between calls mean nothing. What only looks like a call is text; a part of one at the end of the
// answer is not, where it follows another call.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/shared.h"
#include "server/chat/call_syntax.h"

namespace droidspeak {

struct AnswerEvent {
  enum class Kind { kReasoning, kText, kCallBegin, kArguments, kCallEnd };
  Kind kind = Kind::kText;
  std::string text = {};  // a piece; the name at a call's begin; nothing at its end
};

class AnswerParser {
 public:
  enum class Beginning { kUnknown, kReasoning };     // the latter: the prompt has opened it
  enum class Calls { kBesideText, kInsteadOfText };  // where the answer has a format of its own

  // `syntax` is null when nothing may be called, and lives on otherwise. What looks like a call of
  // something else than the tools is text. With kInsteadOfText an answer that does not begin with
  // a call has none: it may say anything, a call's text, too.
  AnswerParser(const CallSyntax* syntax,
               Beginning beginning,
               std::set<std::string> tools = {},
               Calls calls = Calls::kBesideText);

  std::vector<AnswerEvent> push(std::string_view text);
  std::vector<AnswerEvent> finish();

 private:
  enum class State { kBeginning, kBlanks, kReasoning, kText, kName, kArguments, kAfterCall };

  // Each takes what it can from `pending_`; false: more must come.
  bool step();
  bool begin();
  bool read_reasoning();
  bool skip_blanks();
  bool read_text();
  bool read_name();
  bool read_arguments();
  bool read_after_call();

  void emit(AnswerEvent::Kind kind, std::string text);
  void emit_text(std::string_view text);
  void give_up_call();
  void skip_blanks_before(State next);

  const CallSyntax* syntax_;
  Shared<std::set<std::string>> tools_;  // of all choices
  Calls calls_;
  State state_ = State::kBeginning;
  State after_blanks_ = State::kText;  // of kBlanks
  std::string pending_;
  bool is_first_call_ = true;  // of a list
  int depth_ = 0;              // in the arguments
  bool is_in_string_ = false;
  bool is_escaped_ = false;
  bool has_called_ = false;
  bool is_over_ = false;  // nothing more comes
  std::vector<AnswerEvent> events_;
};

// A whole answer: adjacent pieces are one.
struct AnswerItem {
  enum class Kind { kReasoning, kText, kCall };
  Kind kind = Kind::kText;
  std::string text = {};  // a call's arguments
  std::string name = {};  // of what is called
  bool is_whole = true;   // false: a call that was cut off
};

// Takes out calls that were cut off, as by a stop string; how many.
size_t drop_cut_calls(std::vector<AnswerItem>& items);

std::vector<AnswerItem> collect_items(const std::vector<AnswerEvent>& events);
std::vector<AnswerItem> parse_answer(AnswerParser parser, std::string_view text);

}  // namespace droidspeak
