#include "text/tokenizer_test_support.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "formats/gguf.h"

namespace droidspeak {

std::filesystem::path tokenizer_test_folder() {
  return std::filesystem::path(DROIDSPEAK_SOURCE_DIR) / "tests/data/tokenizers";
}

std::vector<GoldenCase> read_golden(const std::filesystem::path& path) {
  std::vector<GoldenCase> cases;
  for (const auto& entry : nlohmann::json::parse(read_text_file(path))) {
    GoldenCase& golden = cases.emplace_back();
    golden.text = entry["text"].get<std::string>();
    golden.ids = entry["ids"].get<std::vector<int32_t>>();
    const auto& decoded = entry.contains("decoded") ? entry["decoded"] : entry["text"];
    if (!decoded.is_null()) golden.decoded = decoded.get<std::string>();
  }
  return cases;
}

std::vector<int32_t> read_token_list(const std::filesystem::path& path) {
  return nlohmann::json::parse(read_text_file(path))["tokens"].get<std::vector<int32_t>>();
}

std::unique_ptr<Tokenizer> load_packed_gguf(const std::string& name) {
  TemporaryFolder folder;
  auto path = folder.path() / "vocabulary.gguf";
  write_file_atomically(path, read_text_file(tokenizer_test_folder() / name));
  return load_gguf_tokenizer(GgufFile(path));
}

std::unique_ptr<Tokenizer> load_sentencepiece(const std::filesystem::path& model) {
  TemporaryFolder folder;
  std::filesystem::copy_file(model, folder.path() / "tokenizer.model");
  return load_hf_tokenizer(folder.path());
}

std::string failure_in(const std::function<void()>& action) {
  try {
    action();
  } catch (const Failure& failure) {
    return failure.what();
  }
  return "no failure";
}

}  // namespace droidspeak
