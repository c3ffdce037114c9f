#include "sharing/translation.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "device/device.h"
#include "formats/safetensors.h"
#include "tensor/tensor.h"

namespace droidspeak {
namespace {

using testing::HasSubstr;

constexpr int32_t kMapLayers = 3;
constexpr int32_t kKvColumns = 4;  // K and V: 8
constexpr int32_t kModelColumns = 6;

class TranslationFile : public testing::Test {
 protected:
  static LinearMap map_of(int32_t rank, size_t columns, float value) {
    LinearMap map{rank, std::vector<float>(static_cast<size_t>(rank) * columns, value),
                  std::vector<float>(static_cast<size_t>(rank) * columns, 2 * value),
                  std::vector<float>(columns, 3 * value)};
    map.down[1] = 0.5f;
    map.up[2] = 0.75f;
    map.bias[3] = 0.125f;
    return map;
  }

  TranslationMaps load() const {
    return load_translation(path_, kMapLayers, kKvColumns, kModelColumns);
  }

  // What is said of a file with these tensors, all of them zeros.
  std::string refusal(const std::vector<std::pair<std::string, std::vector<int64_t>>>& shapes,
                      DType dtype = DType::kF32) {
    std::vector<std::byte> zeros(4096);
    std::vector<FileTensor> tensors;
    for (const auto& [name, shape] : shapes) {
      int64_t count = 1;
      for (int64_t size : shape) count *= size;
      std::span<const std::byte> bytes = std::span(zeros).first(bytes_of(dtype, count));
      tensors.push_back({name, dtype, shape, bytes});
    }
    write_safetensors(path_, tensors, {});
    try {
      check_translation(path_, kMapLayers, kKvColumns, kModelColumns);
    } catch (const Failure& failure) {
      return failure.what();
    }
    return "";
  }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_.path() / "maps.safetensors";
};

void expect_same(const LinearMap& found, const LinearMap& expected) {
  EXPECT_EQ(found.rank, expected.rank);
  EXPECT_EQ(found.down, expected.down);
  EXPECT_EQ(found.up, expected.up);
  EXPECT_EQ(found.bias, expected.bias);
}

// Halves hold all of these numbers.
TEST_F(TranslationFile, ComesBackAsItWasSaved) {
  TranslationMaps maps;
  maps.kv[0] = map_of(2, 8, 0.25f);
  maps.kv[2] = map_of(8, 8, 0.5f);
  maps.inputs[1] = map_of(1, 6, 1.0f);
  save_translation(path_, maps);
  const TranslationMaps found = load();
  ASSERT_EQ(found.kv.size(), 2u);
  ASSERT_EQ(found.inputs.size(), 1u);
  expect_same(found.kv.at(0), maps.kv.at(0));
  expect_same(found.kv.at(2), maps.kv.at(2));
  expect_same(found.inputs.at(1), maps.inputs.at(1));
  SafetensorsFile file(path_);
  EXPECT_EQ(file.find_tensor("kv.2.down")->dtype, DType::kF16) << "half the size";
  EXPECT_EQ(file.find_tensor("input.1.up")->dtype, DType::kF16);
}

TEST_F(TranslationFile, ValuesThatNoHalfHoldsAreKept) {
  TranslationMaps maps;
  maps.kv[0] = map_of(1, 8, 0.25f);
  maps.kv[0].down[5] = -1e6f;
  maps.kv[0].up[6] = 3e20f;
  save_translation(path_, maps);
  expect_same(load().kv.at(0), maps.kv.at(0));
}

TEST_F(TranslationFile, TensorsThatDoNotFitAreRefusedByName) {
  const std::pair<std::string, std::vector<int64_t>> down{"kv.0.down", {2, 8}};
  const std::pair<std::string, std::vector<int64_t>> up{"kv.0.up", {8, 2}};
  const std::pair<std::string, std::vector<int64_t>> bias{"kv.0.bias", {8}};
  EXPECT_EQ(refusal({down, up, bias}), "");
  EXPECT_EQ(refusal({down, up, bias}, DType::kF16), "");
  EXPECT_THAT(refusal({down, up, bias}, DType::kBF16), HasSubstr("\"kv.0.down\" has another"));
  EXPECT_THAT(refusal({down, bias}), HasSubstr("\"kv.0.up\" is missing"));
  EXPECT_THAT(refusal({down, up}), HasSubstr("\"kv.0.bias\" is missing"));
  EXPECT_THAT(refusal({{"kv.0.down", {16}}, up, bias}), HasSubstr("another shape than [rank, 8]"));
  EXPECT_THAT(refusal({{"kv.0.down", {0, 8}}, {"kv.0.up", {8, 0}}, bias}), HasSubstr("kv.0.down"));
  EXPECT_THAT(refusal({{"kv.0.down", {9, 8}}, {"kv.0.up", {8, 9}}, bias}),
              HasSubstr("another shape than [rank, 8]"));
  EXPECT_EQ(refusal({{"kv.0.down", {8, 8}}, {"kv.0.up", {8, 8}}, bias}), "") << "all of the rank";
  EXPECT_EQ(refusal({{"kv.0.down", {1, 8}}, {"kv.0.up", {8, 1}}, bias}), "");
  EXPECT_THAT(refusal({{"kv.0.down", {2, 6}}, {"kv.0.up", {6, 2}}, {"kv.0.bias", {6}}}),
              HasSubstr("kv.0.down"))
      << "K and V have eight columns";
  EXPECT_EQ(refusal({{"input.0.down", {2, 6}}, {"input.0.up", {6, 2}}, {"input.0.bias", {6}}}), "");
  EXPECT_THAT(refusal({down, up, {"kv.0.bias", {7}}}), HasSubstr("\"kv.0.bias\" has another"));
  EXPECT_THAT(refusal({down, up, bias, {"more", {1}}}), HasSubstr("none of the 3 layers"));
  EXPECT_THAT(refusal({{"kv.3.down", {2, 8}}, {"kv.3.up", {8, 2}}, {"kv.3.bias", {8}}}),
              HasSubstr("none of the 3 layers"));
}

TEST_F(TranslationFile, AnyValueThatIsNotFiniteIsRefused) {
  for (int which : {0, 1, 2}) {
    TranslationMaps maps;
    maps.kv[1] = map_of(2, 8, 0.25f);
    LinearMap& map = maps.kv[1];
    (which == 0   ? map.down
     : which == 1 ? map.up
                  : map.bias)[7] = std::numeric_limits<float>::quiet_NaN();
    save_translation(path_, maps);
    try {
      load();
      ADD_FAILURE() << which;
    } catch (const Failure& failure) {
      EXPECT_THAT(failure.what(), HasSubstr("not finite"));
    }
  }
}

// x += (x A) B + bias, on E of two tokens.
TEST_F(TranslationFile, PackedMapsTranslateAsDefined) {
  auto device = make_cpu_device();
  auto ops = make_cpu_ops(*device, 1);
  TranslationMaps maps;
  maps.inputs[1] = map_of(2, 6, 0.25f);
  const LinearMap& map = maps.inputs.at(1);
  Translator translator(*ops, maps);
  EXPECT_EQ(translator.input(0), nullptr);
  EXPECT_EQ(translator.kv(1), nullptr);
  ASSERT_NE(translator.input(1), nullptr);
  std::vector<float> rows(12);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i) - 4;
  std::vector<float> expected = rows;
  for (size_t row = 0; row < 2; ++row) {
    for (size_t rank = 0; rank < 2; ++rank) {
      float low = 0;
      for (size_t i = 0; i < 6; ++i) low += rows[row * 6 + i] * map.down[rank * 6 + i];
      for (size_t i = 0; i < 6; ++i) expected[row * 6 + i] += low * map.up[i * 2 + rank];
    }
    for (size_t i = 0; i < 6; ++i) expected[row * 6 + i] += map.bias[i];
  }
  Tensor tensor(*device, DType::kF32, 2, 6);
  device->to_device(tensor.view().data, rows.data(), rows.size() * sizeof(float));
  ops->translate_rows(*translator.input(1), tensor.view());
  device->to_host(rows.data(), tensor.view().data, rows.size() * sizeof(float));
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_NEAR(rows[i], expected[i], 1e-4) << i;
}

}  // namespace
}  // namespace droidspeak
