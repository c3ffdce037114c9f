// Causal attention of many query rows with AVX-512 VNNI. Everything stands on its side: scores are
// [keys][rows] and sums [head_dim][rows], so that the rows of a group are the lanes of vectors,
// keys and values are used as they lie, and nothing is added up across lanes.
//
// Keys are taken in tiles, the blocks of the cache. Queries and keys are multiplied as integers of
// 16 bits, and so are weights and values where a row sees all of a tile. Where it sees a part of
// one, they are floats: the units of a tile's values depend on all of them, and those behind the
// row may not be known yet. So a row's sums of finite values have the same bits whatever the other
// rows are, and however a prompt is cut.
#if defined(DROIDSPEAK_ATTENTION_PAIRS_TOGGLE) == defined(HWY_TARGET_TOGGLE)
#ifdef DROIDSPEAK_ATTENTION_PAIRS_TOGGLE
#undef DROIDSPEAK_ATTENTION_PAIRS_TOGGLE
#else
#define DROIDSPEAK_ATTENTION_PAIRS_TOGGLE
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <hwy/highway.h>

#include "ops/cpu/kernels.h"
#include "ops/cpu/kernels/pair_products-inl.h"
#include "ops/cpu/kernels/pair_scratch-inl.h"
#include "ops/cpu/kernels/pair_tile-inl.h"
#include "ops/cpu/kernels/transpose-inl.h"
#include "ops/cpu/kernels/vector_math-inl.h"

#if HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();

namespace droidspeak::cpu::HWY_NAMESPACE::pairs {

inline constexpr float kLog2OfE = 1.44269504f;

// Positions [begin, end) from a multiple of kKeys on.
struct KeyTile {
  int32_t begin;
  int32_t end;
};

// Keys [begin, end) of a tile, in whole blocks.
struct Range {
  int32_t begin;
  int32_t end;
};

class PrefillRows {
 public:
  PrefillRows(const AttentionProblem& problem, const PrefillTask& task)
      : problem_(problem),
        task_(task),
        scratch_(static_cast<int64_t>(task.end - task.begin) * problem.group(),
                 problem.kv.head_dim,
                 task.scratch),
        group_(problem.group()),
        dim_(problem.kv.head_dim),
        width_(Scratch::width_of(problem.kv.head_dim)),
        num_rows_(static_cast<int64_t>(task.end - task.begin) * group_) {}

  void run() {
    load_queries();
    const int32_t begin = problem_.first_key(position_of(0));
    const int32_t end = position_of(num_rows_ - 1) + 1;
    for (int32_t key = begin / kKeys * kKeys; key < end; key += kKeys) {
      const KeyTile tile{key, std::min(key + kKeys, end)};
      load_tile(tile);
      for (int64_t row = 0; row < num_rows_; row += kRows) {
        if (some_see_all(tile, row, kRows)) attend_in_pairs(tile, row);
        if (some_see_a_part(tile, row, kRows)) attend_in_floats(tile, row);
      }
    }
    store_rows();
  }

 private:
  int32_t position_of(int64_t row) const {
    return task_.slice->position(task_.begin + static_cast<int32_t>(row / group_));
  }

  int64_t padded_rows() const { return round_up_to(num_rows_, kRows); }

  const float* query_of(int64_t row) const {
    return problem_.qkv.f32_row(task_.slice->first_row + task_.begin + row / group_) +
           (task_.kv_head * group_ + row % group_) * dim_;
  }

  float* sums_of(int64_t first_row) const { return scratch_.sums + first_row * width_; }

  size_t vectors_of_group(int64_t first_row) const {
    const int64_t rows = std::min<int64_t>(kRows, num_rows_ - first_row);
    return static_cast<size_t>((rows + kLanes - 1) / kLanes);
  }

  // Rows behind the last one repeat it.
  void load_queries() const {
    for (int64_t row = 0; row < padded_rows(); ++row) {
      const int64_t source = std::min(row, num_rows_ - 1);
      scratch_.first[row] = problem_.first_key(position_of(source));
      scratch_.last[row] = position_of(source);
      scratch_.maxima[row] = problem_.sink(task_.kv_head * group_ + source % group_);
    }
    std::fill_n(scratch_.sums, padded_rows() * width_, 0.0f);
    std::fill_n(scratch_.totals, padded_rows(), problem_.options.sinks == nullptr ? 0.0f : 1.0f);
    for (int64_t row = 0; row < num_rows_; row += kLanes) load_queries_of(row);
  }

