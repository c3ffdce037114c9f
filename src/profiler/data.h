// Question answering data: rows of a .jsonl or .jsonl.gz file, and the prompts made from them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "base/hash.h"
#include "text/tokenizer.h"

namespace droidspeak {

struct QaDocument {
  std::string title;
  std::string text;
};

struct QaRow {
  std::string id;
  std::vector<QaDocument> documents;
  std::string question;
  std::vector<std::string> answers;
};

struct QaFile {
  std::filesystem::path path;
  Digest digest;  // of the text, not of its compression
  std::vector<QaRow> rows;
};

// Throws Failure naming file, line and field: broken JSON, a missing field, a row without text in
// its documents. Empty lines are skipped.
QaFile read_qa_file(const std::filesystem::path& path);

// One row as a model reads it. The prompt is tokenised as one text; the context is what it has in
// common with every other question on the same documents.
struct QaPrompt {
  std::string id;
  std::vector<int32_t> tokens;
  int32_t context_tokens = 0;
  std::vector<std::string> answers;
};

QaPrompt make_qa_prompt(const Tokenizer& tokenizer, const QaRow& row);

// Tokens of the shortest known answer, at most so many; none without one.
std::vector<int32_t> gold_tokens(const Tokenizer& tokenizer,
                                 const QaPrompt& prompt,
                                 int32_t max_tokens);

using KnownPrompts = std::set<std::vector<int32_t>>;  // by their tokens

struct PromptLimits {
  int32_t max_rows = 0;    // 0: all
  int32_t max_tokens = 0;  // prompt and answer together
  int32_t new_tokens = 0;
  // Prompts among these are skipped, and those that are made join them; null: none are.
  KnownPrompts* known = nullptr;
};

struct PromptSet {
  std::vector<QaPrompt> prompts;
  int32_t num_too_long = 0;
  int32_t num_too_short = 0;  // context of less than one block: nothing to share
  int32_t num_known = 0;
};

// The first rows that fit. Throws Failure when none does, known or not.
PromptSet make_prompts(const Tokenizer& tokenizer, const QaFile& file, const PromptLimits& limits);

// "3 rows skipped: ..." or nothing.
std::string describe_skipped(const PromptSet& set, const PromptLimits& limits);

}  // namespace droidspeak
