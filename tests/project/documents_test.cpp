// What README and docs name must exist: every back-quoted path, every `make` verb, every
// subcommand.
#include <filesystem>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/file.h"

namespace droidspeak {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = DROIDSPEAK_SOURCE_DIR;

std::vector<fs::path> documents() {
  std::vector<fs::path> files{kRoot / "README.md", kRoot / "CONTRIBUTING.md"};
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / "docs")) {
    if (entry.path().extension() == ".md") files.push_back(entry.path());
  }
  return files;
}

std::vector<std::string> matches(const std::string& text, const std::regex& pattern) {
  std::vector<std::string> found;
  for (std::sregex_iterator it(text.begin(), text.end(), pattern), end; it != end; ++it)
    found.push_back((*it)[1]);
  return found;
}

// Made by building or running, so absent from a fresh checkout.
bool is_made(const std::string& path) {
  for (const char* prefix : {"build", "models/", "out/", ".venv", ".cache"}) {
    if (path.starts_with(prefix)) return true;
  }
  return false;
}

TEST(Documents, NamePathsThatExist) {
  std::regex path(
      R"re(`((?:src|apps|tests|tools|bench|docs|web|families|cmake|deploy|packages|python|\.ci)/[A-Za-z0-9_./-]*[A-Za-z0-9_/-])`)re");
  int count = 0;
  for (const fs::path& document : documents()) {
    for (const std::string& name : matches(read_file(document), path)) {
      ++count;
      EXPECT_TRUE(is_made(name) || fs::exists(kRoot / name))
          << document.filename() << " names " << name;
    }
  }
  EXPECT_GT(count, 20);
}

TEST(Documents, LinkToFilesThatExist) {
  std::regex link(R"re(\]\(([^)#:]+)(?:#[^)]*)?\))re");
  for (const fs::path& document : documents()) {
    for (const std::string& target : matches(read_file(document), link)) {
      EXPECT_TRUE(fs::exists(document.parent_path() / target))
          << document.filename() << " links to " << target;
    }
  }
}

TEST(Documents, NameMakeVerbsThatExist) {
  std::string makefile = read_file(kRoot / "Makefile");
  for (const fs::path& document : documents()) {
    for (const std::string& verb :
         matches(read_file(document), std::regex(R"re(`make ([a-z-]+))re"))) {
      EXPECT_NE(makefile.find("\n" + verb + ":"), std::string::npos)
          << document.filename() << " names make " << verb;
    }
  }
}

TEST(Documents, NameSubcommandsThatExist) {
  std::set<std::string> commands{"serve",    "generate", "score",   "tokenize", "profile",
                                 "evaluate", "bench",    "inspect", "family",   "supported"};
  for (const fs::path& document : documents()) {
    for (const std::string& command :
         matches(read_file(document), std::regex(R"re(build/droidspeak ([a-z]+))re"))) {
      EXPECT_TRUE(commands.contains(command))
          << document.filename() << " names droidspeak " << command;
    }
  }
}

}  // namespace
}  // namespace droidspeak
