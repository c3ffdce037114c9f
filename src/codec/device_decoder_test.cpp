// What a device makes of pieces is what the CPU makes of them, to the bit, and damaged ones are
// found.
#include "codec/device_decoder.h"

#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "codec/decoding_device.h"
#include "codec/piece.h"
#include "codec/test_values.h"
#include "kv/kv_cache.h"

namespace droidspeak {
namespace {

constexpr int32_t kLayer = 1;
constexpr int32_t kPoolBlocks = 12;

struct Shape {
  KvLayout layout;
  size_t pairs;
  std::vector<int32_t> unturned_layers = {};
};

void PrintTo(const Shape& shape, std::ostream* out) {
  *out << name_of(shape.layout.dtype) << ", " << shape.layout.num_kv_heads << " heads of "
       << shape.layout.head_dim << ", " << shape.pairs << " pairs"
       << (shape.unturned_layers.empty() ? "" : ", not turned");
}

class DecodeOnDevice : public testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
    made_ = make_decoding_device();
    if (!made_.device) GTEST_SKIP() << "no such device";
    kv_ = std::make_unique<KvCache>(*made_.device, layout_, kPoolBlocks * layout_.block_bytes());
    decoder_ = std::make_unique<DeviceDecoder>(*made_.device, std::move(made_.kernel), layout_);
  }

  std::vector<std::byte> encode(uint32_t number, const std::vector<std::byte>& values) const {
    auto piece = encode_piece(*tables_, layout_, {kLayer, number * kBlockTokens}, values);
    EXPECT_TRUE(piece);
    return *piece;
  }

  // Block `number` of a context, with a few values that need escapes.
  std::vector<std::byte> make_piece(uint32_t number) const {
    std::vector<std::byte> values =
        test_values(layout_, frequencies_, {kLayer, number * kBlockTokens}, 1, 50 + number);
    for (size_t row : {size_t{5}, size_t{6}, size_t{63}}) {
      for (KvHalf half : {KvHalf::kKeys, KvHalf::kValues}) {
        put_element(layout_.dtype, values, element_of(layout_, half, row, 0) + row % 3, 90.0f);
      }
    }
    return encode(number, values);
  }

  CodedBlock coded(const std::vector<std::byte>& piece, uint32_t number, int32_t block) const {
    return {piece, tables_, number * kBlockTokens, block};
  }

  std::vector<std::byte> expected(const std::vector<std::byte>& piece, uint32_t number) const {
    std::vector<std::byte> values(layout_.layer_bytes());
    Result<void> decoded =
        PieceDecoder().decode(*tables_, layout_, {kLayer, number * kBlockTokens}, piece, values);
    EXPECT_TRUE(decoded);
    return values;
  }

  std::optional<size_t> decode(std::span<const CodedBlock> blocks) {
    return decoder_->decode(kLayer, kv_->layer(kLayer), blocks);
  }

  std::vector<std::byte> values_in(int32_t block) {
    std::vector<std::byte> values(layout_.layer_bytes());
    auto lane = made_.device->make_copy_lane();
    kv_->save(*lane, kLayer, block, values);
    lane->synchronize();
    return values;
  }

  const KvLayout layout_ = GetParam().layout;
  const std::vector<float> frequencies_ = test_frequencies(GetParam().pairs);
  const std::shared_ptr<const CodecTables> tables_ = std::make_shared<CodecTables>(
      test_tables(layout_, frequencies_, GetParam().unturned_layers, fine_factors(layout_)));
  DecodingDevice made_;
  std::unique_ptr<KvCache> kv_;
  std::unique_ptr<DeviceDecoder> decoder_;
};

INSTANTIATE_TEST_SUITE_P(Layouts,
                         DecodeOnDevice,
                         testing::Values(Shape{layout_of(3, 64, DType::kF16), 32},
                                         Shape{layout_of(8, 128, DType::kBF16), 64},
                                         Shape{layout_of(1, 128, DType::kF32), 64},
                                         Shape{layout_of(3, 40, DType::kF16), 20},
                                         Shape{layout_of(1, 6, DType::kF32), 3},
                                         Shape{layout_of(2, 96, DType::kBF16), 16},
                                         Shape{layout_of(2, 64, DType::kF16), 0},
                                         Shape{layout_of(2, 64, DType::kF16), 32, {kLayer}}));

