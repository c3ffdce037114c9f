#include <algorithm>

#include "base/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/cuda/attention.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/layout_cache.h"
#include "ops/cuda/linear.h"
#include "ops/cuda/upload.h"
#include "ops/cuda/weight_packer.h"
#include "ops/preconditions.h"

namespace droidspeak {
namespace cuda {
namespace {

// Cached positions translated at a time: bounds the gathered rows.
constexpr int32_t kTranslateRows = 4096;

bool is_activation(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16;
}

bool has_same_shape(const TensorView& a, const TensorView& b) {
  return a.rows == b.rows && a.columns == b.columns;
}

class CudaOps final : public Ops {
 public:
  CudaOps(CudaDevice& device, Precision precision)
      : device_(device),
        activation_dtype_(precision == Precision::kExact ? DType::kF32 : DType::kBF16),
        packer_(device),
        linear_(device),
        attention_(device.stream()),
        layouts_(device),
        tokens_(device) {}

  Device& device() override { return device_; }

  DType activation_dtype() const override { return activation_dtype_; }

  int32_t prefill_rows() const override { return 8192; }

  std::unique_ptr<WeightMatrix> pack(std::span<const MatrixPart> parts,
                                     Precision precision) override {
    check(!parts.empty(), "a matrix has parts");
    return packer_.pack(parts, precision == Precision::kExact ? DType::kF32 : DType::kBF16);
  }

  void embed(const WeightMatrix& table, std::span<const int32_t> tokens, TensorView out) override {
    check(out.rows == std::ssize(tokens) && out.columns == table.columns(), "shape of embeddings");
    if (tokens.empty()) return;
    cuda::embed(device_.stream(), as_cuda(table), tokens_.send(tokens), out);
  }

  void linear(const WeightMatrix& weights,
              TensorView in,
              TensorView out,
              Accumulate accumulate,
              const float* bias) override {
    check(in.dtype == as_cuda(weights).view().dtype, "rows of the dtype of the weights");
    check(out.dtype == in.dtype || out.dtype == DType::kF32, "products of the rows' dtype or f32");
    check(in.columns == weights.columns() && out.columns == weights.rows() && in.rows == out.rows,
          "shapes of a linear operation");
    linear_.run(as_cuda(weights), in, out, accumulate, bias);
  }

  void rms_norm(TensorView in, const float* weight, float epsilon, TensorView out) override {
    check(has_same_shape(in, out) && in.dtype == out.dtype, "shapes of a norm");
    if (in.rows > 0) cuda::rms_norm(device_.stream(), in, weight, epsilon, out);
  }

  void gated_activation(TensorView in, Activation activation, TensorView out) override {
    check(in.rows == out.rows && in.columns == 2 * out.columns && in.dtype == out.dtype,
          "shapes of a gated activation");
    if (in.rows > 0) cuda::gated_activation(device_.stream(), in, activation, out);
  }

  void rotate_and_store(TensorView qkv,
                        const RopeOptions& options,
                        std::span<const SequenceSlice> slices,
                        const KvLayerView& kv) override {
    check_heads(options, kv);
    const int32_t heads = options.num_heads + 2 * options.num_kv_heads;
    check(qkv.columns == static_cast<int64_t>(heads) * options.head_dim, "columns of qkv rows");
    check_slices(slices, qkv.rows);
    if (slices.empty()) return;
    cuda::rotate_and_store(device_.stream(), qkv, options, layouts_.get(slices), kv);
  }

  void attention(TensorView qkv,
                 const AttentionOptions& options,
                 std::span<const SequenceSlice> slices,
                 const KvLayerView& kv,
                 TensorView out) override {
    check_attention(qkv, options, kv, out);
    check_slices(slices, qkv.rows);
    if (slices.empty()) return;
    attention_.run(qkv, options, layouts_.get(slices), kv, out);
  }

  void translate_kv(const LowRankMap& map,
                    const RopeOptions& rope,
                    const SequenceSlice& range,
                    const KvLayerView& kv) override {
    check_heads(rope, kv);
    const int64_t columns = 2 * static_cast<int64_t>(kv.num_kv_heads) * kv.head_dim;
    check(map.down->columns() == columns, "map of K and V rows");
    const int32_t last = range.first_position + range.num_rows;
    for (int32_t begin = range.first_position; begin < last; begin += kTranslateRows) {
      const int32_t rows = std::min(kTranslateRows, last - begin);
      const SequenceSlice part{0, rows, begin, range.blocks};
      check_slices({&part, 1}, rows);
      const BatchLayout& layout = layouts_.get({&part, 1});
      TensorView view = translated_.reshape(device_, DType::kF32, rows, columns);
      gather_kv(device_.stream(), rope, layout, kv, view);
      add_map(map, view);
      scatter_kv(device_.stream(), rope, layout, kv, view);
    }
  }

  // A map is f32 whatever the activations are.
  void translate_rows(const LowRankMap& map, TensorView rows) override {
    check(map.up->columns() == map.down->rows() && map.up->rows() == rows.columns,
          "shapes of a low-rank map");
    if (rows.rows == 0) return;
    if (rows.dtype == as_cuda(*map.down).view().dtype) return add_map(map, rows);
    TensorView view = translated_.reshape(device_, DType::kF32, rows.rows, rows.columns);
    convert(device_.stream(), rows, view);
    add_map(map, view);
    convert(device_.stream(), view, rows);
  }

  void copy(TensorView in, TensorView out) override {
    check(has_same_shape(in, out), "shapes of a copy");
    if (in.rows == 0 || in.columns == 0) return;
    if (in.dtype != out.dtype) return convert(device_.stream(), in, out);
    check_cuda(
        cudaMemcpy2DAsync(out.data, bytes_of(out.dtype, out.row_stride), in.data,
                          bytes_of(in.dtype, in.row_stride), bytes_of(in.dtype, in.columns),
                          static_cast<size_t>(in.rows), cudaMemcpyDeviceToDevice, device_.stream()),
        "copy rows");
  }

  void argmax(TensorView in, std::span<int32_t> out) override {
    check(in.rows == std::ssize(out) && in.columns > 0 && is_activation(in.dtype),
          "shapes of argmax");
    if (out.empty()) return;
    TensorView best = best_.reshape(device_, DType::kI32, 1, in.rows);
    cuda::argmax(device_.stream(), in, static_cast<int32_t*>(best.data));
    device_.to_host(out.data(), best.data, out.size_bytes());
  }

 private:
  void add_map(const LowRankMap& map, TensorView rows) {
    TensorView hidden = hidden_.reshape(device_, rows.dtype, rows.rows, map.down->rows());
    linear(*map.down, rows, hidden, Accumulate::kOverwrite, nullptr);
    linear(*map.up, hidden, rows, Accumulate::kAdd, map.bias);
  }

  CudaDevice& device_;
  const DType activation_dtype_;
  WeightPacker packer_;
  Linear linear_;
  Attention attention_;
  LayoutCache layouts_;
  UploadRing tokens_;
  Tensor translated_;  // rows of a map's input
  Tensor hidden_;      // rows after the first half of a low-rank map
  Tensor best_;        // of argmax
};

}  // namespace
}  // namespace cuda

std::unique_ptr<Ops> make_cuda_ops(Device& device, Precision precision) {
  check(device.kind() == DeviceKind::kCuda, "CUDA operations work on a CUDA device");
  return std::make_unique<cuda::CudaOps>(static_cast<cuda::CudaDevice&>(device), precision);
}

}  // namespace droidspeak
