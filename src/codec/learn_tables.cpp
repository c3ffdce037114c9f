#include "codec/learn_tables.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "base/hash.h"
#include "codec/piece.h"
#include "codec/rows.h"
#include "codec/token_scale.h"

namespace droidspeak {
namespace {

using Row = std::span<const float>;

// Every row of a sample but the exact ones, before RoPE; without turns as it is.
void for_each_row(const KvLayout& layout,
                  const Turns* turns,
                  const KvSample& sample,
                  const std::function<void(KvHalf, Row)>& visit) {
  PieceShape shape(layout, sample.values.size());
  std::vector<float> row(shape.channels);
  std::vector<float> block_turns;
  for (size_t r = 0; r < shape.num_blocks * kBlockTokens; ++r) {
    if (turns != nullptr && r % kBlockTokens == 0)
      turns->of_block(sample.label.first_position + static_cast<uint32_t>(r), block_turns);
    if (r < exact_tokens_at(sample.label.first_position)) continue;
    load_row(layout, sample.values, KvHalf::kKeys, r, row);
    if (turns != nullptr) {
      turn_back(row, static_cast<size_t>(layout.head_dim),
                turns->row(block_turns, r % kBlockTokens));
    }
    visit(KvHalf::kKeys, row);
    load_row(layout, sample.values, KvHalf::kValues, r, row);
    visit(KvHalf::kValues, row);
  }
}

struct Moments {
  std::vector<double> sums;
  std::vector<double> squares;
  size_t count = 0;

