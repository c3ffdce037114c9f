// tiny_family FOLDER: writes the tests' model family there, for test suites in other languages.
#include <cstdio>

#include "support/tiny_model.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: tiny_family FOLDER\n", stderr);
    return 2;
  }
  std::puts(droidspeak::write_tiny_family(argv[1]).c_str());
  return 0;
}
