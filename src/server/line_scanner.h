// What the lines of a head, and of the framing of a chunked body, may consist of: CR and LF only as
// a pair, no control characters but tab, and no line that continues the one before. Where readers
// differ about such bytes, one of them can be made to see a request that the other does not.
#pragma once

namespace droidspeak {

class LineScanner {
 public:
  enum class Step { kInside, kLineEnd, kBad };

  // After kBad nothing more may be added; problem() says why.
  Step add(char c) {
    bool was_at_start = is_at_start_;
    bool was_after_cr = is_after_cr_;
    is_at_start_ = c == '\n';
    is_after_cr_ = c == '\r';
    if (was_after_cr) return c == '\n' ? Step::kLineEnd : bad("a CR without LF");
    if (c == '\r') return Step::kInside;
    if (c == '\n') return bad("a line that ends in LF without CR");
    if (was_at_start && (c == ' ' || c == '\t')) return bad("a line that begins with a space");
    bool is_control = (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f;
    return is_control ? bad("a control character") : Step::kInside;
  }

  const char* problem() const { return problem_; }

 private:
  Step bad(const char* problem) {
    problem_ = problem;
    return Step::kBad;
  }

  bool is_at_start_ = true;
  bool is_after_cr_ = false;
  const char* problem_ = "";
};

}  // namespace droidspeak