  void add(Row row) {
    sums.resize(row.size());
    squares.resize(row.size());
    for (size_t c = 0; c < row.size(); ++c) {
      sums[c] += row[c];
      squares[c] += double{row[c]} * row[c];
    }
    ++count;
  }
};

// Distributions are sorted by how many steps a channel's values spread over, half an octave apart.
constexpr double kNarrowestSpread = 0.25;  // of distribution 1, in steps

double spread_of(size_t distribution) {
  return kNarrowestSpread * std::exp2(0.5 * (static_cast<double>(distribution) - 1));
}

uint8_t distribution_for(double spread) {
  double octaves = std::log2(std::max(spread, kNarrowestSpread) / kNarrowestSpread);
  return static_cast<uint8_t>(
      std::clamp(1 + std::round(2 * octaves), 1.0, kNumDistributions - 1.0));
}

constexpr double kSmallestSpread = 1e-6;
// Of the values' size. Equal tokens differ by what the dtype rounds off, 1e-3 of it in bf16.
constexpr double kSmallestShare = 2e-3;

Error unfit(size_t half, std::string_view reason) {
  return {ErrorCode::kInvalidArgument,
          fmt::format("{} of layer {}: {}", half % 2 == 0 ? "K" : "V", half / 2, reason)};
}

Result<ChannelCodes> codes_from(const Moments& moments,
                                const KvLayout& layout,
                                size_t half,
                                const Coarseness& coarseness) {
  size_t row_channels = padded_channels(layout.num_kv_heads, layout.head_dim);
  ChannelCodes codes{std::vector<float>(row_channels, 0.0f), std::vector<float>(row_channels, 1.0f),
                     std::vector<uint8_t>(row_channels, kZeros), 1.0f};
  auto count = static_cast<double>(moments.count);
  std::vector<double> deviations;
  double variance_sum = 0;
  double square_sum = 0;
  for (size_t c = 0; c < moments.sums.size(); ++c) {
    double mean = moments.sums[c] / count;
    double variance = std::max(moments.squares[c] / count - mean * mean, 0.0);
    codes.means[c] = static_cast<float>(mean);
    deviations.push_back(std::sqrt(variance));
    variance_sum += variance;
    square_sum += moments.squares[c] / count;
  }
  auto channels = static_cast<double>(deviations.size());
  double size = std::sqrt(square_sum / channels);
  double typical = std::sqrt(variance_sum / channels);
  if (!std::isfinite(size)) return unfit(half, "values that are not finite");
  // No mean is more than sqrt(channels) times the size, no step more than so many times the size.
  double largest = std::max<double>(std::sqrt(channels), kMostStepFactor);
  if (size * largest > kLargestTableValue)
    return unfit(half, fmt::format("values of size {:.3g} are too large", size));
  if (typical <= std::max(kSmallestSpread, kSmallestShare * size))
    return unfit(half, fmt::format("values of size {:.3g} spread by {:.3g} only", size, typical));
  double usual = (half % 2 == 0 ? coarseness.key_step : coarseness.value_step) * typical;
  double steps_squared = 0;
  for (size_t c = 0; c < deviations.size(); ++c) {
    size_t place = half * deviations.size() + c;
    double step = coarseness.factors.empty() ? usual : usual * coarseness.factors[place];
    double spread = deviations[c] / step;
    codes.steps[c] = static_cast<float>(step);
    codes.distributions[c] = distribution_for(spread);
    steps_squared += spread * spread;
  }
  codes.spread = static_cast<float>(std::sqrt(steps_squared / channels));
  return codes;
}

using Counts = std::array<double, kNumSymbols>;

// The largest value that a channel of this spread has a symbol for; what lies beyond is escaped.
int widest_symbol(double spread) {
  return static_cast<int>(std::min(std::ceil(6 * spread) + 4, double{kMaxSymbol}));
}

// What a normal distribution of this spread would count: enough to give every symbol a chance, the
// more the more symbols share what is counted.
Counts expected_counts(double spread) {
  int widest = widest_symbol(spread);
  double weight = 64 + 4 * widest;
  Counts counts{};
  double total = 0;
  for (int value = -widest; value <= widest; ++value) {
    double z = value / std::max(spread, 0.3);
    double& count = counts[static_cast<size_t>(value + kMaxSymbol)];
    count = std::exp(-0.5 * std::min(z * z, 100.0));
    total += count;
  }
  for (double& count : counts) count *= weight / total;
  return counts;
}

void count_symbols(const ChannelCodes& codes, KvHalf half, Row row, std::span<Counts> counts) {
  float scale = half == KvHalf::kKeys ? 1.0f : token_scales()[scale_of_row(codes, row)];
  for (size_t c = 0; c < row.size(); ++c) {
    float steps = (row[c] - codes.means[c]) / (codes.steps[c] * scale);
    Counts& of_kind = counts[codes.distributions[c]];
    auto value = static_cast<int>(std::nearbyint(std::clamp(steps, -999.f, 999.f)));
    bool has_symbol =
        std::abs(value) <= kMaxSymbol && of_kind[static_cast<size_t>(value + kMaxSymbol)] > 0;
    of_kind[static_cast<size_t>(has_symbol ? value + kMaxSymbol : kEscape)] += 1;
  }
}

}  // namespace

size_t num_step_factors(const KvLayout& layout) {
  return 2 * static_cast<size_t>(layout.num_layers) * static_cast<size_t>(layout.num_kv_heads) *
         static_cast<size_t>(layout.head_dim);
}

Result<CodecTables> learn_tables(const KvLayout& layout,
                                 const KeyRotation& rotation,
                                 std::span<const KvSample> samples,
                                 const Coarseness& coarseness) {
  check(coarseness.factors.empty() || coarseness.factors.size() == num_step_factors(layout),
        "a factor for every channel");
  Turns turns(rotation.frequencies);
  std::vector<Moments> moments(2 * static_cast<size_t>(layout.num_layers));
  std::vector<size_t> num_tokens(moments.size() / 2);  // of each layer, the exact ones too
  std::vector<std::set<uint64_t>> kinds(moments.size() / 2);
  auto turns_of = [&](const KvSample& sample) {
    bool is_turned = !std::ranges::binary_search(rotation.unturned_layers, sample.label.layer);
    return is_turned ? &turns : nullptr;
  };
  auto half_index = [](const KvSample& sample, KvHalf half) {
    return 2 * static_cast<size_t>(sample.label.layer) + static_cast<size_t>(half);
  };
  for (const KvSample& sample : samples) {
    auto layer = static_cast<size_t>(sample.label.layer);
    num_tokens[layer] += sample.values.size() / layout.layer_bytes() * kBlockTokens;
    for_each_row(layout, turns_of(sample), sample, [&](KvHalf half, Row row) {
      moments[half_index(sample, half)].add(row);
      if (half == KvHalf::kValues) kinds[layer].insert(xxhash64(std::as_bytes(row)));
    });
  }
  TableContents contents{.num_kv_heads = layout.num_kv_heads,
                         .head_dim = layout.head_dim,
                         .rotation = rotation,
                         .distributions = {},
                         .halves = {}};
  for (size_t i = 0; i < moments.size(); ++i) {
    if (num_tokens[i / 2] < kLearnedTokens)
      return unfit(i, fmt::format("{} tokens, {} are needed", num_tokens[i / 2], kLearnedTokens));
    if (kinds[i / 2].size() < kDistinctTokens)
      return unfit(i, fmt::format("{} different tokens, {} are needed", kinds[i / 2].size(),
                                  kDistinctTokens));
    Result<ChannelCodes> codes = codes_from(moments[i], layout, i, coarseness);
    if (!codes) return codes.error();
    contents.halves.push_back(std::move(*codes));
  }
  std::vector<Counts> counts;
  for (size_t i = 0; i < kNumDistributions; ++i) counts.push_back(expected_counts(spread_of(i)));
  for (const KvSample& sample : samples) {
    for_each_row(layout, turns_of(sample), sample, [&](KvHalf half, Row row) {
      count_symbols(contents.halves[half_index(sample, half)], half, row, counts);
    });
  }
  contents.distributions.push_back(Distribution::of_zeros());
  for (size_t i = 1; i < kNumDistributions; ++i)
    contents.distributions.push_back(Distribution::of_counts(counts[i]));
  return CodecTables(std::move(contents));
}

}  // namespace droidspeak
