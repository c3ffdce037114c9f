#include "ops/cpu/attention.h"

#include <cmath>

#include <gtest/gtest.h>

#include "ops/cpu/kv_fixture.h"

namespace droidspeak::cpu {
namespace {

struct Sequence {
  int32_t first_position;
  int32_t num_rows;
  int32_t step = 1;  // between the positions of two rows

  std::vector<int32_t> positions() const { return positions_from(first_position, num_rows, step); }

  int32_t length() const { return positions().back() + 1; }
};

const std::vector<Sequence> kMixed = {{0, 150}, {299, 1}, {0, 1},      {100, 37},   {128, 1},
                                      {63, 2},  {127, 1}, {3, 50, 11}, {70, 2, 200}};

class AttentionTest : public testing::Test {
 protected:
  // A batch of sequences with random K and V up to each one's last position.
  struct Batch {
    using Change = void (*)(std::span<float> k, std::span<float> v, int32_t position);

    // `change`, or null: what is done to every K and V row of a head before it is stored.
    Batch(AttentionTest& test,
          const AttentionCase& shape,
          DType dtype,
          std::vector<Sequence> list,
          Change change = nullptr)
        : c(shape),
          sequences(std::move(list)),
          kv(*test.device_, dtype, c.num_kv_heads, c.head_dim, 200) {
      const int64_t heads = c.num_heads + 2 * c.num_kv_heads;
      columns = heads * c.head_dim;
      for (const Sequence& s : sequences) {
        blocks.push_back(kv.take_blocks(s.length()));
        fill(test, s.length(), blocks.back(), change);
        positions.push_back(s.positions());
        num_rows += s.num_rows;
      }
      qkv = random_floats(test.random_, num_rows * columns);
      int64_t row = 0;
      for (size_t i = 0; i < sequences.size(); ++i) {
        slices.push_back({row, sequences[i].num_rows, sequences[i].first_position, blocks[i]});
        if (sequences[i].step > 1) slices.back().positions = positions[i];
        row += sequences[i].num_rows;
      }
    }

    void fill(AttentionTest& test, int32_t tokens, const std::vector<int32_t>& ids, Change change) {
      auto ops = make_cpu_ops(*test.device_, 1);
      Floats rows = random_floats(test.random_, tokens * columns);
      for (int32_t p = 0; p < tokens; ++p) {
        float* k = rows.data() + p * columns + c.num_heads * c.head_dim;
        float* v = k + c.num_kv_heads * c.head_dim;
        const auto dim = static_cast<size_t>(c.head_dim);
        for (int32_t head = 0; change != nullptr && head < c.num_kv_heads; ++head)
          change({k + head * c.head_dim, dim}, {v + head * c.head_dim, dim}, p);
        k_floats.insert(k_floats.end(), k, v);
        v_floats.insert(v_floats.end(), v, v + c.num_kv_heads * c.head_dim);
      }
      const Floats table = identity_table(tokens, 2);
      const SequenceSlice slice{0, tokens, 0, ids};
      ops->rotate_and_store(view_of(rows, tokens, columns),
                            {.num_heads = c.num_heads,
                             .num_kv_heads = c.num_kv_heads,
                             .head_dim = c.head_dim,
                             .rotary_dim = 2,
                             .table = table.data()},
                            {&slice, 1}, kv.view());
    }

    Floats run(Ops& ops) { return run(ops, slices); }

    Floats run(Ops& ops, std::span<const SequenceSlice> some) {
      Floats out(static_cast<size_t>(num_rows * c.num_heads * c.head_dim), 0.0f);
      ops.attention(view_of(qkv, num_rows, columns), c.options(), some, kv.view(),
                    view_of(out, num_rows, c.num_heads * c.head_dim));
      return out;
    }

    Floats expected() {
      Floats out;
      for (const SequenceSlice& slice : slices) {
        Floats q;
        for (int32_t i = 0; i < slice.num_rows; ++i) {
          const float* row = qkv.data() + (slice.first_row + i) * columns;
          q.insert(q.end(), row, row + c.num_heads * c.head_dim);
        }
        const auto i = static_cast<size_t>(&slice - slices.data());
        const Floats rows = attention(c, q, kv.k_rows(slice.blocks, slice.length()),
                                      kv.v_rows(slice.blocks, slice.length()), positions[i]);
        out.insert(out.end(), rows.begin(), rows.end());
      }
      return out;
    }

