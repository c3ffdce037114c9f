// What an answer must look like, as a request says it.
#pragma once

#include <string>

namespace droidspeak {

struct OutputFormat {
  enum class Kind {
    kJsonObject,     // any JSON object; no text
    kJsonSchema,     // text: the schema, its keys in the client's order
    kRegex,          // text: the expression, for the whole answer
    kChoice,         // text: a JSON array of strings, one of which is the answer
    kEbnf,           // text: a grammar in GBNF, whose start is `root`
    kStructuralTag,  // text: free text with parts that follow schemas, as tool calls do
  };

  enum class Begins { kAtOnce, kAfterReasoning };  // the latter: behind </think>

  Kind kind = Kind::kJsonObject;
  std::string text = {};
  Begins begins = Begins::kAtOnce;

  bool operator==(const OutputFormat&) const = default;
};

}  // namespace droidspeak
