// Scores of answers, and how sure a mean of them is.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace droidspeak {

enum class Metric { kNone, kF1, kExactMatch, kRougeL, kEditSimilarity, kFinalNumber };

// "f1", "exact_match", "rouge_l", "edit_similarity", "final_number", "none". Throws Failure naming
// the text and what there is.
Metric parse_metric(std::string_view name);
std::string_view name_of(Metric metric);

// 0..1, the best over the reference answers; nothing without any, and for kNone.
//   f1, exact_match:  words after SQuAD's normalisation (case, punctuation, articles)
//   rouge_l:          F-measure of the longest common subsequence of lower-case words
//   edit_similarity:  1 - edit distance / longer length, in bytes
//   final_number:     the number after "####", else the last one, equals the reference's (gsm8k)
std::optional<double> score_answer(Metric metric,
                                   std::string_view answer,
                                   std::span<const std::string> references);

struct Interval {
  double low = 0;
  double high = 0;
};

double mean_of(std::span<const double> values);
std::optional<double> mean_if_any(std::span<const double> values);
double deviation_of(std::span<const double> values);  // standard deviation, n - 1
double median_of(std::vector<double> values);

// 95 % bootstrap intervals over rows, 2000 resamples from a fixed seed: the same rows are drawn for
// every call of one length, so intervals of several plans are comparable.
Interval bootstrap_mean(std::span<const double> values);
// Of mean(values) - mean(baseline), the rows drawn in pairs.
Interval bootstrap_difference(std::span<const double> values, std::span<const double> baseline);

}  // namespace droidspeak
