// Joins norms and activations with the products beside them, which saves a launch each and the way
// through memory in between. That is only possible while a step is queued as a whole: an operation
// waits here until it is known what comes next.
#pragma once

#include <optional>

#include "ops/cuda/attention/attention_tiles.h"
#include "ops/cuda/products/few_rows.h"
#include "ops/cuda/products/linear.h"

namespace droidspeak::cuda {

// What rotate_and_store() is called with.
struct Rotation {
  TensorView qkv;
  RopeOptions options;
  const BatchLayout* layout;
  KvLayerView kv;
  ReadAhead ahead;
};

class OpJoiner {
 public:
  explicit OpJoiner(Linear& linear) : linear_(linear) {}

  // Operations may wait, from here to forget().
  void begin(cudaStream_t stream) { stream_ = stream; }

  // Queues what waits; needed before other operations and at the end.
  void flush();
  // What waits is not queued: for the end, or when something failed.
  void forget();

  // The operations of ops.h. False: they cannot wait, and what had waited is queued.
  [[nodiscard]] bool rms_norm(TensorView in, const float* weight, float epsilon, TensorView out);
  [[nodiscard]] bool linear(const Product& product);
  [[nodiscard]] bool gated_activation(TensorView in, Activation activation, TensorView out);

  // A rotation waits for the attention over what it stores.
  [[nodiscard]] bool rotate_and_store(const Rotation& rotation);
  // The one that waits, if it is of these tensors.
  std::optional<RotationBefore> take_rotation(TensorView qkv, const KvLayerView& kv);

  // The norm that waits and gives these rows, for a kernel that norms them itself; all else that
  // had waited is queued.
  std::optional<NormedRows> take_norm(TensorView rows);

 private:
  bool is_active() const { return stream_ != nullptr; }

  Linear& linear_;
  cudaStream_t stream_ = nullptr;   // null: nothing waits
  std::optional<NormedRows> norm_;  // only one of the three waits
  std::optional<Rotation> rotation_;
  std::optional<FewRowsProduct> product_;
};

}  // namespace droidspeak::cuda