  // A vector of rows from `first_row` on.
  void load_queries_of(int64_t first_row) const {
    int16_t* rounded = scratch_.tile.keys;  // no keys are there yet
    for (int64_t i = 0; i < kLanes; ++i) {
      const float* query = query_of(std::min(first_row + i, num_rows_ - 1));
      const float unit = round_row(query, dim_, width_, rounded + i * width_);
      scratch_.query_units[first_row + i] = unit * problem_.options.scale * kLog2OfE;
    }
    int32_t* to = scratch_.query_pairs + first_row / kRows * kRows * width_ / 2 + first_row % kRows;
    for (int64_t begin = 0; begin < width_; begin += 2 * kLanes) {
      alignas(64) uint32_t natural[kLanes][kLanes];
      alignas(64) uint32_t turned[kLanes][kLanes];
      for (int64_t i = 0; i < kLanes; ++i)
        std::memcpy(natural[i], rounded + i * width_ + begin, sizeof natural[i]);
      transpose(natural, turned);
      for (int64_t i = 0; i < kLanes; ++i)
        std::memcpy(to + (begin / 2 + i) * kRows, turned[i], sizeof turned[i]);
    }
  }

  bool sees_all(KeyTile tile, int64_t row) const {
    return scratch_.first[row] <= tile.begin && scratch_.last[row] >= tile.begin + kKeys - 1;
  }

  bool sees_some(KeyTile tile, int64_t row) const {
    return scratch_.first[row] < tile.end && scratch_.last[row] >= tile.begin;
  }

  bool all_see_all(KeyTile tile, int64_t first_row, int64_t count) const {
    return sees_all(tile, first_row) && sees_all(tile, first_row + count - 1);
  }

  bool some_see_all(KeyTile tile, int64_t first_row, int64_t count) const {
    for (int64_t row = first_row; row < first_row + count; ++row)
      if (sees_all(tile, row)) return true;
    return false;
  }

  // Rows far apart, as those that are looked at, may see all of it and nothing.
  bool some_see_a_part(KeyTile tile, int64_t first_row, int64_t count) const {
    if (all_see_all(tile, first_row, count)) return false;
    for (int64_t row = first_row; row < first_row + count; ++row)
      if (sees_some(tile, row) && !sees_all(tile, row)) return true;
    return false;
  }

  void load_tile(KeyTile tile) const {
    switch (problem_.kv.dtype) {
      case DType::kF16:
        return load_tile<hwy::float16_t>(tile);
      case DType::kBF16:
        return load_tile<hwy::bfloat16_t>(tile);
      default:
        return load_tile<int8_t>(tile);
    }
  }

  template <class T>
  void load_tile(KeyTile tile) const {
    const KvLayerView& kv = problem_.kv;
    const int32_t block = task_.slice->blocks[static_cast<size_t>(tile.begin / kBlockTokens)];
    const int64_t offset = kv.offset(block, task_.kv_head);
    auto rows_of = [&](const void* cache, const float* scales) {
      return CacheRows<T>{static_cast<const T*>(cache) + offset,
                          scales == nullptr ? nullptr : scales + offset / dim_, dim_};
    };
    const int32_t count = tile.end - tile.begin;
    const CacheRows<T> values = rows_of(kv.v, kv.v_scale);
    round_keys(rows_of(kv.k, kv.k_scale), count, width_, scratch_.tile);
    if (some_see_all(tile, 0, padded_rows())) round_values(values, width_, scratch_.tile);
    if (some_see_a_part(tile, 0, padded_rows())) load_floats(values, count);
  }

  // Zeros behind the last row.
  template <class T>
  void load_floats(CacheRows<T> values, int64_t count) const {
    float* to = scratch_.values;
    for (int64_t key = 0; key < round_up_to(count, kBlock); ++key, to += width_) {
      for (int64_t begin = 0; begin < width_; begin += kLanes)
        hn::StoreU(key < count ? values.part(key, begin) : hn::Zero(D()), D(), to + begin);
    }
  }

  // Scores of a group of rows and the keys [begin, end) of the tile.
  void score_keys(int64_t first_row, Range range) const {
    const size_t vectors = vectors_of_group(first_row);
    const Queries queries{scratch_.query_pairs + first_row * width_ / 2,
                          scratch_.query_units + first_row};
    for (int32_t key = range.begin; key < range.end; key += kBlock)
      kScore[vectors - 1](scratch_.tile, key, width_, queries, scratch_.scores);
    if (problem_.options.soft_cap > 0) cap(vectors, range);
  }

