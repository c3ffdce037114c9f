// The layering rules, checked mechanically: an include points to the own folder or a declared
// dependency; CUDA stays under device/cuda and ops/cuda; nlohmann/json stays out of headers.
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/file.h"

namespace droidspeak {
namespace {

namespace fs = std::filesystem;

const fs::path kSource = fs::path(DROIDSPEAK_SOURCE_DIR) / "src";

std::map<std::string, std::set<std::string>> declared_dependencies() {
  std::map<std::string, std::set<std::string>> table;
  std::istringstream lines(read_file(fs::path(DROIDSPEAK_BINARY_DIR) / "modules.txt"));
  for (std::string line; std::getline(lines, line);) {
    size_t colon = line.find(':');
    std::istringstream names(line.substr(colon + 1));
    std::set<std::string>& dependencies = table[line.substr(0, colon)];
    for (std::string name; names >> name;) dependencies.insert(name);
  }
  return table;
}

std::vector<fs::path> source_files() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(kSource)) {
    std::string extension = entry.path().extension();
    if (extension == ".h" || extension == ".cpp" || extension == ".cu" || extension == ".cuh")
      files.push_back(entry.path());
  }
  return files;
}

TEST(Layering, IncludesPointToDeclaredDependencies) {
  auto table = declared_dependencies();
  ASSERT_GE(table.size(), 10u);
  std::regex include(R"re(#include "([a-z_]+)/)re");
  for (const fs::path& file : source_files()) {
    std::string module = fs::relative(file, kSource).begin()->string();
    bool is_test =
        file.stem().string().ends_with("_test") || file.stem().string().ends_with("_fixture");
    std::string text = read_file(file);
    for (std::sregex_iterator it(text.begin(), text.end(), include), end; it != end; ++it) {
      std::string target = (*it)[1];
      if (target == module || !table.contains(target)) continue;
      EXPECT_TRUE(table[module].contains(target) || is_test)
          << fs::relative(file, kSource) << " includes " << target << ", which " << module
          << " does not declare";
    }
  }
}

TEST(Layering, DependenciesHaveNoCycle) {
  auto table = declared_dependencies();
  std::set<std::string> done;
  while (done.size() < table.size()) {
    size_t before = done.size();
    for (const auto& [module, dependencies] : table) {
      bool ready = true;
      for (const std::string& dependency : dependencies) ready = ready && done.contains(dependency);
      if (ready) done.insert(module);
    }
    ASSERT_GT(done.size(), before) << "the modules depend on each other in a circle";
  }
}

TEST(Layering, CudaStaysInItsTwoFolders) {
  std::regex cuda(R"re(#include <(cuda|cublas|cudnn)|<<<|#if.*DROIDSPEAK_CUDA)re");
  for (const fs::path& file : source_files()) {
    std::string path = fs::relative(file, kSource).string();
    if (path.starts_with("device/cuda/") || path.starts_with("ops/cuda/")) continue;
    EXPECT_NE(file.extension(), ".cu") << path;
    EXPECT_FALSE(std::regex_search(read_file(file), cuda)) << path;
  }
}

// It recurses for every character: a pattern or a text from outside can end the process.
TEST(Layering, StandardRegularExpressionsStayOut) {
  for (const fs::path& file : source_files())
    EXPECT_EQ(read_file(file).find("#include <regex>"), std::string::npos)
        << fs::relative(file, kSource) << ": base/regex.h has limits";
}

TEST(Layering, JsonLibraryStaysOutOfHeaders) {
  for (const fs::path& file : source_files()) {
    if (file.extension() != ".h") continue;
    EXPECT_EQ(read_file(file).find("<nlohmann/json.hpp>"), std::string::npos)
        << fs::relative(file, kSource);
  }
}

}  // namespace
}  // namespace droidspeak
