// The golden folders were packed by tools/make_quantized_models.py.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "model/checkpoint.h"
#include "model/json_fields.h"
#include "model/quantized/quantized_fixture.h"
#include "model/quantized/quantized_matrix.h"
#include "model/quantized/quantized_tensors.h"
#include "model/quantized/unpack.h"
#include "model/weights.h"
#include "support/forwarding_ops.h"
#include "tensor/dequantize.h"

namespace droidspeak {
namespace {

class GoldenFolder : public testing::TestWithParam<std::pair<const char*, DType>> {};

TEST_P(GoldenFolder, HoldsTheWeightsThatItsCodesStandFor) {
  const auto& [name, dtype] = GetParam();
  const std::filesystem::path path =
      std::filesystem::path(DROIDSPEAK_SOURCE_DIR) / "tests/data/models/quantized" / name;
  const SafetensorsFolder folder(path);
  const HfConfig config = read_hf_config(path / "config.json");
  ASSERT_TRUE(config.quantization);
  const QuantizedTensors tensors(folder, *config.quantization);
  const SafetensorsFile expected(path / "expected.safetensors");
  ASSERT_FALSE(expected.tensors().empty());
  size_t num_of_dtype = 0;
  for (const FileTensor& matrix : expected.tensors()) {
    const FileTensor* decoded = tensors.find_tensor(matrix.name);
    ASSERT_NE(decoded, nullptr) << matrix.name;
    ASSERT_EQ(decoded->shape[1], matrix.shape[1]);
    std::vector<float> first_rows = decoded->read_floats();
    first_rows.resize(static_cast<size_t>(matrix.shape[0] * matrix.shape[1]));
    EXPECT_EQ(first_rows, matrix.read_floats()) << matrix.name;
    num_of_dtype += decoded->dtype == dtype ? 1 : 0;
  }
  EXPECT_GT(num_of_dtype, 0u) << "nothing is " << name_of(dtype);
}

INSTANTIATE_TEST_SUITE_P(All,
                         GoldenFolder,
                         testing::Values(std::pair("gptq-4", DType::kQ4_0),
                                         std::pair("gptq-4-zeros", DType::kAffine4),
                                         std::pair("gptq-4-ordered", DType::kF32),
                                         std::pair("gptq-8", DType::kQ8_0),
                                         std::pair("gptq-8", DType::kF32),
                                         std::pair("auto-round", DType::kAffine4),
                                         std::pair("awq", DType::kAffine4),
                                         std::pair("awq-experts", DType::kAffine4),
                                         std::pair("packed-4", DType::kAffine4),
                                         std::pair("packed-4-ordered", DType::kF32),
                                         std::pair("packed-8", DType::kAffine8),
                                         std::pair("int8", DType::kAffine8),
                                         std::pair("int8-zeros", DType::kAffine8),
                                         std::pair("fp8-tensor", DType::kF32),
                                         std::pair("fp8-scalar", DType::kF32),
                                         std::pair("fp8-channel", DType::kFp8),
                                         std::pair("fp8-channel", DType::kF32),
                                         std::pair("fp8-block", DType::kF32),
                                         std::pair("fbgemm", DType::kFp8)),
                         [](const auto& one) {
                           std::string name = one.param.first;
                           std::ranges::replace(name, '-', '_');
                           return name + "_as_" + std::string(name_of(one.param.second));
                         });

// The CPU's operations, as a device that may take 8-bit floats: notes as what matrices come to it.
class NotingOps final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;

  bool takes_fp8() const override { return takes; }

  std::unique_ptr<WeightMatrix> pack(std::span<const MatrixPart> parts, Precision) override {
    for (const MatrixPart& part : parts) dtypes.insert(part.dtype);
    return ForwardingOps::pack(parts, Precision::kExact);
  }

  bool takes = true;
  std::set<DType> dtypes;
};

class Float8Folder : public testing::Test {
 protected:
  std::set<DType> dtypes_of(const std::filesystem::path& model,
                            Precision precision = Precision::kFast) {
    ops_.dtypes.clear();
    load_weights(ops_, model, precision);
    return ops_.dtypes;
  }

  static std::filesystem::path golden(const char* name) {
    return std::filesystem::path(DROIDSPEAK_SOURCE_DIR) / "tests/data/models/quantized" / name;
  }

