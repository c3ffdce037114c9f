#include "server/chat/answer_parser.h"

#include <algorithm>
#include <utility>

namespace droidspeak {

namespace {

constexpr std::string_view kThink = "<think>";
constexpr std::string_view kThinkEnd = "</think>";
constexpr std::string_view kBlanks = " \t\r\n";
constexpr size_t kMostNameBytes = 128;  // of a tool

using Kind = AnswerEvent::Kind;

// How many bytes at the end of `text` may be the beginning of `marker`.
size_t partial_end(std::string_view text, std::string_view marker) {
  size_t most = std::min(text.size(), marker.size() - 1);
  for (size_t length = most; length > 0; --length) {
    if (marker.starts_with(text.substr(text.size() - length))) return length;
  }
  return 0;
}

size_t blank_end(std::string_view text) {
  size_t last = text.find_last_not_of(kBlanks);
  return last == std::string_view::npos ? text.size() : text.size() - last - 1;
}

}  // namespace

AnswerParser::AnswerParser(const CallSyntax* syntax,
                           Beginning beginning,
                           std::set<std::string> tools,
                           Calls calls)
    : syntax_(syntax), tools_(std::move(tools)), calls_(calls) {
  if (beginning == Beginning::kReasoning) skip_blanks_before(State::kReasoning);
}

std::vector<AnswerEvent> AnswerParser::push(std::string_view text) {
  pending_ += text;
  while (step()) {
  }
  return std::exchange(events_, {});
}

std::vector<AnswerEvent> AnswerParser::finish() {
  is_over_ = true;
  while (step()) {
  }
  if (state_ == State::kName && !has_called_) give_up_call();
  pending_.clear();  // behind a call: part of its end, or of a next one before its arguments
  return std::exchange(events_, {});
}

void AnswerParser::emit(Kind kind, std::string text) {
  bool is_piece = kind != Kind::kCallBegin && kind != Kind::kCallEnd;
  if (is_piece && text.empty()) return;
  if (is_piece && !events_.empty() && events_.back().kind == kind) {
    events_.back().text += text;
  } else {
    events_.push_back({kind, std::move(text)});
  }
}

void AnswerParser::emit_text(std::string_view text) {
  if (has_called_ && blank_end(text) == text.size()) return;
  emit(Kind::kText, std::string(text));
}

bool AnswerParser::step() {
  switch (state_) {
    case State::kBeginning:
      return begin();
    case State::kBlanks:
      return skip_blanks();
    case State::kReasoning:
      return read_reasoning();
    case State::kText:
      return read_text();
    case State::kName:
      return read_name();
    case State::kArguments:
      return read_arguments();
    case State::kAfterCall:
      return read_after_call();
  }
  return false;
}

bool AnswerParser::begin() {
  size_t first = pending_.find_first_not_of(kBlanks);
  std::string_view text(pending_);
  if (first != std::string::npos) {
    std::string_view rest = text.substr(first);
    if (rest.starts_with(kThink)) {
      pending_.erase(0, first + kThink.size());
      skip_blanks_before(State::kReasoning);
      return true;
    }
    if (!is_over_ && kThink.starts_with(rest)) return false;
  } else if (!is_over_) {
    return false;
  }
  state_ = State::kText;
  return true;
}

bool AnswerParser::read_reasoning() {
  size_t end = pending_.find(kThinkEnd);
  if (end != std::string::npos) {
    emit(Kind::kReasoning, pending_.substr(0, end - blank_end(pending_.substr(0, end))));
    pending_.erase(0, end + kThinkEnd.size());
    skip_blanks_before(State::kText);
    return true;
  }
  size_t held = is_over_ ? 0 : partial_end(pending_, kThinkEnd);
  held += blank_end(std::string_view(pending_).substr(0, pending_.size() - held));
  emit(Kind::kReasoning, pending_.substr(0, pending_.size() - held));
  pending_.erase(0, pending_.size() - held);
  return false;
}

bool AnswerParser::skip_blanks() {
  size_t first = pending_.find_first_not_of(kBlanks);
  pending_.erase(0, first);
  if (first == std::string::npos) return false;
  state_ = after_blanks_;
  return true;
}

void AnswerParser::skip_blanks_before(State next) {
  state_ = State::kBlanks;
  after_blanks_ = next;
}

bool AnswerParser::read_text() {
  if (syntax_ == nullptr) {
    emit_text(std::exchange(pending_, {}));
    return false;
  }
  std::string_view text(pending_);
  bool must_begin = calls_ == Calls::kInsteadOfText && !has_called_;
  if (must_begin && !text.starts_with(syntax_->trigger)) {
    if (!is_over_ && syntax_->trigger.starts_with(text)) return false;
    syntax_ = nullptr;
    return true;
  }
  size_t call = text.find(syntax_->trigger);
  if (call != std::string_view::npos) {
    std::string_view before = text.substr(0, call);
    emit_text(before.substr(0, before.size() - blank_end(before)));
    pending_.erase(0, call);
    state_ = State::kName;
    is_first_call_ = true;
    return true;
  }
  size_t held = is_over_ ? 0 : partial_end(text, syntax_->trigger);
  if (!is_over_) held += blank_end(text.substr(0, text.size() - held));
  emit_text(text.substr(0, text.size() - held));
  pending_.erase(0, text.size() - held);
  return false;
}

bool AnswerParser::read_name() {
  std::string opening(is_first_call_ ? syntax_->opening : std::string_view());
  opening += syntax_->before_name;
  std::string_view text(pending_);
  if (!text.starts_with(opening.substr(0, text.size()))) {
    give_up_call();
    return true;
  }
  size_t end = text.find(syntax_->after_name, opening.size());
  if (text.size() < opening.size()) return false;
  bool has_end = end != std::string_view::npos;
  std::string name(text.substr(opening.size(), has_end ? end - opening.size() : end));
  size_t most = kMostNameBytes + syntax_->after_name.size();
  if (has_end ? !tools_->contains(name) : name.size() > most) {
    give_up_call();
    return true;
  }
  if (!has_end) return false;
  emit(Kind::kCallBegin, std::move(name));
  pending_.erase(0, end + syntax_->after_name.size());
  has_called_ = true;
  depth_ = 0;
  is_in_string_ = is_escaped_ = false;
  state_ = State::kArguments;
  return true;
}

bool AnswerParser::read_arguments() {
  for (size_t i = 0; i < pending_.size(); ++i) {
    char c = pending_[i];
    if (is_escaped_) {
      is_escaped_ = false;
    } else if (is_in_string_) {
      is_escaped_ = c == '\\';
      is_in_string_ = c != '"';
    } else if (c == '"') {
      is_in_string_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if ((c == '}' || c == ']') && --depth_ <= 0) {
      emit(Kind::kArguments, pending_.substr(0, i + 1));
      emit(Kind::kCallEnd, {});
      pending_.erase(0, i + 1);
      state_ = State::kAfterCall;
      return true;
    }
  }
  emit(Kind::kArguments, std::exchange(pending_, {}));
  return false;
}

// The end of a call, and of a list the next call or the end.
bool AnswerParser::read_after_call() {
  std::string_view text(pending_);
  auto is_part_of = [&](std::string_view wanted) {
    return text.size() < wanted.size() && wanted.starts_with(text);
  };
  bool is_cut = is_part_of(syntax_->after_arguments);
  size_t end = text.starts_with(syntax_->after_arguments) ? syntax_->after_arguments.size() : 0;
  State next = State::kText;
  if (!is_cut && !syntax_->closing.empty()) {
    text.remove_prefix(end);
    is_cut = is_part_of(syntax_->separator) || is_part_of(syntax_->closing);
    if (text.starts_with(syntax_->separator)) {
      end += syntax_->separator.size();
      is_first_call_ = false;
      next = State::kName;
    } else if (text.starts_with(syntax_->closing)) {
      end += syntax_->closing.size();
    }
  }
  if (is_cut) return false;
  pending_.erase(0, end);
  state_ = next;
  return true;
}

// It is text after all, up to where another call may begin.
void AnswerParser::give_up_call() {
  size_t end = std::min(pending_.size(), size_t{1});
  emit(Kind::kText, pending_.substr(0, end));
  pending_.erase(0, end);
  state_ = State::kText;
  if (is_over_) emit(Kind::kText, std::exchange(pending_, {}));
}

std::vector<AnswerItem> collect_items(const std::vector<AnswerEvent>& events) {
  std::vector<AnswerItem> items;
  auto append = [&](AnswerItem::Kind kind, const std::string& text) {
    if (items.empty() || items.back().kind != kind) items.push_back({kind});
    items.back().text += text;
  };
  for (const AnswerEvent& event : events) {
    switch (event.kind) {
      case Kind::kReasoning:
        append(AnswerItem::Kind::kReasoning, event.text);
        break;
      case Kind::kText:
        append(AnswerItem::Kind::kText, event.text);
        break;
      case Kind::kCallBegin:
        items.push_back({AnswerItem::Kind::kCall, "", event.text, false});
        break;
      case Kind::kArguments:
        items.back().text += event.text;
        break;
      case Kind::kCallEnd:
        items.back().is_whole = true;
        break;
    }
  }
  return items;
}

size_t drop_cut_calls(std::vector<AnswerItem>& items) {
  return std::erase_if(items, [](const AnswerItem& item) { return !item.is_whole; });
}

std::vector<AnswerItem> parse_answer(AnswerParser parser, std::string_view text) {
  std::vector<AnswerEvent> events = parser.push(text);
  for (AnswerEvent& event : parser.finish()) events.push_back(std::move(event));
  return collect_items(events);
}

}  // namespace droidspeak