    // Of a batch of one sequence, had K and V not been rounded.
    Floats expected_of_floats() const {
      Floats q;
      for (int64_t row = 0; row < num_rows; ++row) {
        const float* from = qkv.data() + row * columns;
        q.insert(q.end(), from, from + c.num_heads * c.head_dim);
      }
      return attention(c, q, k_floats, v_floats, positions[0]);
    }

    AttentionCase c;
    std::vector<Sequence> sequences;
    KvFixture kv;
    Floats k_floats;  // before they were stored
    Floats v_floats;
    int64_t columns = 0;
    int64_t num_rows = 0;
    std::vector<std::vector<int32_t>> blocks;
    std::vector<std::vector<int32_t>> positions;
    std::vector<SequenceSlice> slices;
    Floats qkv;
  };

  using Tolerance = float (*)(InstructionSet, DType);

  // With the usual scale, for every dtype of K/V and on every instruction set.
  void expect_close(std::span<const AttentionCase> shapes, Tolerance tolerance) {
    for (AttentionCase c : shapes) {
      c.scale = 1 / std::sqrt(static_cast<float>(c.head_dim));
      for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
        Batch batch(*this, c, dtype, kMixed);
        const Floats expected = batch.expected();
        for (const NamedOps& named : all_ops(*device_, 2)) {
          SCOPED_TRACE(testing::Message()
                       << name_of(named.set) << " " << name_of(dtype) << " heads " << c.num_heads
                       << "/" << c.num_kv_heads << " dim " << c.head_dim);
          expect_near(batch.run(*named.ops), expected, tolerance(named.set, dtype));
        }
      }
    }
  }

  std::mt19937 random_{13};
  std::unique_ptr<Device> device_ = make_cpu_device();
};

double rms_of_difference(const Floats& a, const Floats& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += difference * difference;
  }
  return std::sqrt(sum / static_cast<double>(a.size()));
}

// The matrix unit takes three of the four products of floats in two bf16 parts each.
float tolerance_of(InstructionSet set) {
  return set == InstructionSet::kAmx ? 2e-5f : 3e-6f;
}

TEST_F(AttentionTest, EqualsReferenceForEveryHeadShapeAndDtype) {
  const AttentionCase shapes[] = {{9, 3, 64}, {4, 4, 128}, {8, 1, 80},  {5, 1, 96},  {2, 1, 8},
                                  {6, 2, 16}, {7, 7, 24},  {12, 2, 40}, {8, 4, 256}, {6, 3, 20},
                                  {5, 1, 6},  {4, 2, 2},   {3, 3, 90},  {300, 1, 4}};
  expect_close(shapes, [](InstructionSet set, DType) { return tolerance_of(set); });
}

TEST_F(AttentionTest, SeesOnlyTheSlidingWindow) {
  for (int32_t window : {1, 5, 64, 100, 200, 1000}) {
    Batch batch(*this, {4, 2, 32, 0.2f, window}, DType::kF32,
                {{0, 290}, {299, 1}, {3, 1}, {150, 80}, {140, 1}, {2, 40, 9}});
    const Floats expected = batch.expected();
    for (const NamedOps& named : all_ops(*device_, 2)) {
      SCOPED_TRACE(testing::Message() << name_of(named.set) << " window " << window);
      expect_near(batch.run(*named.ops), expected, 3e-6f);
    }
  }
}

TEST_F(AttentionTest, CapsScores) {
  for (float cap : {0.5f, 4.0f, 50.0f}) {
    for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
      Batch batch(*this, {6, 2, 40, 0.7f, 100, cap}, dtype, kMixed);
      const Floats expected = batch.expected();
      for (const NamedOps& named : all_ops(*device_, 2)) {
        SCOPED_TRACE(testing::Message()
                     << name_of(named.set) << " " << name_of(dtype) << " cap " << cap);
        expect_near(batch.run(*named.ops), expected, 4 * tolerance_of(named.set));
      }
    }
  }
}