  std::unique_ptr<Device> device_ = make_cpu_device();
  std::unique_ptr<Ops> cpu_ = make_cpu_ops(*device_, 1);
  NotingOps ops_{*cpu_};
};

TEST_F(Float8Folder, ComesAsItIsToADeviceThatMultipliesSuchFloats) {
  for (const char* name : {"fp8-channel", "fbgemm"})
    EXPECT_TRUE(dtypes_of(golden(name)).contains(DType::kFp8)) << name;
  for (const char* name : {"fp8-tensor", "fp8-scalar"})
    EXPECT_FALSE(dtypes_of(golden(name)).contains(DType::kFp8)) << name << " has fixed scales";
  EXPECT_FALSE(dtypes_of(golden("fp8-block")).contains(DType::kFp8)) << "scales by block";
}

TEST_F(Float8Folder, IsExpandedWhereItLeavesActivationsAlone) {
  const TemporaryFolder copy;
  const std::filesystem::path path = copy.path() / "model";
  std::filesystem::copy(golden("fp8-channel"), path);
  auto config = nlohmann::json::parse(read_file(path / "config.json"));
  config["quantization_config"]["config_groups"]["group_0"]["input_activations"] = nullptr;
  write_file_atomically(path / "config.json", config.dump());
  EXPECT_FALSE(dtypes_of(path).contains(DType::kFp8));
}

TEST_F(Float8Folder, IsExpandedForOtherDevicesAndForExactPrecision) {
  EXPECT_FALSE(dtypes_of(golden("fbgemm"), Precision::kExact).contains(DType::kFp8));
  ops_.takes = false;
  EXPECT_FALSE(dtypes_of(golden("fbgemm")).contains(DType::kFp8));
}

// By the definition: sign, four bits of exponent (bias 7), three of fraction; all ones is no
// number.
TEST(Float8, CodesStandForTheirDefinition) {
  EXPECT_EQ(float_from_e4m3(0x00), 0.0f);
  EXPECT_EQ(float_from_e4m3(0x01), std::ldexp(1.0f, -9));
  EXPECT_EQ(float_from_e4m3(0x07), std::ldexp(7.0f, -9));
  EXPECT_EQ(float_from_e4m3(0x08), std::ldexp(1.0f, -6));
  EXPECT_EQ(float_from_e4m3(0x38), 1.0f);
  EXPECT_EQ(float_from_e4m3(0xbc), -1.5f);
  EXPECT_EQ(float_from_e4m3(0x7e), 448.0f);
  EXPECT_TRUE(std::isnan(float_from_e4m3(0x7f)));
  EXPECT_TRUE(std::isnan(float_from_e4m3(0xff)));
}

// A GPTQ matrix of 16 rows and 64 columns in two groups, in memory.
class Matrix : public testing::Test {
 protected:
  Matrix() {
    words_.assign(8 * 16, 0x76543210);
    zeros_.assign(2 * 2, 0x77777777);
    scales_.assign(2 * 16, 0x3c00);  // 1
    for (int32_t c = 0; c < 64; ++c) groups_.push_back(c / 32);
    parts_ = {.module = "m",
              .codes = {"m.qweight", "I32", {8, 16}, std::as_bytes(std::span(words_))},
              .scales = {"m.scales", DType::kF16, {2, 16}, std::as_bytes(std::span(scales_))},
              .zeros = OtherTensor{"m.qzeros", "I32", {2, 2}, std::as_bytes(std::span(zeros_))},
              .group_index = OtherTensor{"m.g_idx", "I32", {64}, std::as_bytes(std::span(groups_))},
              .shape = std::nullopt};
  }

  void read() const {
    std::vector<std::byte> out;
    QuantizedMatrix("folder", config_, parts_).read(out);
  }

