#include "grammar/grammar_compiler.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/error.h"
#include "grammar/counted_run.h"
#include "grammar/ebnf_check.h"
#include "grammar/grammar_cache.h"
#include "grammar/grammar_text.h"
#include "grammar/regex_grammar.h"
#include "grammar/schema_grammar.h"
#include "grammar/step_limit.h"
#include "grammar/structural_tag.h"
#include "grammar/xgrammar_types.h"

namespace droidspeak {
namespace {

constexpr size_t kMostChoiceBytes = size_t{64} << 10;
// A place in a grammar takes about one for each token, and GrammarLimits lets some thousand in.
constexpr int64_t kMostSteps = 10'000'000;
constexpr int64_t kMostStepsOfToken = 2500;

std::string choice_grammar(std::string_view list) {
  auto refuse = [](const std::string& why) {
    throw Failure(ErrorCode::kInvalidArgument, "the choice " + why);
  };
  if (list.size() > kMostChoiceBytes)
    refuse(fmt::format("has {} bytes; expected at most {}", list.size(), kMostChoiceBytes));
  auto choices = nlohmann::json::parse(list.begin(), list.end(), nullptr, false);
  if (!choices.is_array() || choices.empty()) refuse("is not an array of texts");
  std::string grammar = "root ::= ";
  for (size_t i = 0; i < choices.size(); ++i) {
    if (!choices[i].is_string() || choices[i].get_ref<const std::string&>().empty())
      refuse(fmt::format("has something else than a text that is not empty at place {}", i));
    grammar += (i > 0 ? " | " : "") + literal_text(choices[i].get_ref<const std::string&>());
  }
  return grammar + "\n";
}

// Answers that are one text have no use for special tokens. Free text with tagged parts may: models
// write the tags of their tool calls as such tokens. In counted runs long tokens would have to be
// tried at every step; shorter ones write the same.
enum class Vocabulary { kWithoutSpecial, kShort, kAll };

size_t num_characters(std::string_view text) {
  auto begins = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
  return static_cast<size_t>(std::ranges::count_if(text, begins));
}

bool is_in(Vocabulary vocabulary, const Tokenizer& tokenizer, int32_t token) {
  if (vocabulary == Vocabulary::kAll) return true;
  if (tokenizer.is_special(token)) return false;
  return vocabulary == Vocabulary::kWithoutSpecial ||
         num_characters(tokenizer.bytes_of(token)) <= kUnrolledCharacters;
}

// Tokens as the bytes that they add to an answer; what is empty is never allowed.
std::vector<std::string> token_texts(const Tokenizer& tokenizer,
                                     int32_t vocab_size,
                                     Vocabulary vocabulary) {
  std::vector<std::string> texts(static_cast<size_t>(vocab_size));
  for (int32_t id = 0; id < std::min(vocab_size, tokenizer.vocab_size()); ++id) {
    if (is_in(vocabulary, tokenizer, id)) texts[static_cast<size_t>(id)] = tokenizer.bytes_of(id);
  }
  return texts;
}

// xgrammar's text without "[12:00:00] /file.cc:12: ".
std::string explain(const std::exception& exception) {
  std::string text = exception.what();
  size_t file = text.find(".cc:");
  if (size_t end = text.find(": ", file); file != std::string::npos && end != std::string::npos)
    text = text.substr(end + 2);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace

std::string grammar_of(const OutputFormat& format) {
  GrammarBudget budget;
  switch (format.kind) {
    case OutputFormat::Kind::kJsonObject:
      return json_object_grammar();
    case OutputFormat::Kind::kJsonSchema:
      return schema_to_grammar(format.text, budget);
    case OutputFormat::Kind::kRegex: {
      GrammarText grammar(budget);
      auto regex = regex_to_grammar(format.text, RegexPlace::kWholeAnswer, grammar);
      return "root ::= " + regex.text + "\n";
    }
    case OutputFormat::Kind::kChoice:
      return choice_grammar(format.text);
    case OutputFormat::Kind::kEbnf:
      check_ebnf(format.text);
      return format.text;
    case OutputFormat::Kind::kStructuralTag:
      return with_own_grammars(format.text);
  }
  panic("unknown kind of output format");
}

struct GrammarCompiler::Library {
  Library(const Tokenizer& from, int32_t vocab, size_t bytes)
      : tokenizer(from), vocab_size(vocab), max_bytes(bytes), cache(bytes) {}

  // Counted until the last owner lets go of it; null when all together would take too much.
  std::shared_ptr<const CompiledGrammar> count(std::unique_ptr<const CompiledGrammar> made) {
    size_t bytes = made->bytes();
    *all_bytes += bytes;
    std::shared_ptr<const CompiledGrammar> grammar(
        made.release(), [all = all_bytes, bytes](const CompiledGrammar* gone) {
          delete gone;
          *all -= bytes;
        });
    auto is_enough = [&] { return *all_bytes <= max_bytes; };
    cache.forget_until(is_enough);
    return is_enough() ? grammar : nullptr;
  }

  xgrammar::GrammarCompiler& get(Vocabulary vocabulary) {
    Compiler& found = compilers[static_cast<size_t>(vocabulary)];
    std::call_once(found.once, [&] {
      std::vector<int32_t> stops;
      std::ranges::copy_if(tokenizer.end_of_turn_ids, std::back_inserter(stops),
                           [&](int32_t id) { return id >= 0 && id < vocab_size; });
      xgrammar::TokenizerInfo info(token_texts(tokenizer, vocab_size, vocabulary),
                                   xgrammar::VocabType::RAW, vocab_size, stops);
      constexpr int kThreads = 1;
      constexpr bool kCached = false;  // it would keep what is refused
      found.compiler.emplace(info, kThreads, kCached);
    });
    return *found.compiler;
  }

  struct Compiler {
    std::once_flag once;
    std::optional<xgrammar::GrammarCompiler> compiler;
  };

  const Tokenizer& tokenizer;
  const int32_t vocab_size;
  const size_t max_bytes;
  const std::shared_ptr<std::atomic<size_t>> all_bytes = std::make_shared<std::atomic<size_t>>(0);
  GrammarCache cache;
  std::array<Compiler, 3> compilers;  // by Vocabulary
};

GrammarCompiler::GrammarCompiler(const Tokenizer& tokenizer, int32_t vocab_size, size_t max_bytes)
    : library_(std::make_unique<Library>(tokenizer, vocab_size, max_bytes)) {}

GrammarCompiler::~GrammarCompiler() = default;

Result<std::shared_ptr<const CompiledGrammar>> GrammarCompiler::compile(const OutputFormat& format,
                                                                        std::string_view tenant) {
  const bool begins_with_reasoning = format.begins == OutputFormat::Begins::kAfterReasoning;
  const bool is_tagged = format.kind == OutputFormat::Kind::kStructuralTag || begins_with_reasoning;
  std::string text;
  try {
    text = grammar_of(format);
    if (begins_with_reasoning) text = tag_after_reasoning(format, std::move(text));
  } catch (const Failure& failure) {
    return failure.error();
  } catch (const std::exception& exception) {
    return Error{ErrorCode::kInvalidArgument, exception.what()};
  }
  const std::string known_by =
      fmt::format("{}{}{}{}", tenant.size(), is_tagged ? 't' : 'g', tenant, text);
  if (auto known = library_->cache.find(known_by)) return known;
  try {
    xgrammar::GrammarCompiler& compiler =
        library_->get(is_tagged               ? Vocabulary::kAll
                      : has_counted_run(text) ? Vocabulary::kShort
                                              : Vocabulary::kWithoutSpecial);
    StepLimit limit(kMostSteps + kMostStepsOfToken * library_->vocab_size);
    auto compiled = std::make_unique<CompiledGrammar::Compiled>(CompiledGrammar::Compiled{
        is_tagged ? compiler.CompileStructuralTag(text) : compiler.CompileGrammar(text)});
    auto made = std::make_unique<const CompiledGrammar>(std::move(compiled), library_->tokenizer,
                                                        library_->vocab_size);
    if (size_t bytes = made->bytes(); bytes > kMostBytes) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("it takes {} bytes for this vocabulary; expected at most {}", bytes,
                               kMostBytes)};
    }
    auto grammar = library_->count(std::move(made));
    if (!grammar) {
      return Error{ErrorCode::kExhausted,
                   "The formats of the requests in work take too much memory; try again later."};
    }
    library_->cache.put(known_by, grammar);
    return grammar;
  } catch (const std::exception& exception) {
    return Error{ErrorCode::kInvalidArgument, explain(exception)};
  }
}

CompiledGrammar::CompiledGrammar(std::unique_ptr<const Compiled> compiled,
                                 const Tokenizer& tokenizer,
                                 int32_t vocab_size)
    : compiled_(std::move(compiled)), tokenizer_(tokenizer), vocab_size_(vocab_size) {}

CompiledGrammar::~CompiledGrammar() = default;

size_t CompiledGrammar::bytes() const {
  return compiled_->grammar.MemorySizeBytes();
}

}  // namespace droidspeak