// One sink far below all scores, one among them, one that takes nearly everything.
TEST_F(AttentionTest, LooksAtSinksToo) {
  for (int32_t window : {0, 70}) {
    for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
      Batch batch(*this, {6, 2, 40, 0.7f, window, 0, {-200, 0.5f, 3, -1, 60, 1000}}, dtype, kMixed);
      const Floats expected = batch.expected();
      for (const NamedOps& named : all_ops(*device_, 2)) {
        SCOPED_TRACE(testing::Message()
                     << name_of(named.set) << " " << name_of(dtype) << " window " << window);
        expect_near(batch.run(*named.ops), expected, 4 * tolerance_of(named.set));
      }
    }
  }
}

TEST_F(AttentionTest, SurvivesLargeScores) {
  Batch batch(*this, {3, 1, 64, 40.0f, 0}, DType::kF16, {{0, 140}, {200, 1}});
  const Floats expected = batch.expected();
  for (const NamedOps& named : all_ops(*device_, 2))
    expect_near(batch.run(*named.ops), expected, 1e-3f);
}

// Where a prompt's attention need not be exact it is off by up to 3e-4 of the largest output, which
// is less than half of what f16 does to one K/V value of that size.
constexpr float kFastTolerance = 3e-4f;

TEST_F(AttentionTest, FastStaysCloseForEveryHeadShapeAndDtype) {
  AttentionCase shapes[] = {{9, 3, 64},
                            {4, 4, 128},
                            {8, 1, 80},
                            {5, 1, 96},
                            {2, 1, 8},
                            {12, 2, 40, 0, 100},
                            {8, 4, 256},
                            {6, 3, 20, 0, 70, 4.0f},
                            {5, 1, 6},
                            {4, 2, 2, 0, 0, 0, {-200, 0.5f, 60, 3}},
                            {3, 3, 90, 0, 0, 50},
                            {300, 1, 4}};
  for (AttentionCase& c : shapes) c.precision = Precision::kFast;
  expect_close(shapes, [](InstructionSet set, DType dtype) {
    bool has_pairs = set == InstructionSet::kAvx512Vnni && dtype != DType::kF32;
    return has_pairs ? kFastTolerance : 4 * tolerance_of(set);
  });
}

// What models do to K and V of a head at a position.
struct HardCase {
  const char* name;
  void (*change)(std::span<float> k, std::span<float> v, int32_t position);
};

const HardCase kHardCases[] = {
    {"one key takes most",
     [](auto k, auto, int32_t p) {
       for (float& x : k) x *= p == 40 ? 6.0f : 1.0f;
     }},
    {"small weights in a long tail",
     [](auto k, auto, int32_t p) {
       for (float& x : k) x *= p == 3 ? 3.0f : 0.05f;
     }},
    {"a channel of K apart", [](auto k, auto, int32_t) { k[5] += 20; }},
    {"a channel of V apart", [](auto, auto v, int32_t) { v[5] *= 20; }},
    {"a token of V apart",
     [](auto, auto v, int32_t p) {
       for (float& x : v) x *= p % 97 == 0 ? 50.0f : 1.0f;
     }},
};

// Beside what rounding K/V to f16 does to the result, fast attention is at most half as much.
TEST_F(AttentionTest, FastAddsLessThanTheCacheDoes) {
  for (const HardCase& hard : kHardCases) {
    SCOPED_TRACE(hard.name);
    const AttentionCase c{6, 2, 64, 0.125f, 0, 0, {}, Precision::kFast};
    Batch batch(*this, c, DType::kF16, {{0, 600}}, hard.change);
    const Floats expected = batch.expected();
    const Floats unrounded = batch.expected_of_floats();
    for (const NamedOps& named : all_ops(*device_, 2)) {
      SCOPED_TRACE(name_of(named.set));
      EXPECT_LT(rms_of_difference(batch.run(*named.ops), expected),
                0.5 * rms_of_difference(expected, unrounded));
    }
  }
}

std::vector<AttentionCase> windowed() {
  std::vector<AttentionCase> cases;
  for (Precision precision : {Precision::kExact, Precision::kFast}) {
    for (int32_t window : {0, 70, 150})
      cases.push_back({6, 2, 64, 0.125f, window, 0, {}, precision});
  }
  return cases;
}

