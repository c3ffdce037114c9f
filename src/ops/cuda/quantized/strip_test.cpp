#include "device/cuda/cuda_device.h"
#include "ops/cuda/cuda_fixture.h"
#include "ops/cuda/products/cuda_matrix.h"
#include "ops/cuda/quantized/expand.h"
#include "ops/cuda/quantized/strip_fixture.h"

namespace droidspeak::cuda {
namespace {

using cpu::random_matrix;

class StripTest : public StripFixture {
 protected:
  // What expanding rows [begin, end) of the first stack gives.
  Floats expanded(const WeightMatrix& matrix, int64_t begin, int64_t end) {
    DeviceFloats out =
        on_device(DType::kBF16, Floats(static_cast<size_t>((end - begin) * matrix.columns()), NAN),
                  end - begin);
    expand_strips(stream(), as_cuda(matrix).stacks().front(), begin, out.view());
    return out.read();
  }

  Floats looked_up(const WeightMatrix& matrix, const std::vector<int32_t>& tokens, DType dtype) {
    const int64_t rows = std::ssize(tokens);
    DeviceFloats out =
        on_device(dtype, Floats(static_cast<size_t>(rows * matrix.columns()), NAN), rows);
    fast_->embed(matrix, tokens, out.view());
    return out.read();
  }
};

TEST_F(StripTest, ExpandsToWhatTheHostDequantises) {
  for (DType dtype : kStripDtypes) {
    for (int64_t rows : {1, 8, 9, 37, 300}) {
      for (int64_t columns : {1, 96, 576, 4096}) {
        const Quantized source = quantized(dtype, rows, columns);
        SCOPED_TRACE(testing::Message()
                     << name_of(dtype) << " " << rows << " x " << source.columns);
        const auto matrix = pack({&source, 1});
        EXPECT_EQ(matrix->format(), name_of(dtype));
        ASSERT_EQ(expanded(*matrix, 0, rows), rounded(source.values));
        if (rows < 37) continue;
        const Floats part(source.values.begin() + 16 * source.columns,
                          source.values.begin() + 35 * source.columns);
        ASSERT_EQ(expanded(*matrix, 16, 35), rounded(part)) << "a part";
      }
    }
  }
}

TEST_F(StripTest, LooksUpRowsOfOneAndOfSeveralFormats) {
  const std::vector<int32_t> tokens{41, 0, 7, 8, 20, 20, 36, 21};
  for (DType dtype : kStripDtypes) {
    SCOPED_TRACE(name_of(dtype));
    const Quantized sources[] = {quantized(dtype, 21, 768), quantized(DType::kQ6_K, 16, 768),
                                 quantized(DType::kQ8_0, 5, 768)};
    const auto matrix = pack(sources);
    ASSERT_EQ(matrix->rows(), 42);
    Floats all;
    for (const Quantized& source : sources)
      all.insert(all.end(), source.values.begin(), source.values.end());
    Floats expected;
    for (int32_t token : tokens)
      expected.insert(expected.end(), all.begin() + token * 768, all.begin() + (token + 1) * 768);
    EXPECT_EQ(looked_up(*matrix, tokens, DType::kF32), expected);
    EXPECT_EQ(looked_up(*matrix, tokens, DType::kBF16), rounded(expected));
  }
}

TEST_F(StripTest, UploadsMatricesOfManyPiecesInTheOrderOfTheirRows) {
  const Quantized source = quantized(DType::kQ4_0, 128, 4096);
  std::vector<int32_t> order(32013);  // 74 MB: more pieces than there are pinned buffers
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i * 7 % 128);
  const MatrixPart part{.dtype = DType::kQ4_0,
                        .rows = std::ssize(order),
                        .columns = 4096,
                        .bytes = source.bytes,
                        .row_order = order};
  const auto matrix = fast_->pack({&part, 1}, Precision::kFast);
  for (int32_t token : {0, 1, 9000, 15999, 16000, 24001, 32012}) {
    const auto from = source.values.begin() + order[static_cast<size_t>(token)] * 4096;
    EXPECT_EQ(looked_up(*matrix, {token}, DType::kF32), Floats(from, from + 4096)) << token;
  }
}

TEST_F(StripTest, ExactPrecisionAndOtherFormatsStayPlain) {
  const Quantized source = quantized(DType::kQ4_K, 32, 512);
  const MatrixPart part = source.part();
  EXPECT_EQ(fast_->pack({&part, 1}, Precision::kExact)->format(), "f32");
  EXPECT_EQ(fast_->pack({&part, 1}, Precision::kFine)->format(), "q4_k");
  const auto halves = random_matrix(random_, DType::kF16, 4, 512);
  const MatrixPart parts[] = {part, {DType::kF16, 4, 512, halves, {}}};
  EXPECT_EQ(fast_->pack(parts, Precision::kFast)->format(), "bf16");
}

}  // namespace
}  // namespace droidspeak::cuda
