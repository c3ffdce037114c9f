// Causal attention of many query rows on AMX's matrix unit. Everything stands on its side: scores
// are [keys][rows] and sums [head_dim][rows], so that the rows of a group are the lanes of vectors
// and nothing is added up across lanes.
//
// The unit multiplies bf16 and adds in f32. A float is split into two bf16 values, its rounding and
// what that leaves, and of the four products the three larger ones are taken: x*y is then off by
// about 2^-17 of itself. Keys lie in tiles at fixed positions, so that a row's sums have one order
// whatever the other rows are.
#if defined(DROIDSPEAK_ATTENTION_AMX_TOGGLE) == defined(HWY_TARGET_TOGGLE)
#ifdef DROIDSPEAK_ATTENTION_AMX_TOGGLE
#undef DROIDSPEAK_ATTENTION_AMX_TOGGLE
#else
#define DROIDSPEAK_ATTENTION_AMX_TOGGLE
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <hwy/highway.h>

#include "ops/cpu/kernels.h"
#include "ops/cpu/kernels/amx_tiles-inl.h"
#include "ops/cpu/kernels/transpose-inl.h"
#include "ops/cpu/kernels/vector_math-inl.h"

#if HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();

namespace droidspeak::cpu::HWY_NAMESPACE::amx {

inline constexpr int kKeys = 2 * kBlockTokens;  // of a tile of keys
inline constexpr int kRows = 2 * kTileRows;     // of a group
inline constexpr int kStep = kTilePairs * 2;    // bf16 values that a product sums
inline constexpr int kTaskRows = 8 * kRows;     // about so many share a tile of keys
inline constexpr float kNothing = -1e30f;
inline constexpr float kLog2OfE = 1.44269504f;

inline int64_t steps_of(int64_t size) {
  return (size + kStep - 1) / kStep;
}

// Key range of a tile: positions [begin, end) from a multiple of kKeys on.
struct KeyTile {
  int32_t begin;
  int32_t end;
};

// Two bf16 tiles of matrix operands: what is rounded, and what that leaves.
struct SplitTile {
  alignas(64) uint32_t high[kTileRows][kTilePairs];
  alignas(64) uint32_t low[kTileRows][kTilePairs];
};

// Memory of a task of at most `most_rows` rows.
struct Scratch {
  SplitTile* queries;  // [groups][2][steps of head_dim]: [pairs of head_dim][rows]
  SplitTile* keys;     // [kKeys / 16][steps of head_dim]: [keys][pairs of head_dim]
  SplitTile* values;   // [head_dim / 16][kKeys / kStep]: [head_dim][pairs of keys]
  SplitTile* weights;  // [2][kKeys / kStep]: [pairs of keys][rows]
  float* scores;       // [kKeys][kRows]
  float* sums;         // [groups][padded head_dim][kRows]
  float* maxima;       // [groups][kRows]
  float* totals;       // [groups][kRows]: sums of the exponentials
  int32_t* first;      // [groups][kRows]: first key that the row sees
  int32_t* last;       // [groups][kRows]: last key that the row sees

  Scratch(int64_t most_rows, int64_t head_dim, std::byte* memory) {
    const int64_t rows = padded_rows(most_rows);
    const int64_t steps = steps_of(head_dim);
    const auto aligned = (reinterpret_cast<uintptr_t>(memory) + 63) / 64 * 64;
    queries = reinterpret_cast<SplitTile*>(aligned);
    keys = queries + rows / kTileRows * steps;
    values = keys + kKeys / kTileRows * steps;
    weights = values + 2 * steps * (kKeys / kStep);
    scores = reinterpret_cast<float*>(weights + 2 * (kKeys / kStep));
    sums = scores + kKeys * kRows;
    maxima = sums + rows * steps * kStep;
    totals = maxima + rows;
    first = reinterpret_cast<int32_t*>(totals + rows);
    last = first + rows;
  }