TEST_P(DecodeOnDevice, GivesTheBitsThatTheCpuGives) {
  std::vector<std::vector<std::byte>> pieces;
  for (uint32_t number = 0; number < 5; ++number) pieces.push_back(make_piece(number));
  std::vector<CodedBlock> blocks;
  for (uint32_t number = 0; number < 5; ++number)
    blocks.push_back(coded(pieces[number], number, static_cast<int32_t>(9 - 2 * number)));
  ASSERT_EQ(decode(blocks), std::nullopt);
  for (uint32_t number = 0; number < 5; ++number)
    EXPECT_TRUE(values_in(blocks[number].block) == expected(pieces[number], number)) << number;
  for (int32_t other : {0, 2, 4, 11})
    EXPECT_TRUE(values_in(other) == std::vector<std::byte>(layout_.layer_bytes())) << other;
}

TEST_P(DecodeOnDevice, FarPositionsTurnAsOnTheCpu) {
  std::vector<std::byte> piece = make_piece(1000);
  CodedBlock block = coded(piece, 1000, 3);
  ASSERT_EQ(decode({&block, 1}), std::nullopt);
  EXPECT_TRUE(values_in(3) == expected(piece, 1000));
}

// Streams may be consistent with anything that a header says, or not: both sides judge alike.
TEST_P(DecodeOnDevice, JudgesDamageAsTheCpuDoes) {
  std::vector<std::byte> piece = make_piece(0);
  std::vector<std::byte> good = make_piece(1);
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    std::vector<std::byte> changed = piece;
    for (int i = 0; i <= round % 3; ++i)
      changed[random() % changed.size()] ^= static_cast<std::byte>(1u << random() % 8);
    std::vector<std::byte> values(layout_.layer_bytes());
    Result<void> on_cpu = PieceDecoder().decode(*tables_, layout_, {kLayer, 0}, changed, values);
    std::vector<CodedBlock> blocks = {coded(good, 1, 2), coded(changed, 0, 5)};
    std::optional<size_t> damaged = decode(blocks);
    ASSERT_EQ(damaged.has_value(), !on_cpu) << round;
    if (damaged) {
      EXPECT_EQ(*damaged, 1u);
    } else {
      EXPECT_TRUE(values_in(5) == values) << round;
    }
    EXPECT_TRUE(values_in(4) == std::vector<std::byte>(layout_.layer_bytes()));
  }
  CodedBlock block = coded(good, 1, 2);
  ASSERT_EQ(decode({&block, 1}), std::nullopt);
  EXPECT_TRUE(values_in(2) == expected(good, 1)) << "nothing is left of the damaged ones";
}

TEST_P(DecodeOnDevice, NoiseBehindAGoodHeaderIsFound) {
  std::vector<std::byte> noise = make_piece(0);
  std::mt19937 random(3);
  for (size_t i = sizeof(PieceHeader); i < noise.size(); ++i)
    noise[i] = static_cast<std::byte>(random());
  CodedBlock block = coded(noise, 0, 5);
  EXPECT_EQ(decode({&block, 1}), 0u);
  std::vector<std::byte> cut(noise.begin(), noise.begin() + 20);
  block = coded(cut, 0, 5);
  EXPECT_EQ(decode({&block, 1}), 0u);
}

TEST_P(DecodeOnDevice, TakesPiecesOfSeveralTables) {
  std::vector<std::vector<float>> frequencies = {frequencies_, frequencies_, frequencies_};
  for (size_t i = 1; i < frequencies.size(); ++i)
    for (float& frequency : frequencies[i]) frequency *= 1.0f - 0.1f * static_cast<float>(i);
  std::vector<std::shared_ptr<const CodecTables>> tables;
  for (const auto& each : frequencies)
    tables.push_back(std::make_shared<CodecTables>(test_tables(layout_, each)));
  std::vector<std::vector<std::byte>> pieces;
  std::vector<CodedBlock> blocks;
  for (uint32_t i = 0; i < 6; ++i) {
    PieceLabel label{kLayer, (i + 1) * kBlockTokens};
    auto values = test_values(layout_, frequencies[i % 3], label, 1, i);
    pieces.push_back(*encode_piece(*tables[i % 3], layout_, label, values));
  }
  for (uint32_t i = 0; i < 6; ++i)
    blocks.push_back({pieces[i], tables[i % 3], (i + 1) * kBlockTokens, static_cast<int32_t>(i)});
  ASSERT_EQ(decode(blocks), std::nullopt);
  for (uint32_t i = 0; i < 6; ++i) {
    std::vector<std::byte> values(layout_.layer_bytes());
    ASSERT_TRUE(PieceDecoder().decode(*tables[i % 3], layout_, {kLayer, (i + 1) * kBlockTokens},
                                      pieces[i], values));
    EXPECT_TRUE(values_in(static_cast<int32_t>(i)) == values) << i;
  }
}

}  // namespace
}  // namespace droidspeak
