#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace droidspeak {

void panic(std::string_view text, SourceLine where) {
  std::fprintf(stderr, "%s:%d: %.*s\n", where.file, where.line, static_cast<int>(text.size()),
               text.data());
  std::abort();
}

}  // namespace droidspeak
