#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "command.h"
#include "workspace.h"

namespace droidspeak {
namespace {

struct TokenizeOptions {
  CommonOptions common;
  std::string file;
  bool keeps_special_as_text = false;
};

void run_tokenize(const TokenizeOptions& options) {
  FamilyFile family = read_family_file(options.common.family);
  auto tokenizer = load_tokenizer(family.base.path);
  SpecialTokens special =
      options.keeps_special_as_text ? SpecialTokens::kAsText : SpecialTokens::kParse;
  std::vector<int32_t> tokens = tokenizer->encode(read_file(options.file), special);
  if (options.common.wants_json) {
    print_json({{"tokens", tokens}});
  } else {
    fmt::print("{}\n", fmt::join(tokens, " "));
  }
}

}  // namespace

void add_tokenize(CLI::App& app) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command = app.add_subcommand("tokenize", "Token ids of a text file");
  command
      ->add_option("--family", options->common.family, "family.json, or the folder that holds it")
      ->capture_default_str();
  add_output_options(*command, options->common);
  command->add_option("--file", options->file, "Text file")->required();
  command->add_flag("--no-special", options->keeps_special_as_text,
                    "Encode texts such as <|im_start|> as plain text");
  command->footer("Example: droidspeak tokenize --file README.md --json");
  command->callback([options] { run_tokenize(*options); });
}

}  // namespace droidspeak