TEST_F(AttentionTest, DoesNotDependOnThreadsOrBatch) {
  for (auto [dtype, precision] : {std::pair(DType::kF16, Precision::kExact),
                                  {DType::kI8, Precision::kExact},
                                  {DType::kF16, Precision::kFast},
                                  {DType::kI8, Precision::kFast}}) {
    Batch batch(*this, {9, 3, 64, 0.125f, 0, 0, {}, precision}, dtype,
                {{0, 150}, {600, 1}, {30, 1}, {100, 90}, {5, 60, 7}});
    for (InstructionSet set : available_instruction_sets()) {
      SCOPED_TRACE(name_of(set));
      auto ops = make_ops(*device_, {.num_threads = 1, .instruction_set = set});
      const Floats together = batch.run(*ops);
      for (int threads : {2, 3}) {
        EXPECT_EQ(batch.run(*make_ops(*device_, {.num_threads = threads, .instruction_set = set})),
                  together);
      }
      Floats apart(together.size(), 0.0f);
      for (const SequenceSlice& slice : batch.slices) {
        const Floats alone = batch.run(*ops, {&slice, 1});
        for (size_t i = 0; i < apart.size(); ++i) apart[i] += alone[i];
      }
      EXPECT_EQ(apart, together);
    }
  }
}

TEST_F(AttentionTest, ChunkedPrefillEqualsWholePrefillToTheBit) {
  for (const AttentionCase& c : windowed()) {
    Batch batch(*this, c, DType::kF16, {{0, 300}});
    for (const NamedOps& named : all_ops(*device_, 2)) {
      SCOPED_TRACE(name_of(named.set));
      const Floats whole = batch.run(*named.ops);
      Floats chunks(whole.size(), 0.0f);
      const std::vector<int32_t> cuts = {0, 100, 101, 117, 250, 299, 300};
      for (size_t cut = 0; cut + 1 < cuts.size(); ++cut) {
        const SequenceSlice slice{
            cuts[cut], cuts[cut + 1] - cuts[cut], cuts[cut], batch.blocks[0], {}, 300};
        const Floats part = batch.run(*named.ops, {&slice, 1});
        for (size_t i = 0; i < part.size(); ++i) chunks[i] += part[i];
      }
      EXPECT_EQ(chunks, whole);
    }
  }
}

// As when each of them comes alone, whatever comes with them.
TEST_F(AttentionTest, RowsOfAnAnswerEqualDecodedOnesToTheBit) {
  for (const AttentionCase& c : windowed()) {
    Batch batch(*this, c, DType::kF16, {{0, 300}});
    for (const NamedOps& named : all_ops(*device_, 2)) {
      SCOPED_TRACE(name_of(named.set));
      const SequenceSlice prompt{0, 200, 0, batch.blocks[0]};
      Floats apart = batch.run(*named.ops, {&prompt, 1});
      for (int32_t row = 200; row < 300; ++row) {
        const SequenceSlice decoded{row, 1, row, batch.blocks[0]};
        const Floats alone = batch.run(*named.ops, {&decoded, 1});
        for (size_t i = 0; i < apart.size(); ++i) apart[i] += alone[i];
      }
      const SequenceSlice together{0, 300, 0, batch.blocks[0], {}, 200};
      EXPECT_EQ(batch.run(*named.ops, {&together, 1}), apart);
    }
  }
}