  // Scores in units of log2(e) are capped where the model caps them.
  void cap(size_t vectors, Range range) const {
    const D d;
    const float limit = problem_.options.soft_cap * kLog2OfE;
    for (int32_t key = range.begin; key < range.end; ++key) {
      float* scores = scratch_.scores + key * kRows;
      for (size_t i = 0; i < vectors; ++i, scores += kLanes)
        hn::StoreU(soft_capped(d, hn::LoadU(d, scores), limit), d, scores);
    }
  }

  // A group of rows over a tile that some of them see all of; nothing that is
  // finite changes for the others.
  void attend_in_pairs(KeyTile tile, int64_t first_row) const {
    const size_t vectors = vectors_of_group(first_row);
    score_keys(first_row, {0, kKeys});
    for (size_t i = 0; i < vectors; ++i)
      soften_in_pairs(tile, first_row, static_cast<int64_t>(i) * kLanes);
    for (int64_t channel = 0; channel < dim_; channel += kBlock) {
      kAddValues[vectors - 1](scratch_.tile, channel, width_, scratch_.weights, sums_of(first_row));
    }
  }

  // Which rows of a vector see a key, or all keys of a tile.
  struct Sight {
    __m512i first;
    __m512i last;

    HWY_INLINE __mmask16 of(int32_t begin, int32_t end) const {
      return _mm512_cmple_epi32_mask(first, _mm512_set1_epi32(begin)) &
             _mm512_cmpge_epi32_mask(last, _mm512_set1_epi32(end - 1));
    }
  };

  Sight sight_of(int64_t row) const {
    return {_mm512_loadu_si512(scratch_.first + row), _mm512_loadu_si512(scratch_.last + row)};
  }

  // Raises the maxima of a vector of rows; returns what was summed under the old ones is multiplied
  // by.
  V raise_maxima(int64_t row, int64_t lane, V maximum) const {
    const D d;
    const V factor = exp2(d, hn::Sub(hn::LoadU(d, scratch_.maxima + row + lane), maximum));
    hn::StoreU(maximum, d, scratch_.maxima + row + lane);
    hn::StoreU(factor, d, scratch_.weights.factors + lane);
    return factor;
  }

  void add_total(int64_t row, V factor, V sum) const {
    float* total = scratch_.totals + row;
    hn::StoreU(hn::MulAdd(hn::LoadU(D(), total), factor, sum), D(), total);
  }

  static V largest_of(const float* scores) {
    const D d;
    V part[4];
    HWY_UNROLL(4)
    for (int i = 0; i < 4; ++i) part[i] = hn::LoadU(d, scores + i * kRows);
    for (int key = 4; key < kStep; key += 4) {
      HWY_UNROLL(4)
      for (int i = 0; i < 4; ++i)
        part[i] = hn::Max(part[i], hn::LoadU(d, scores + (key + i) * kRows));
    }
    return hn::Max(hn::Max(part[0], part[1]), hn::Max(part[2], part[3]));
  }

  // Scores of the rows first_row + lane and on become weights.
  void soften_in_pairs(KeyTile tile, int64_t first_row, int64_t lane) const {
    const D d;
    float* scores = scratch_.scores + lane;
    const __mmask16 rows = sight_of(first_row + lane).of(tile.begin, tile.begin + kKeys);
    const V before = hn::LoadU(d, scratch_.maxima + first_row + lane);
    V largest[kSteps];
    V maximum = before;
    for (int step = 0; step < kSteps; ++step) {
      largest[step] = largest_of(scores + step * kStep * kRows);
      maximum = hn::Max(maximum, largest[step]);
    }
    maximum = V{_mm512_mask_mov_ps(before.raw, rows, maximum.raw)};
    const V factor = raise_maxima(first_row, lane, maximum);
    V inverse[kSteps];
    for (int step = 0; step < kSteps; ++step)
      inverse[step] = soften_step(scores + step * kStep * kRows, largest[step]);
    V sum = hn::Zero(d);
    for (int step = 0; step < kSteps; ++step) {
      const V total = round_weights(scores + step * kStep * kRows, inverse[step],
                                    scratch_.weights.pairs + step * kStep / 2 * kRows + lane);
      const V power = exp2(d, hn::Sub(largest[step], maximum));
      const V unit{_mm512_maskz_div_ps(rows, power.raw, inverse[step].raw)};
      hn::StoreU(unit, d, scratch_.weights.units + step * kRows + lane);
      sum = hn::MulAdd(total, unit, sum);
    }
    add_total(first_row + lane, factor, sum);
  }

