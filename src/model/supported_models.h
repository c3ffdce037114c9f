// What can be loaded, told from the tables that the loaders themselves use.
#pragma once

#include <string>

namespace droidspeak {

// A page of Markdown: docs/supported_models.md is this text.
std::string supported_models_page();

}  // namespace droidspeak