  static size_t bytes(int64_t most_rows, int64_t head_dim) {
    const int64_t rows = padded_rows(most_rows);
    const int64_t steps = steps_of(head_dim);
    const int64_t tiles =
        (rows / kTileRows + kKeys / kTileRows + 2 * (kKeys / kStep)) * steps + 2 * (kKeys / kStep);
    const int64_t words = kKeys * kRows + rows * steps * kStep + 4 * rows;
    return static_cast<size_t>(tiles) * sizeof(SplitTile) +
           static_cast<size_t>(words) * sizeof(float) + 64;
  }

  static int64_t padded_rows(int64_t rows) { return (rows + kRows - 1) / kRows * kRows; }
};

inline int32_t rows_of_task(const AttentionProblem& problem) {
  return std::max(1, kTaskRows / problem.group());
}

inline size_t scratch_bytes(const AttentionProblem& problem) {
  const int64_t most_rows = static_cast<int64_t>(rows_of_task(problem)) * problem.group();
  return Scratch::bytes(most_rows, problem.kv.head_dim);
}

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
        steps_(steps_of(problem.kv.head_dim)),
        num_rows_(static_cast<int64_t>(task.end - task.begin) * group_) {}

  void run() {
    const TileSession session;
    load_queries();
    const int32_t begin = problem_.first_key(position_of(0));
    const int32_t end = position_of(num_rows_ - 1) + 1;
    for (int32_t key = begin / kKeys * kKeys; key < end; key += kKeys) {
      const KeyTile tile{key, std::min(key + kKeys, end)};
      load_tile(tile);
      for (int64_t row = 0; row < num_rows_; row += kRows) attend(tile, row);
    }
    store_rows();
  }

 private:
  using D = hn::FixedTag<float, kTileRows>;
  using V = hn::Vec<D>;

  // Keys of the tile, in whole steps, that some row of a group sees; kEdge: not all rows see all.
  struct Range {
    int32_t begin;
    int32_t end;
    bool has_edge;
  };

  int32_t position_of(int64_t row) const {
    return task_.slice->position(task_.begin + static_cast<int32_t>(row / group_));
  }

  int64_t row_in_batch(int64_t row) const {
    return task_.slice->first_row + task_.begin + row / group_;
  }

  int64_t column_of(int64_t row) const { return (task_.kv_head * group_ + row % group_) * dim_; }

  SplitTile* queries_of(int64_t first_row, int half) const {
    return scratch_.queries + (first_row / kRows * 2 + half) * steps_;
  }

  float* sums_of(int64_t first_row) const { return scratch_.sums + first_row * steps_ * kStep; }

  void load_queries() {
    const float scale = problem_.options.scale * kLog2OfE;
    const int64_t padded_rows = Scratch::padded_rows(num_rows_);
    for (int64_t row = 0; row < padded_rows; row += kTileRows) {
      for (int64_t step = 0; step < steps_; ++step) {
        SplitTile natural;
        for (int64_t i = 0; i < kTileRows; ++i) {
          if (row + i < num_rows_) {
            const float* query = problem_.qkv.f32_row(row_in_batch(row + i)) + column_of(row + i);
            split_row(query, step, scale, natural, i);
          } else {
            clear_row(natural, i);
          }
        }
        SplitTile& to =
            queries_of(row / kRows * kRows, static_cast<int>(row % kRows / kTileRows))[step];
        transpose(natural.high, to.high);
        transpose(natural.low, to.low);
      }
    }
    for (int64_t row = 0; row < padded_rows; ++row) {
      const int32_t position = position_of(std::min(row, num_rows_ - 1));
      scratch_.first[row] = problem_.first_key(position);
      scratch_.last[row] = position;
    }
    std::fill_n(scratch_.sums, padded_rows * steps_ * kStep, 0.0f);
    for (int64_t row = 0; row < padded_rows; ++row)
      scratch_.maxima[row] = problem_.sink(task_.kv_head * group_ + row % group_);
    std::fill_n(scratch_.totals, padded_rows, problem_.options.sinks == nullptr ? 0.0f : 1.0f);
  }

