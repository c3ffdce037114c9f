// Checks for bugs of ours: always on, print file and line, abort. Never reachable from user input.
#pragma once

#include <string_view>

namespace droidspeak {

struct SourceLine {
  const char* file;
  int line;

  static constexpr SourceLine current(const char* file = __builtin_FILE(),
                                      int line = __builtin_LINE()) {
    return {file, line};
  }
};

[[noreturn]] void panic(std::string_view text, SourceLine where = SourceLine::current());

inline void check(bool condition, std::string_view text, SourceLine where = SourceLine::current()) {
  if (!condition) [[unlikely]] {
    panic(text, where);
  }
}

// For hot loops: only in builds with sanitizers, or with -DDROIDSPEAK_DEBUG_CHECKS=ON.
inline void debug_check([[maybe_unused]] bool condition,
                        [[maybe_unused]] std::string_view text,
                        [[maybe_unused]] SourceLine where = SourceLine::current()) {
#ifdef DROIDSPEAK_DEBUG_CHECKS
  check(condition, text, where);
#endif
}

}  // namespace droidspeak
