// JSON Schemas as grammars. Every text that the grammar makes conforms to the schema; the grammar
// may make fewer texts than conform: properties come in the schema's order, an object has only the
// properties that are named unless `additionalProperties` says more. What cannot be had exactly is
// refused by keyword and path. Formats are held, not only noted.
#pragma once

#include <string>
#include <string_view>

#include "grammar/grammar_text.h"

namespace droidspeak {

struct SchemaLimits {
  size_t bytes = size_t{256} << 10;
  int depth = 64;
  size_t values = 16384;
  size_t keys = 8192;
};

// Grammar of the texts that satisfy `schema`. Throws Failure (invalid argument) that says what in
// it cannot be had, and where ("#/properties/name").
std::string schema_to_grammar(std::string_view schema,
                              GrammarBudget& budget,
                              const SchemaLimits& limits = {});

// Any JSON object.
std::string json_object_grammar();

}  // namespace droidspeak
