#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "command.h"
#include "model/supported_models.h"

namespace droidspeak {

void add_supported(CLI::App& app) {
  auto options = std::make_shared<CommonOptions>();
  CLI::App* command =
      app.add_subcommand("supported", "Models and file formats that can be loaded, as Markdown");
  add_output_options(*command, *options);
  command->footer("Example: droidspeak supported > docs/supported_models.md");
  command->callback([options] {
    if (options->wants_json) return print_json({{"page", supported_models_page()}});
    fmt::print("{}", supported_models_page());
  });
}

}  // namespace droidspeak