  std::vector<uint32_t> words_;
  std::vector<uint32_t> zeros_;
  std::vector<uint16_t> scales_;
  std::vector<int32_t> groups_;
  QuantizationConfig config_{.method = "gptq",
                             .zero = QuantizationConfig::Zero::kMiddle,
                             .zero_offset = 1,
                             .scale_block = {1, 32}};
  QuantizedParts parts_;
};

TEST_F(Matrix, IsReadInTheFormatThatHoldsIt) {
  std::vector<std::byte> out;
  QuantizedMatrix matrix("folder", config_, parts_);
  EXPECT_EQ(matrix.rows(), 16);
  EXPECT_EQ(matrix.columns(), 64);
  ASSERT_EQ(matrix.dtype(), DType::kQ4_0);
  matrix.read(out);
  std::vector<float> values(16 * 64);
  dequantize(DType::kQ4_0, out, values);
  for (size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(values[i], static_cast<float>(i % 8) - 8) << i;
}

TEST_F(Matrix, HasZeroPointsThatWrapAroundInTheFirstFormOfGptq) {
  std::ranges::fill(zeros_, 0xffffffff);
  config_.zero = QuantizationConfig::Zero::kStored;
  for (int32_t offset : {1, 0}) {
    config_.zero_offset = offset;
    std::vector<std::byte> out;
    QuantizedMatrix matrix("folder", config_, parts_);
    ASSERT_EQ(matrix.dtype(), DType::kAffine4);
    matrix.read(out);
    std::vector<float> values(16 * 64);
    dequantize(DType::kAffine4, out, values);
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(values[i], static_cast<float>(i % 8) - (offset == 1 ? 0 : 15)) << i;
  }
}

// Words at the end of rows, and of columns of zero points, are not full.
TEST_F(Matrix, MayHaveRowsAndColumnsThatFillNoWord) {
  const std::vector<uint32_t> codes = {0x87654, 0x11111, 0xfedcb};
  const std::vector<uint32_t> zeros = {0x321};
  const std::vector<float> scales = {1, 2, 0.5f};
  const std::vector<int64_t> sizes = {3, 5};
  config_ = {.method = "compressed-tensors", .layout = QuantizationConfig::Layout::kPacked};
  parts_ = {
      .module = "m",
      .codes = {"m.weight_packed", "I32", {3, 1}, std::as_bytes(std::span(codes))},
      .scales = {"m.weight_scale", DType::kF32, {3, 1}, std::as_bytes(std::span(scales))},
      .zeros = OtherTensor{"m.weight_zero_point", "I32", {1, 1}, std::as_bytes(std::span(zeros))},
      .group_index = std::nullopt,
      .shape = OtherTensor{"m.weight_shape", "I64", {2}, std::as_bytes(std::span(sizes))}};
  std::vector<std::byte> out;
  QuantizedMatrix matrix("folder", config_, parts_);
  ASSERT_EQ(matrix.dtype(), DType::kF32);
  matrix.read(out);
  std::vector<float> values(15);
  dequantize(DType::kF32, out, values);
  EXPECT_EQ(values, (std::vector<float>{3, 4, 5, 6, 7, -2, -2, -2, -2, -2, 4, 4.5f, 5, 5.5f, 6}));
}

TEST_F(Matrix, OfOtherShapesIsRefused) {
  parts_.codes.shape = {8, 16, 1};
  expect_refusal([&] { read(); }, "'m.qweight' has shape [8, 16, 1]: expected rows and columns");
  parts_.codes.shape = {0, int64_t{1} << 62};
  expect_refusal([&] { read(); }, "'m.qweight' has shape");
  parts_.codes.shape = {8, 16};
  parts_.codes.dtype = "I64";
  expect_refusal([&] { read(); }, "'m.qweight' is I64: expected I32");
  parts_.codes.dtype = "I32";
  parts_.scales.shape = {1, 32};
  expect_refusal([&] { read(); }, "'m.scales' has shape [1, 32]: expected [2, 16]");
  parts_.scales.shape = {2, 16};
  parts_.zeros->shape = {4, 1};
  expect_refusal([&] { read(); }, "'m.qzeros' has shape [4, 1]: expected [2, 2]");
  parts_.zeros.reset();
  expect_refusal([&] { read(); }, "'m.qweight' has no zero points beside it");
}

TEST_F(Matrix, WithColumnsOfNoGroupIsRefused) {
  groups_[63] = 2;
  expect_refusal([&] { read(); }, "'m.g_idx' holds group 2: expected 0 to 1");
  groups_[63] = -1;
  expect_refusal([&] { read(); }, "'m.g_idx' holds group -1");
  std::ranges::fill(groups_, -1);
  expect_refusal([&] { read(); }, "'m.g_idx' holds group -1");
  config_.needs_group_index = true;
  parts_.group_index.reset();
  expect_refusal([&] { read(); }, "'m.qweight' has no g_idx beside it");
}

TEST_F(Matrix, WithAnotherZeroThanItsSchemeIsRefused) {
  zeros_[3] = 0x77777767;
  expect_refusal([&] { read(); }, "'m.qzeros' holds zero point 7: expected 8");
  config_.zero = QuantizationConfig::Zero::kStored;
  EXPECT_NO_THROW(read());
}

TEST_F(Matrix, OfAHostileShapeTensorIsRefused) {
  config_.layout = QuantizationConfig::Layout::kPacked;
  for (int64_t size : {int64_t{0}, int64_t{-1}, int64_t{1} << 40}) {
    const std::vector<int64_t> sizes = {16, size};
    parts_.shape = OtherTensor{"m.weight_shape", "I64", {2}, std::as_bytes(std::span(sizes))};
    expect_refusal([&] { read(); }, "'m.weight_shape' holds");
  }
}

TEST_F(Matrix, WithoutRowsOrColumnsIsRefused) {
  constexpr int64_t kMost = 1 << 24;
  for (std::vector<int64_t> shape :
       {std::vector<int64_t>{8, 0}, {0, 16}, {1, kMost + 1}, {kMost + 1, 1}}) {
    parts_.codes.shape = shape;
    expect_refusal([&] { read(); }, "expected rows and columns");
  }
  for (std::vector<int64_t> shape : {std::vector<int64_t>{1, kMost}, {1, 1}}) {
    parts_.codes.shape = shape;
    expect_refusal([&] { read(); }, "'m.scales' has shape");
  }
}

TEST_F(Matrix, WithRowsThatFillNoWordOfZeroPointsIsRefused) {
  parts_.codes.shape = {8, 12};
  parts_.scales.shape = {2, 12};
  expect_refusal([&] { read(); }, "'m.qzeros' is for 12 rows: expected a multiple of 8");
}

TEST_F(Matrix, NeedsAGroupIndexOnlyWhereThereAreGroups) {
  config_.needs_group_index = true;
  config_.scale_block.columns = 0;
  parts_.group_index.reset();
  parts_.scales.shape = {1, 16};
  parts_.zeros->shape = {1, 2};
  scales_.resize(16);
  zeros_.resize(2);
  parts_.scales.bytes = std::as_bytes(std::span(scales_));
  parts_.zeros->bytes = std::as_bytes(std::span(zeros_));
  EXPECT_NO_THROW(read());
}

TEST_F(Matrix, OfAGroupIndexOfAnotherShapeIsRefused) {
  parts_.group_index->shape = {32};
  expect_refusal([&] { read(); }, "'m.g_idx' has shape [32]: expected [64]");
  parts_.group_index->shape = {64};
  parts_.group_index->dtype = "I64";
  expect_refusal([&] { read(); }, "'m.g_idx' is I64: expected I32");
}

// Weights of 4 bits, 3 x 40 in groups of 8 columns, as compressed-tensors packs them.
class PackedMatrixFile : public Matrix {
 protected:
  PackedMatrixFile() {
    words_.assign(3 * 5, 0x76543210);
    sizes_ = {3, 40};
    float_scales_.assign(3 * 5, 1);
    groups_.assign(40, -1);
    signed_zeros_.assign(3 * 5, 0);
    config_ = {.method = "compressed-tensors",
               .layout = QuantizationConfig::Layout::kPacked,
               .scale_block = {1, 8}};
    parts_ = {
        .module = "m",
        .codes = {"m.weight_packed", "I32", {3, 5}, std::as_bytes(std::span(words_))},
        .scales = {"m.weight_scale", DType::kF32, {3, 5}, std::as_bytes(std::span(float_scales_))},
        .zeros =
            OtherTensor{
                "m.weight_zero_point", "I8", {3, 5}, std::as_bytes(std::span(signed_zeros_))},
        .group_index =
            OtherTensor{"m.weight_g_idx", "I32", {40}, std::as_bytes(std::span(groups_))},
        .shape = OtherTensor{"m.weight_shape", "I32", {2}, std::as_bytes(std::span(sizes_))}};
  }

  std::vector<float> values() const {
    std::vector<std::byte> out;
    QuantizedMatrix matrix("folder", config_, parts_);
    EXPECT_EQ(matrix.dtype(), DType::kF32);
    matrix.read(out);
    std::vector<float> decoded(static_cast<size_t>(matrix.rows() * matrix.columns()));
    dequantize(DType::kF32, out, decoded);
    return decoded;
  }

  std::vector<int32_t> sizes_;
  std::vector<float> float_scales_;
  std::vector<int8_t> signed_zeros_;
};

TEST_F(PackedMatrixFile, HasColumnsInOrderWhereItsGroupIndexIsUnset) {
  float_scales_[5 + 4] = 2;  // row 1, the last group
  const std::vector<float> decoded = values();
  ASSERT_EQ(decoded.size(), 120u);
  for (size_t i = 0; i < decoded.size(); ++i) {
    const float scale = i >= 40 + 32 && i < 80 ? 2 : 1;
    ASSERT_EQ(decoded[i], scale * (static_cast<float>(i % 8) - 8)) << i;
  }
}

TEST_F(PackedMatrixFile, WithAGroupIndexThatIsHalfSetIsRefused) {
  for (size_t c = 0; c < 39; ++c) groups_[c] = static_cast<int32_t>(c / 8);
  expect_refusal([&] { read(); }, "'m.weight_g_idx' holds group -1");
  groups_[39] = 4;
  EXPECT_NO_THROW(read());
}

TEST_F(PackedMatrixFile, HasSignedZeroPointsOfItsBits) {
  signed_zeros_[0] = -8;
  signed_zeros_[14] = 7;
  const std::vector<float> decoded = values();
  EXPECT_EQ(decoded[3], 3) << "3 - (-8 + 8)";
  EXPECT_EQ(decoded[119], 7 - 15);
  signed_zeros_[7] = 8;
  expect_refusal([&] { read(); }, "'m.weight_zero_point' holds 8: expected -8 to 7");
  signed_zeros_[7] = -9;
  expect_refusal([&] { read(); }, "holds -9: expected -8 to 7");
}

TEST_F(PackedMatrixFile, WithZeroPointsOfAnotherShapeIsRefused) {
  parts_.zeros->shape = {5, 3};
  expect_refusal([&] { read(); }, "'m.weight_zero_point' has shape [5, 3]: expected [3, 5]");
  parts_.zeros->shape = {3, 5};
  parts_.zeros->dtype = "U8";
  expect_refusal([&] { read(); }, "'m.weight_zero_point' is U8: expected I8");
  parts_.zeros->dtype = "I32";
  expect_refusal([&] { read(); }, "has shape [3, 5]: expected [1, 5]");
  parts_.zeros.reset();
  expect_refusal([&] { read(); }, "'m.weight_packed' has no zero points beside it");
  config_.zero = QuantizationConfig::Zero::kMiddle;
  EXPECT_NO_THROW(read());
}

// What writes them has whole groups; those that are cut off would stand for other weights.
TEST_F(PackedMatrixFile, WithAGroupThatIsCutOffIsRefused) {
  config_.scale_block.columns = 9;  // five groups, too
  EXPECT_NO_THROW(read()) << "a block of FP8, say";
  config_.has_whole_groups = true;
  expect_refusal([&] { read(); },
                 "'m.weight_packed' has 40 columns: expected a multiple of the group_size, 9");
  config_.scale_block.columns = 8;
  EXPECT_NO_THROW(read());
}

TEST_F(PackedMatrixFile, MayHaveOneRow) {
  sizes_ = {1, 40};
  parts_.codes.shape = parts_.scales.shape = parts_.zeros->shape = {1, 5};
  EXPECT_EQ(QuantizedMatrix("folder", config_, parts_).rows(), 1);
  sizes_ = {1 << 24, 40};
  expect_refusal([&] { read(); }, "'m.weight_packed' has shape");
  sizes_ = {(1 << 24) + 1, 40};
  expect_refusal([&] { read(); }, "'m.weight_shape' holds 16777217");
}

// A golden folder whose files tests may change.
class Folder : public testing::Test {
 protected:
  Folder() {
    const std::filesystem::path models =
        std::filesystem::path(DROIDSPEAK_SOURCE_DIR) / "tests/data/models/quantized";
    for (const char* name : {"config.json", "model.safetensors"})
      std::filesystem::copy_file(models / "gptq-4" / name, folder_.path() / name);
  }

  void replace(const char* file, const std::string& from, const std::string& to) const {
    std::string content = read_file(folder_.path() / file);
    const size_t at = content.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    write_file_atomically(folder_.path() / file, content.replace(at, from.size(), to));
  }

  // Of its data, which begin behind a length of 8 bytes and a header of that length.
  void change_first_byte_of(const std::string& tensor) const {
    std::string content = read_file(folder_.path() / "model.safetensors");
    uint64_t header = 0;
    std::memcpy(&header, content.data(), sizeof header);
    const auto json = nlohmann::json::parse(content.substr(8, header));
    const auto offset = json.at(tensor).at("data_offsets").at(0).get<uint64_t>();
    content[8 + header + offset] = static_cast<char>(content[8 + header + offset] ^ 0x3c);
    write_file_atomically(folder_.path() / "model.safetensors", content);
  }

  std::string refusal() const {
    return message_of([&] { check_checkpoint(folder_.path()); });
  }

  TemporaryFolder folder_;
};

TEST_F(Folder, OfWhichNothingIsLeftOverIsTaken) {
  EXPECT_EQ(refusal(), "") << "biases of zeros belong to no layer of a llama, and change nothing";
  replace("model.safetensors", "up_proj.bias", "up_proj.beas");
  EXPECT_NE(refusal().find("'model.layers.0.mlp.up_proj.beas' belongs to no part"),
            std::string::npos)
      << refusal();
}

TEST_F(Folder, WithATensorThatIsMissingIsRefused) {
  replace("model.safetensors", "up_proj.scales", "up_proj.skales");
  EXPECT_NE(refusal().find("'model.layers.0.mlp.up_proj.scales' is missing"), std::string::npos)
      << refusal();
}

TEST_F(Folder, WithALayerThatIsNotQuantisedNeedsItsFloats) {
  replace("model.safetensors", "up_proj.qweight", "up_proj.kweight");
  EXPECT_NE(refusal().find("\"model.layers.0.mlp.up_proj.weight\" is missing"), std::string::npos)
      << refusal();
}

TEST_F(Folder, WithNothingQuantisedIsRefused) {
  const SafetensorsFolder folder(folder_.path());
  expect_refusal(
      [&] {
        QuantizedTensors(folder, {.method = "fp8", .layout = QuantizationConfig::Layout::kBytes});
      },
      "no tensor \"*.weight\" is quantised though config.json says fp8");
}

TEST_F(Folder, OfPackedWeightsNeedsTheirShapes) {
  replace("model.safetensors", "up_proj.qweight", "x.weight_packed");
  replace("model.safetensors", "up_proj.scales", "x.weight_scale");
  const SafetensorsFolder folder(folder_.path());
  expect_refusal(
      [&] {
        QuantizedTensors(folder, {.method = "compressed-tensors",
                                  .layout = QuantizationConfig::Layout::kPacked});
      },
      "'model.layers.0.mlp.x.weight_shape' is missing");
}

TEST_F(Folder, WithABiasThatIsNotZeroIsRefused) {
  change_first_byte_of("model.layers.0.mlp.up_proj.bias");
  EXPECT_NE(refusal().find("'model.layers.0.mlp.up_proj.bias' belongs to no part"),
            std::string::npos)
      << refusal();
}

TEST_F(Folder, HasADigestOfItsCodes) {
  const Digest first = Checkpoint(folder_.path()).digest();
  change_first_byte_of("model.layers.0.mlp.up_proj.qweight");
  EXPECT_NE(Checkpoint(folder_.path()).digest(), first);
}

// The same bytes are other weights.
TEST_F(Folder, HasADigestOfWhatItsConfigMakesOfIt) {
  const Digest first = Checkpoint(folder_.path()).digest();
  EXPECT_EQ(Checkpoint(folder_.path()).digest(), first);
  replace("config.json", "\"damp_percent\": 0.1", "\"damp_percent\": 0.2");
  EXPECT_EQ(Checkpoint(folder_.path()).digest(), first);
  replace("config.json", "\"sym\": true", "\"sym\": false");
  EXPECT_NE(Checkpoint(folder_.path()).digest(), first);
}

}  // namespace
}  // namespace droidspeak