TEST_F(AttentionTest, PartialResultsAreMergedBeforeTheyAreTooMany) {
  const AttentionCase c{6, 2, 64, 0.125f};
  Batch batch(*this, c, DType::kF16, {{0, 300}, {150, 1}});
  batch.slices[0].answer_begin = 100;
  for (InstructionSet set : available_instruction_sets()) {
    SCOPED_TRACE(name_of(set));
    const Kernels kernels(set);
    ThreadPool pool(2);
    auto run = [&](size_t most_partial_bytes) {
      Scratch scratch(*device_, 2);
      Floats out(static_cast<size_t>(batch.num_rows * 6 * 64), 0.0f);
      attend({.kernels = kernels,
              .pool = pool,
              .scratch = scratch,
              .most_partial_bytes = most_partial_bytes},
             {.qkv = view_of(batch.qkv, batch.num_rows, batch.columns),
              .out = view_of(out, batch.num_rows, 6 * 64),
              .options = c.options(),
              .kv = batch.kv.view()},
             batch.slices);
      return std::pair(out, scratch.shared_bytes());
    };
    const size_t of_a_row = size_t{5} * 6 * partial_stride(64) * sizeof(float);  // at most
    const auto [together, all_bytes] = run(size_t{1} << 30);
    EXPECT_GT(all_bytes, 200 * of_a_row / 2);
    const auto [apart, some_bytes] = run(10 * of_a_row);
    EXPECT_LE(some_bytes, 11 * of_a_row);
    EXPECT_EQ(apart, together);
  }
}

TEST_F(AttentionTest, GatheredRowsEqualThoseOfAWholePrefillToTheBit) {
  for (const AttentionCase& c : windowed()) {
    Batch batch(*this, c, DType::kF16, {{0, 300}});
    std::vector<int32_t> some;
    for (int32_t position = 0; position < 300; ++position) {
      if (random_() % 4 == 0) some.push_back(position);
    }
    const Floats all_rows = batch.qkv;
    for (const NamedOps& named : all_ops(*device_, 2)) {
      SCOPED_TRACE(name_of(named.set));
      batch.qkv = all_rows;
      const Floats whole = batch.run(*named.ops);
      for (size_t i = 0; i < some.size(); ++i) {
        std::copy_n(all_rows.begin() + some[i] * batch.columns, batch.columns,
                    batch.qkv.begin() + static_cast<int64_t>(i) * batch.columns);
      }
      SequenceSlice slice{0, static_cast<int32_t>(some.size()), 0, batch.blocks[0], some};
      const Floats gathered = batch.run(*named.ops, {&slice, 1});
      const int64_t width = 6 * 64;
      for (size_t i = 0; i < some.size(); ++i) {
        const auto row = static_cast<int64_t>(i) * width;
        EXPECT_TRUE(std::equal(gathered.begin() + row, gathered.begin() + row + width,
                               whole.begin() + some[i] * width))
            << "position " << some[i];
      }
    }
  }
}

TEST_F(AttentionTest, MassIsTheSumOfTheLastRowsWeights) {
  const AttentionCase shapes[] = {
      {9, 3, 64, 0.125f},   {4, 4, 128, 0.1f},          {7, 7, 24, 0.3f},
      {8, 1, 80, 0.1f},     {6, 3, 20, 0.2f},           {5, 1, 6, 0.4f},
      {9, 3, 64, 0.2f, 70}, {9, 3, 64, 0.5f, 70, 3.0f}, {4, 2, 64, 0.2f, 0, 0, {-100, 0.5f, 4, 2}}};
  for (const AttentionCase& c : shapes) {
    for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
      Batch batch(*this, c, dtype, {{0, 3}, {100, 60}, {299, 1}, {3, 20, 11}});
      for (const NamedOps& named : all_ops(*device_, 2)) {
        for (size_t i = 0; i < batch.slices.size(); ++i) {
          SCOPED_TRACE(testing::Message() << name_of(named.set) << " " << name_of(dtype) << " dim "
                                          << c.head_dim << " slice " << i);
          const SequenceSlice& slice = batch.slices[i];
          const float* row =
              batch.qkv.data() + (slice.first_row + slice.num_rows - 1) * batch.columns;
          const Floats q(row, row + c.num_heads * c.head_dim);
          Floats expected = attention_mass(c, q, batch.kv.k_rows(slice.blocks, slice.length()),
                                           slice.length() - 1);
          expected.resize(static_cast<size_t>(slice.length() * 2 / 3));
          Floats sums(expected.size(), 0.25f);
          for (float& value : expected) value += 0.25f;
          named.ops->add_attention_mass(view_of(batch.qkv, batch.num_rows, batch.columns),
                                        c.options(), batch.slices, i, batch.kv.view(),
                                        view_of(sums, 1, std::ssize(sums)));
          expect_near(sums, expected, 3e-6f);
        }
      }
    }
  }
}

}  // namespace
}  // namespace droidspeak::cpu