  // A group of rows over what they see of a tile; nothing changes for those that see all of it.
  void attend_in_floats(KeyTile tile, int64_t first_row) const {
    const int32_t seen = std::min(tile.end, scratch_.last[first_row + kRows - 1] + 1) - tile.begin;
    const Range range{std::max(0, scratch_.first[first_row] - tile.begin) / kBlock * kBlock,
                      static_cast<int32_t>(round_up_to(seen, kBlock))};
    if (range.begin >= range.end) return;
    const size_t vectors = vectors_of_group(first_row);
    score_keys(first_row, range);
    for (size_t i = 0; i < vectors; ++i)
      soften_in_floats(tile, range, first_row, static_cast<int64_t>(i) * kLanes);
    for (int64_t channel = 0; channel < dim_; channel += kBlock) {
      kAddFloatValues[vectors - 1](range.end - range.begin,
                                   scratch_.values + range.begin * width_ + channel, width_,
                                   scratch_.scores + range.begin * kRows, scratch_.weights.factors,
                                   sums_of(first_row) + channel * kRows);
    }
  }

  void soften_in_floats(KeyTile tile, Range range, int64_t first_row, int64_t lane) const {
    const D d;
    float* scores = scratch_.scores + lane;
    const Sight sight = sight_of(first_row + lane);
    const auto others = static_cast<__mmask16>(~sight.of(tile.begin, tile.begin + kKeys));
    auto seen_by = [&](int32_t key) {
      return static_cast<__mmask16>(sight.of(tile.begin + key, tile.begin + key + 1) & others);
    };
    const V before = hn::LoadU(d, scratch_.maxima + first_row + lane);
    V maximum = before;
    for (int32_t key = range.begin; key < range.end; ++key)
      maximum = V{_mm512_mask_max_ps(maximum.raw, seen_by(key), maximum.raw,
                                     hn::LoadU(d, scores + key * kRows).raw)};
    const V factor = raise_maxima(first_row, lane, maximum);
    V sums[2] = {hn::Zero(d), hn::Zero(d)};
    for (int32_t key = range.begin; key < range.end; ++key) {
      const V power = exp2(d, hn::Sub(hn::LoadU(d, scores + key * kRows), maximum));
      const V weight{_mm512_maskz_mov_ps(seen_by(key), power.raw)};
      sums[key % 2] = hn::Add(sums[key % 2], weight);
      hn::StoreU(weight, d, scores + key * kRows);
    }
    add_total(first_row + lane, factor, hn::Add(sums[0], sums[1]));
  }

  void store_rows() const {
    const D d;
    for (int64_t row = 0; row < num_rows_; row += kLanes) {
      const V factor = hn::Div(hn::Set(d, 1.0f), hn::LoadU(d, scratch_.totals + row));
      const float* sums = sums_of(row / kRows * kRows) + row % kRows;
      for (int64_t column = 0; column < dim_; column += kLanes) {
        alignas(64) uint32_t upright[kLanes][kLanes];
        alignas(64) uint32_t rows[kLanes][kLanes];
        for (int64_t i = 0; i < kLanes; ++i) {
          const V sum = hn::LoadU(d, sums + (column + i) * kRows);
          hn::StoreU(hn::Mul(sum, factor), d, reinterpret_cast<float*>(upright[i]));
        }
        transpose(upright, rows);
        const auto count = static_cast<size_t>(std::min<int64_t>(kLanes, dim_ - column));
        for (int64_t i = 0; i < std::min<int64_t>(kLanes, num_rows_ - row); ++i)
          std::memcpy(out_of(row + i) + column, rows[i], count * sizeof(float));
      }
    }
  }

  float* out_of(int64_t row) const {
    return problem_.out.f32_row(task_.slice->first_row + task_.begin + row / group_) +
           (task_.kv_head * group_ + row % group_) * dim_;
  }

  const AttentionProblem& problem_;
  const PrefillTask& task_;
  const Scratch scratch_;
  const int64_t group_;
  const int64_t dim_;
  const int64_t width_;
  const int64_t num_rows_;
};

}  // namespace droidspeak::cpu::HWY_NAMESPACE::pairs

HWY_AFTER_NAMESPACE();

#endif

#endif
