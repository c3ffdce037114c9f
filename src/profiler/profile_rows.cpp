#include "profiler/profile_rows.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

namespace droidspeak {
namespace {

class RowChoice {
 public:
  RowChoice(const Tokenizer& tokenizer, const ProfileOptions& options, int32_t max_positions)
      : tokenizer_(tokenizer),
        options_(options),
        max_positions_(max_positions),
        rows_{read_qa_file(options.data), {}, {}, {}} {}

  ProfileRows choose() {
    choose_from_data();
    if (!options_.fit_data.empty() && options_.most_fit_rows() > 0)
      rows_.fit = read_prompts(read_qa_file(options_.fit_data), options_.most_fit_rows());
    if (!options_.confirm_data.empty() && options_.confirm_contexts > 0)
      rows_.confirming =
          read_prompts(read_qa_file(options_.confirm_data), options_.confirm_contexts);
    drop_too_few_confirming();
    return std::move(rows_);
  }

 private:
  std::vector<QaPrompt> read_prompts(const QaFile& file, int32_t max_rows) {
    PromptLimits limits{max_rows, max_positions_, options_.answer_tokens, &known_};
    PromptSet set = make_prompts(tokenizer_, file, limits);
    std::string skipped = describe_skipped(set, limits);
    if (!skipped.empty()) warn(fmt::format("{}: {}", file.path.string(), skipped));
    return std::move(set.prompts);
  }

  // First those that are measured, then those for the fit, then those that confirm.
  void choose_from_data() {
    int32_t further = options_.fit_data.empty() ? options_.most_fit_rows() : 0;
    int32_t confirming = options_.confirm_data.empty() ? options_.confirm_contexts : 0;
    std::vector<QaPrompt> all = read_prompts(rows_.data, options_.contexts + further + confirming);
    if (std::ssize(all) < options_.contexts) {
      warn(fmt::format("{}: {} usable rows; {} were asked for", options_.data.string(), all.size(),
                       options_.contexts));
    }
    auto rest = all.begin();
    rows_.measured = take(rest, all.end(), options_.contexts);
    rows_.fit = take(rest, all.end(), further);
    rows_.confirming = take(rest, all.end(), confirming);
  }

  using Position = std::vector<QaPrompt>::iterator;

  static std::vector<QaPrompt> take(Position& rest, Position end, int32_t most) {
    auto begin = rest;
    rest += std::min<std::ptrdiff_t>(most, end - rest);
    return {std::make_move_iterator(begin), std::make_move_iterator(rest)};
  }

  void drop_too_few_confirming() {
    if (options_.confirm_contexts == 0 || rows_.confirming.size() >= rows_.measured.size()) return;
    warn(
        fmt::format("{} rows are left to confirm plans on, expected at least {} (--confirm-data): "
                    "what the book promises rests on the {} that plans are chosen by",
                    rows_.confirming.size(), rows_.measured.size(), rows_.measured.size()));
    rows_.confirming.clear();
  }

  void warn(const std::string& text) const {
    if (options_.warn) options_.warn(text);
  }

  const Tokenizer& tokenizer_;
  const ProfileOptions& options_;
  const int32_t max_positions_;
  KnownPrompts known_;
  ProfileRows rows_;
};

}  // namespace

ProfileRows choose_rows(const Tokenizer& tokenizer,
                        const ProfileOptions& options,
                        int32_t max_positions) {
  return RowChoice(tokenizer, options, max_positions).choose();
}

Digest digest_of(std::span<const QaPrompt> rows) {
  Sha256 hash;
  for (const QaPrompt& row : rows) {
    hash.add_field('t', std::as_bytes(std::span(row.tokens)));
    hash.add_field('c', static_cast<uint64_t>(row.context_tokens));
    for (const std::string& answer : row.answers) hash.add_field('g', answer);
  }
  return hash.finish();
}

}  // namespace droidspeak
