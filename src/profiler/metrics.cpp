#include "profiler/metrics.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <numeric>
#include <random>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"

namespace droidspeak {
namespace {

constexpr int kResamples = 2000;
constexpr uint64_t kBootstrapSeed = 20240117;

constexpr std::array<std::pair<Metric, std::string_view>, 6> kNames{
    {{Metric::kNone, "none"},
     {Metric::kF1, "f1"},
     {Metric::kExactMatch, "exact_match"},
     {Metric::kRougeL, "rouge_l"},
     {Metric::kEditSimilarity, "edit_similarity"},
     {Metric::kFinalNumber, "final_number"}}};

bool is_space(char c) {
  return std::isspace(static_cast<unsigned char>(c)) != 0;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

char lower(char c) {
  return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
}

std::vector<std::string> split_words(std::string_view text) {
  std::vector<std::string> words(1);
  for (char c : text) {
    if (!is_space(c)) {
      words.back() += c;
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

// SQuAD: lower case, without punctuation, without articles.
std::vector<std::string> squad_words(std::string_view text) {
  std::string plain;
  for (char c : text) {
    if (std::ispunct(static_cast<unsigned char>(c)) == 0) plain += lower(c);
  }
  std::vector<std::string> words = split_words(plain);
  std::erase_if(words, [](const std::string& w) { return w == "a" || w == "an" || w == "the"; });
  return words;
}

double f_measure(size_t common, size_t answer, size_t reference) {
  if (common == 0) return 0;
  double precision = static_cast<double>(common) / static_cast<double>(answer);
  double recall = static_cast<double>(common) / static_cast<double>(reference);
  return 2 * precision * recall / (precision + recall);
}

double word_f1(std::string_view answer, std::string_view reference) {
  std::vector<std::string> got = squad_words(answer);
  std::vector<std::string> wanted = squad_words(reference);
  if (got.empty() || wanted.empty()) return got.empty() && wanted.empty() ? 1 : 0;
  std::map<std::string, int> counts;
  for (const std::string& word : wanted) ++counts[word];
  size_t common = 0;
  for (const std::string& word : got) common += counts[word]-- > 0 ? 1 : 0;
  return f_measure(common, got.size(), wanted.size());
}

double rouge_l(std::string_view answer, std::string_view reference) {
  std::string a(answer);
  std::string b(reference);
  std::ranges::transform(a, a.begin(), lower);
  std::ranges::transform(b, b.begin(), lower);
  std::vector<std::string> got = split_words(a);
  std::vector<std::string> wanted = split_words(b);
  std::vector<size_t> row(wanted.size() + 1);  // longest common subsequence, row by row
  for (const std::string& word : got) {
    size_t diagonal = 0;
    for (size_t j = 1; j <= wanted.size(); ++j) {
      size_t above = row[j];
      row[j] = word == wanted[j - 1] ? diagonal + 1 : std::max(above, row[j - 1]);
      diagonal = above;
    }
  }
  return f_measure(row.back(), got.size(), wanted.size());
}

double edit_similarity(std::string_view answer, std::string_view reference) {
  size_t longer = std::max(answer.size(), reference.size());
  if (longer == 0) return 1;
  std::vector<size_t> row(reference.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= answer.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= reference.size(); ++j) {
      size_t above = row[j];
      size_t replaced = diagonal + (answer[i - 1] == reference[j - 1] ? 0 : 1);
      row[j] = std::min({above + 1, row[j - 1] + 1, replaced});
      diagonal = above;
    }
  }
  return 1 - static_cast<double>(row.back()) / static_cast<double>(longer);
}

// Digits, with a sign and a decimal point; commas between digits are dropped.
std::optional<double> final_number(std::string_view text) {
  size_t mark = text.rfind("####");
  bool is_marked = mark != std::string_view::npos;
  if (is_marked) text.remove_prefix(mark + 4);
  std::vector<std::string> numbers;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!is_digit(text[i])) continue;
    bool is_negative = i > 0 && text[i - 1] == '-';
    std::string number = is_negative ? "-" : "";
    for (; i < text.size(); ++i) {
      bool has_more = i + 1 < text.size() && is_digit(text[i + 1]);
      if (is_digit(text[i]) || (text[i] == '.' && has_more)) {
        number += text[i];
      } else if (text[i] != ',' || !has_more) {
        break;
      }
    }
    numbers.push_back(number);
  }
  if (numbers.empty()) return std::nullopt;
  return std::strtod((is_marked ? numbers.front() : numbers.back()).c_str(), nullptr);
}

double score_one(Metric metric, std::string_view answer, std::string_view reference) {
  switch (metric) {
    case Metric::kF1:
      return word_f1(answer, reference);
    case Metric::kExactMatch:
      return squad_words(answer) == squad_words(reference) ? 1 : 0;
    case Metric::kRougeL:
      return rouge_l(answer, reference);
    case Metric::kEditSimilarity:
      return edit_similarity(answer, reference);
    case Metric::kFinalNumber: {
      std::optional<double> got = final_number(answer);
      return got && got == final_number(reference) ? 1 : 0;
    }
    case Metric::kNone:
      return 0;
  }
  return 0;
}

}  // namespace

Metric parse_metric(std::string_view name) {
  for (const auto& [metric, text] : kNames) {
    if (text == name) return metric;
  }
  throw Failure(
      ErrorCode::kInvalidArgument,
      fmt::format(
          "metric \"{}\": expected f1, exact_match, rouge_l, edit_similarity, final_number or none",
          name));
}

std::string_view name_of(Metric metric) {
  for (const auto& [other, text] : kNames) {
    if (other == metric) return text;
  }
  panic("a metric has a name");
}

std::optional<double> score_answer(Metric metric,
                                   std::string_view answer,
                                   std::span<const std::string> references) {
  if (metric == Metric::kNone || references.empty()) return std::nullopt;
  double best = 0;
  for (const std::string& reference : references) {
    best = std::max(best, score_one(metric, answer, reference));
  }
  return best;
}

double mean_of(std::span<const double> values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::optional<double> mean_if_any(std::span<const double> values) {
  return values.empty() ? std::nullopt : std::optional(mean_of(values));
}

double deviation_of(std::span<const double> values) {
  if (values.size() < 2) return 0;
  double mean = mean_of(values);
  double sum = 0;
  for (double value : values) sum += (value - mean) * (value - mean);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

Interval bootstrap_mean(std::span<const double> values) {
  if (values.empty()) return {};
  std::mt19937_64 random(kBootstrapSeed);
  std::vector<double> means(kResamples);
  for (double& mean : means) {
    double sum = 0;
    // The remainder is biased by less than 2^-50: the same numbers on every platform.
    for (size_t i = 0; i < values.size(); ++i) sum += values[random() % values.size()];
    mean = sum / static_cast<double>(values.size());
  }
  std::ranges::sort(means);
  return {means[kResamples / 40], means[kResamples - 1 - kResamples / 40]};
}

Interval bootstrap_difference(std::span<const double> values, std::span<const double> baseline) {
  check(values.size() == baseline.size(), "paired values");
  std::vector<double> differences(values.size());
  for (size_t i = 0; i < values.size(); ++i) differences[i] = values[i] - baseline[i];
  return bootstrap_mean(differences);
}

}  // namespace droidspeak