  // Values [step * kStep, + kStep) of a row of head_dim values, times `scale`; zeros behind them.
  template <class T>
  void split_row(const T* row, int64_t step, float scale, SplitTile& to, int64_t i) const {
    for (int half = 0; half < 2; ++half) {
      const Split split = split_floats(load_part(row, step * kStep + half * kTileRows, scale));
      store_words(split.high, reinterpret_cast<uint16_t*>(to.high[i]) + half * kTileRows);
      store_words(split.low, reinterpret_cast<uint16_t*>(to.low[i]) + half * kTileRows);
    }
  }

  template <class T>
  __m512 load_part(const T* row, int64_t begin, float scale) const {
    const D d;
    const int64_t count = std::min<int64_t>(kTileRows, dim_ - begin);
    if (count <= 0) return _mm512_setzero_ps();
    const V values =
        count == kTileRows ? load_as_float(d, row + begin) : load_first(d, row + begin, count);
    return hn::Mul(values, hn::Set(d, scale)).raw;
  }

  static void clear_row(SplitTile& tile, int64_t i) {
    _mm512_store_si512(tile.high[i], _mm512_setzero_si512());
    _mm512_store_si512(tile.low[i], _mm512_setzero_si512());
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

  // A key's or a value's row in the cache.
  template <class T>
  struct CacheRow {
    const T* values;
    float scale;
  };

  template <class T>
  CacheRow<T> row_at(const void* cache, const float* scales, int32_t position) const {
    const KvLayerView& kv = problem_.kv;
    const int32_t block = task_.slice->blocks[static_cast<size_t>(position / kBlockTokens)];
    const int64_t offset = kv.offset(block, task_.kv_head) + position % kBlockTokens * dim_;
    return {static_cast<const T*>(cache) + offset,
            scales == nullptr ? 1.0f : scales[offset / dim_]};
  }

  template <class T>
  void load_tile(KeyTile tile) const {
    const KvLayerView& kv = problem_.kv;
    const int32_t num_keys = (tile.end - tile.begin + kStep - 1) / kStep * kStep;
    for (int32_t key = 0; key < num_keys; ++key) {
      SplitTile* to = scratch_.keys + key / kTileRows * steps_;
      const bool is_there = tile.begin + key < tile.end;
      const CacheRow<T> row =
          is_there ? row_at<T>(kv.k, kv.k_scale, tile.begin + key) : CacheRow<T>{};
      for (int64_t step = 0; step < steps_; ++step) {
        if (is_there) {
          split_row(row.values, step, row.scale, to[step], key % kTileRows);
        } else {
          clear_row(to[step], key % kTileRows);
        }
      }
    }
    for (int32_t key = 0; key < num_keys; key += kStep) {
      for (int64_t block = 0; block < 2 * steps_; ++block)
        load_values<T>(tile, key, block, scratch_.values[block * (kKeys / kStep) + key / kStep]);
    }
  }

  // kStep keys from `key` on, 16 of their values: pairs of keys become the columns.
  template <class T>
  void load_values(KeyTile tile, int32_t key, int64_t block, SplitTile& to) const {
    const KvLayerView& kv = problem_.kv;
    SplitTile pairs;
    for (int32_t pair = 0; pair < kTilePairs; ++pair) {
      Split split[2] = {};
      for (int i = 0; i < 2; ++i) {
        const int32_t position = tile.begin + key + 2 * pair + i;
        if (position >= tile.end) continue;
        const CacheRow<T> row = row_at<T>(kv.v, kv.v_scale, position);
        split[i] = split_floats(load_part(row.values, block * kTileRows, row.scale));
      }
      _mm512_store_si512(pairs.high[pair], interleave(split[0].high, split[1].high));
      _mm512_store_si512(pairs.low[pair], interleave(split[0].low, split[1].low));
    }
    transpose(pairs.high, to.high);
    transpose(pairs.low, to.low);
  }

  Range range_of(KeyTile tile, int64_t first_row) const {
    const int32_t* first = scratch_.first + first_row;
    const int32_t* last = scratch_.last + first_row;
    const int32_t begin = std::max(0, first[0] - tile.begin) / kStep * kStep;
    const int32_t seen = std::min(tile.end, last[kRows - 1] + 1) - tile.begin;
    const int32_t end = (seen + kStep - 1) / kStep * kStep;
    const bool all_see_all =
        first[kRows - 1] <= tile.begin + begin && last[0] >= tile.begin + end - 1;
    return {begin, end, !all_see_all};
  }

  // One group of rows over one tile of keys.
  void attend(KeyTile tile, int64_t first_row) const {
    const Range range = range_of(tile, first_row);
    if (range.begin >= range.end) return;
    for (int32_t key = range.begin; key < range.end; key += kStep) score(first_row, key);
    for (int half = 0; half < 2; ++half) {
      if (problem_.options.soft_cap > 0) cap(range, half);
      if (range.has_edge) {
        soften<true>(tile, range, first_row, half);
      } else {
        soften<false>(tile, range, first_row, half);
      }
    }
    for (int64_t block = 0; block < 2 * steps_; block += 2) add_values(range, first_row, block);
  }

  // Scores of kStep keys: two tiles of keys times two of rows.
  void score(int64_t first_row, int32_t key) const {
    const SplitTile* keys[] = {scratch_.keys + key / kTileRows * steps_,
                               scratch_.keys + (key / kTileRows + 1) * steps_};
    const SplitTile* queries[] = {queries_of(first_row, 0), queries_of(first_row, 1)};
    zero_accumulators();
    const bool has_low_keys = problem_.kv.dtype != DType::kBF16;
    for (int64_t step = 0; step < steps_; ++step) {
      load_right(queries[0][step].high, queries[1][step].high);
      if (has_low_keys) {
        load_left(keys[0][step].low, keys[1][step].low);
        multiply_bf16();
      }
      load_left(keys[0][step].high, keys[1][step].high);
      multiply_bf16();
      load_right(queries[0][step].low, queries[1][step].low);
      multiply_bf16();
    }
    float* scores = scratch_.scores + key * kRows;
    store_accumulators(scores, scores + kTileRows * kRows, kRows);
  }

  // Scores in units of log2(e) are capped where the model caps them.
  void cap(Range range, int half) const {
    const D d;
    for (int32_t key = range.begin; key < range.end; ++key) {
      float* scores = scratch_.scores + key * kRows + half * kTileRows;
      hn::StoreU(soft_capped(d, hn::LoadU(d, scores), problem_.options.soft_cap * kLog2OfE), d,
                 scores);
    }
  }

  // Which rows of a half see a key.
  struct Sight {
    __m512i first;
    __m512i last;

    HWY_INLINE __mmask16 of(int32_t key) const {
      const __m512i position = _mm512_set1_epi32(key);
      return _mm512_cmple_epi32_mask(first, position) & _mm512_cmpge_epi32_mask(last, position);
    }
  };

  // Scores become weights of the keys.
  template <bool kEdge>
  void soften(KeyTile tile, Range range, int64_t first_row, int half) const {
    const D d;
    const int64_t row = first_row + half * kTileRows;
    const float* scores = scratch_.scores + half * kTileRows;
    const Sight sight{_mm512_loadu_si512(scratch_.first + row),
                      _mm512_loadu_si512(scratch_.last + row)};
    auto score_of = [&](int32_t key) {
      const V score = hn::LoadU(d, scores + key * kRows);
      if constexpr (!kEdge) return score;
      return V{_mm512_mask_mov_ps(_mm512_set1_ps(kNothing), sight.of(tile.begin + key), score.raw)};
    };
    const V before = hn::LoadU(d, scratch_.maxima + row);
    V maximum = before;
    V other = before;
    for (int32_t key = range.begin; key < range.end; key += 2) {
      maximum = hn::Max(maximum, score_of(key));
      other = hn::Max(other, score_of(key + 1));
    }
    maximum = hn::Max(maximum, other);
    if (!hn::AllFalse(d, hn::Gt(maximum, before))) raise_maximum(first_row, half, maximum);
    auto weight_of = [&](int32_t key) {
      const V weight = exp2(d, hn::Sub(hn::LoadU(d, scores + key * kRows), maximum));
      if constexpr (!kEdge) return weight;
      return V{_mm512_maskz_mov_ps(sight.of(tile.begin + key), weight.raw)};
    };
    V even = hn::Zero(d);
    V odd = hn::Zero(d);
    for (int32_t key = range.begin; key < range.end; key += 2) {
      const V a = weight_of(key);
      const V b = weight_of(key + 1);
      even = hn::Add(even, a);
      odd = hn::Add(odd, b);
      SplitTile& to = scratch_.weights[half * (kKeys / kStep) + key / kStep];
      split_pair(a.raw, b.raw, to.high[key % kStep / 2], to.low[key % kStep / 2]);
    }
    float* total = scratch_.totals + row;
    hn::StoreU(hn::Add(hn::LoadU(d, total), hn::Add(even, odd)), d, total);
  }

  // Raises the running maxima and rescales what was summed under the old ones.
  void raise_maximum(int64_t first_row, int half, V maximum) const {
    const D d;
    const int64_t row = first_row + half * kTileRows;
    const V factor = exp2(d, hn::Sub(hn::LoadU(d, scratch_.maxima + row), maximum));
    hn::StoreU(maximum, d, scratch_.maxima + row);
    float* total = scratch_.totals + row;
    hn::StoreU(hn::Mul(hn::LoadU(d, total), factor), d, total);
    float* sums = sums_of(first_row) + half * kTileRows;
    for (int64_t i = 0; i < steps_ * kStep; ++i, sums += kRows)
      hn::StoreU(hn::Mul(hn::LoadU(d, sums), factor), d, sums);
  }

  // Two blocks of 16 values, from `block` on.
  void add_values(Range range, int64_t first_row, int64_t block) const {
    constexpr int kSteps = kKeys / kStep;
    const SplitTile* values[] = {scratch_.values + block * kSteps,
                                 scratch_.values + (block + 1) * kSteps};
    const SplitTile* weights[] = {scratch_.weights, scratch_.weights + kSteps};
    float* sums = sums_of(first_row) + block * kTileRows * kRows;
    load_accumulators(sums, sums + kTileRows * kRows, kRows);
    const bool has_low_values = problem_.kv.dtype != DType::kBF16;
    for (int32_t step = range.begin / kStep; step < range.end / kStep; ++step) {
      load_right(weights[0][step].high, weights[1][step].high);
      if (has_low_values) {
        load_left(values[0][step].low, values[1][step].low);
        multiply_bf16();
      }
      load_left(values[0][step].high, values[1][step].high);
      multiply_bf16();
      load_right(weights[0][step].low, weights[1][step].low);
      multiply_bf16();
    }
    store_accumulators(sums, sums + kTileRows * kRows, kRows);
  }

  void store_rows() const {
    const D d;
    for (int64_t row = 0; row < num_rows_; row += kTileRows) {
      const V factor = hn::Div(hn::Set(d, 1.0f), hn::LoadU(d, scratch_.totals + row));
      const float* sums = sums_of(row / kRows * kRows) + row % kRows;
      for (int64_t column = 0; column < dim_; column += kTileRows) {
        alignas(64) uint32_t upright[kTileRows][kTilePairs];
        alignas(64) uint32_t rows[kTileRows][kTilePairs];
        for (int64_t i = 0; i < kTileRows; ++i) {
          const V sum = hn::LoadU(d, sums + (column + i) * kRows);
          _mm512_store_ps(reinterpret_cast<float*>(upright[i]), hn::Mul(sum, factor).raw);
        }
        transpose(upright, rows);
        const int64_t count = std::min<int64_t>(kTileRows, dim_ - column);
        for (int64_t i = 0; i < std::min<int64_t>(kTileRows, num_rows_ - row); ++i) {
          float* to = problem_.out.f32_row(row_in_batch(row + i)) + column_of(row + i) + column;
          std::memcpy(to, rows[i], static_cast<size_t>(count) * sizeof(float));
        }
      }
    }
  }

  const AttentionProblem& problem_;
  const PrefillTask& task_;
  const Scratch scratch_;
  const int64_t group_;
  const int64_t dim_;
  const int64_t steps_;
  const int64_t num_rows_;
};

}  // namespace droidspeak::cpu::HWY_NAMESPACE::amx

HWY_AFTER_NAMESPACE();

#endif

#endif
