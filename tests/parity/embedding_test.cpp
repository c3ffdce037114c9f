// Embeddings of the engine against the slow transformer's final states, pooled by definition.
#include <cmath>

#include <gtest/gtest.h>

#include "engine/engine_fixture.h"
#include "parity/reference.h"

namespace droidspeak {
namespace {

struct PooledVariant {
  const char* name;
  Pooling pooling;
};

class Embeddings : public testing::TestWithParam<PooledVariant> {
 protected:
  // Mean or last row, then length 1.
  static Row pooled(const Rows& states, Pooling pooling) {
    Row sum = states.back();
    if (pooling == Pooling::kMean) {
      for (size_t row = 0; row + 1 < states.size(); ++row) {
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += states[row][i];
      }
      for (double& value : sum) value /= static_cast<double>(states.size());
    }
    double squares = 0;
    for (double value : sum) squares += value * value;
    for (double& value : sum) value /= std::sqrt(squares);
    return sum;
  }

  TinyFamily family_;
};

TEST_P(Embeddings, AreThePooledFinalStates) {
  auto [name, pooling] = GetParam();
  FamilyFile file = family_.file();
  std::filesystem::path adapter;
  file.base.pooling = pooling;
  for (FamilyFile::Member& member : file.variants) {
    member.pooling = pooling;
    if (member.name == name) adapter = member.adapter;
  }
  ReferenceModel reference(file.base.path, adapter);
  Engine engine(family_.ops(), file, tiny_options());
  for (int32_t length : {1, 16, 17, 150}) {
    std::vector<int32_t> prompt = random_prompt(static_cast<uint32_t>(length), length);
    Row expected = pooled(reference.suffix_states(prompt, reference.read({})), pooling);
    Outcome outcome = generate(
        engine, {.model = name, .prompt = prompt, .max_tokens = 0, .wants_embedding = true});
    ASSERT_FALSE(outcome.error) << outcome.error->message;
    ASSERT_EQ(outcome.embedding.values.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(outcome.embedding.values[i], expected[i], 2e-5) << length << " " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Variants,
                         Embeddings,
                         testing::Values(PooledVariant{"base", Pooling::kMean},
                                         PooledVariant{"base", Pooling::kLast},
                                         PooledVariant{"alpha", Pooling::kMean},
                                         PooledVariant{"alpha", Pooling::kLast}));

}  // namespace
}  // namespace droidspeak
