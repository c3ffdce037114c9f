#include <compare>
#include <cstring>
#include <map>
#include <unordered_map>

#include "ops/cuda/attention/attention_fused.h"

// The library is looked for when it is needed: the program also runs without it.
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include "base/check.h"
#include "ops/cuda/attention/attention_scratch.h"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // declared by cudnn-frontend; we only set it
}

namespace droidspeak::cuda {
namespace {

namespace fe = cudnn_frontend;

enum Uid : int64_t { kQ, kK, kV, kOut, kQOffsets, kOutOffsets, kQLength, kKeyLength };

// Plans for exact lengths are a tenth faster, but there are many lengths.
enum class Lengths { kExact, kAtMost };

// What a plan is made for.
struct PlanClass {
  Lengths lengths = Lengths::kAtMost;
  int64_t num_rows = 0;
  int64_t num_keys = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t q_stride = 0;
  int64_t out_stride = 0;
  float scale = 1;

  auto operator<=>(const PlanClass&) const = default;
};

// No tile of cuDNN's kernels reaches further behind the last key.
constexpr int64_t kKeyStep = 256;

// Few classes: making a plan takes a tenth of a second, and what a plan has too much of costs
// nothing.
int64_t rounded_length(int64_t length) {
  int64_t rounded = kKeyStep;
  while (rounded < length) rounded *= 8;
  return rounded;
}

// Whole chunks of a long prompt: few shapes, much work.
bool is_worth_exact_plan(int32_t num_rows, int32_t length) {
  constexpr int32_t kChunk = 4096;
  return num_rows % kChunk == 0 && length % kChunk == 0;
}

struct GatherTask {
  const uint4* k;
  const uint4* v;
  uint4* out;  // [K, V][capacity, num_kv_heads, head_dim]
  const int32_t* blocks;
  const int32_t* num_rows;  // of the slice
  const int32_t* length;
  int32_t* offsets;  // [q, out][2]
  int64_t capacity;
  int32_t chunks;  // of 16 bytes in one head of a token
  int32_t q_stride;
  int32_t out_stride;
};

// Blocks of the cache to rows of tokens: [block, head, K or V] = blockIdx. Zeros after the end: a
// masked value is still multiplied, by 0.
__global__ void gather_blocks(const __grid_constant__ GatherTask task) {
  const int64_t tile = blockIdx.x;
  const int64_t head = blockIdx.y;
  const int64_t heads = gridDim.y;
  const int64_t there = *task.length - tile * kBlockTokens;
  const int64_t block = there > 0 ? task.blocks[tile] : 0;
  const int32_t size = kBlockTokens * task.chunks;
  const uint4* from = (blockIdx.z == 0 ? task.k : task.v) + (block * heads + head) * size;
  const int64_t first = blockIdx.z * task.capacity + tile * kBlockTokens;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < size; i += blockDim.x) {
    const int32_t token = i / task.chunks;
    task.out[((first + token) * heads + head) * task.chunks + i % task.chunks] =
        token < there ? from[i] : uint4{0, 0, 0, 0};
  }
  if (tile + head + blockIdx.z + threadIdx.x > 0) return;
  task.offsets[0] = 0;
  task.offsets[1] = *task.num_rows * task.q_stride;
  task.offsets[2] = 0;
  task.offsets[3] = *task.num_rows * task.out_stride;
}

std::shared_ptr<fe::graph::Tensor_attributes> small_tensor(fe::graph::Graph& graph,
                                                           Uid uid,
                                                           int64_t count) {
  return graph.tensor(fe::graph::Tensor_attributes()
                          .set_uid(uid)
                          .set_dim({count, 1, 1, 1})
                          .set_stride({1, 1, 1, 1})
                          .set_data_type(fe::DataType_t::INT32));
}

std::unique_ptr<fe::graph::Graph> make_graph(const PlanClass& c) {
  auto graph = std::make_unique<fe::graph::Graph>();
  graph->set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  auto q = graph->tensor(fe::graph::Tensor_attributes()
                             .set_uid(kQ)
                             .set_dim({1, c.num_heads, c.num_rows, c.head_dim})
                             .set_stride({c.num_rows * c.q_stride, c.head_dim, c.q_stride, 1}));
  auto keys = [&](Uid uid) {
    const int64_t token = c.num_kv_heads * c.head_dim;
    return graph->tensor(fe::graph::Tensor_attributes()
                             .set_uid(uid)
                             .set_dim({1, c.num_kv_heads, c.num_keys, c.head_dim})
                             .set_stride({c.num_keys * token, c.head_dim, token, 1}));
  };
  auto attributes = fe::graph::SDPA_attributes()
                        .set_generate_stats(false)
                        .set_attn_scale(c.scale)
                        .set_diagonal_alignment(fe::DiagonalAlignment_t::BOTTOM_RIGHT)
                        .set_diagonal_band_right_bound(0);
  if (c.lengths == Lengths::kAtMost) {
    q->set_ragged_offset(small_tensor(*graph, kQOffsets, 2));
    attributes.set_padding_mask(true)
        .set_seq_len_q(small_tensor(*graph, kQLength, 1))
        .set_seq_len_kv(small_tensor(*graph, kKeyLength, 1));
  }
  auto out = graph->sdpa(q, keys(kK), keys(kV), attributes)[0];
  out->set_output(true)
      .set_uid(kOut)
      .set_dim({1, c.num_heads, c.num_rows, c.head_dim})
      .set_stride({c.num_rows * c.out_stride, c.head_dim, c.out_stride, 1});
  // Offsets bound the rows, so that nothing is written behind the slice's.
  if (c.lengths == Lengths::kAtMost) out->set_ragged_offset(small_tensor(*graph, kOutOffsets, 2));
  return graph;
}

}  // namespace

class FusedAttention::Plans {
 public:
  explicit Plans(cudaStream_t stream) : keys_(stream), workspace_(stream), offsets_(stream) {
    if (fe::cudnn_dlhandle == nullptr) fe::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_NOW);
    if (fe::cudnn_dlhandle == nullptr) return;
    if (fe::detail::create_handle(&handle_) != CUDNN_STATUS_SUCCESS) handle_ = nullptr;
    if (handle_ != nullptr) fe::detail::set_stream(handle_, stream);
  }

  ~Plans() {
    if (handle_ != nullptr) fe::detail::destroy_handle(handle_);
  }

  Plans(const Plans&) = delete;
  Plans& operator=(const Plans&) = delete;

  bool has_library() const { return handle_ != nullptr; }

  // Null when cuDNN refuses the class.
  fe::graph::Graph* find(const PlanClass& wanted) {
    auto [found, is_new] = graphs_.try_emplace(wanted);
    if (is_new) {
      auto graph = make_graph(wanted);
      if (graph->build(handle_, {fe::HeurMode_t::A}).is_good()) found->second = std::move(graph);
    }
    return found->second.get();
  }

  [[nodiscard]] bool execute(fe::graph::Graph& graph, std::unordered_map<int64_t, void*>& tensors) {
    int64_t bytes = 0;
    if (graph.get_workspace_size(bytes).is_bad()) return false;
    void* workspace = workspace_.reserve(static_cast<size_t>(bytes));
    return graph.execute(handle_, tensors, workspace).is_good();
  }

  AttentionScratch& keys() { return keys_; }

  int32_t* offsets() { return reinterpret_cast<int32_t*>(offsets_.reserve(4 * sizeof(int32_t))); }

 private:
  cudnnHandle_t handle_ = nullptr;
  AttentionScratch keys_;
  AttentionScratch workspace_;
  AttentionScratch offsets_;
  std::map<PlanClass, std::unique_ptr<fe::graph::Graph>> graphs_;
};

FusedAttention::FusedAttention(cudaStream_t stream)
    : stream_(stream), plans_(std::make_unique<Plans>(stream)) {}

FusedAttention::~FusedAttention() = default;

bool FusedAttention::supports(const TensorView& qkv,
                              const AttentionOptions& options,
                              const BatchLayout& layout,
                              const KvLayerView& kv) const {
  const bool has_window = options.sliding_window > 0 && options.sliding_window < layout.max_length;
  return plans_->has_library() && !has_window && options.soft_cap == 0 &&
         options.sinks == nullptr && qkv.dtype == DType::kBF16 && kv.dtype == DType::kBF16 &&
         kv.head_dim % 8 == 0 && kv.head_dim <= 128 && qkv.row_stride % 8 == 0;
}

bool FusedAttention::run(TensorView qkv,
                         const AttentionOptions& options,
                         const BatchLayout& layout,
                         int32_t slice,
                         const KvLayerView& kv,
                         TensorView out) {
  const SequenceSlice& rows = layout.on_host[static_cast<size_t>(slice)];
  const int32_t length = rows.length();
  const bool is_exact = is_worth_exact_plan(rows.num_rows, length);
  const PlanClass wanted{.lengths = is_exact ? Lengths::kExact : Lengths::kAtMost,
                         .num_rows = is_exact ? rows.num_rows : rounded_length(rows.num_rows),
                         .num_keys = is_exact ? length : rounded_length(length),
                         .num_heads = options.num_heads,
                         .num_kv_heads = kv.num_kv_heads,
                         .head_dim = kv.head_dim,
                         .q_stride = qkv.row_stride,
                         .out_stride = out.row_stride,
                         .scale = options.scale};
  fe::graph::Graph* graph = plans_->find(wanted);
  if (graph == nullptr) return false;
  check(rows.num_rows * qkv.row_stride < INT32_MAX, "a slice's rows are addressed with 32 bits");

  const int64_t capacity = (length / kKeyStep + 1) * kKeyStep;
  const int64_t half = capacity * wanted.num_kv_heads * wanted.head_dim;
  auto* keys = reinterpret_cast<uint16_t*>(
      plans_->keys().reserve(2 * static_cast<size_t>(half) * sizeof(uint16_t)));
  const GatherTask task{.k = static_cast<const uint4*>(kv.k),
                        .v = static_cast<const uint4*>(kv.v),
                        .out = reinterpret_cast<uint4*>(keys),
                        .blocks = layout.blocks + static_cast<int64_t>(slice) * layout.max_blocks,
                        .num_rows = layout.slice_rows + slice,
                        .length = layout.slice_length + slice,
                        .offsets = plans_->offsets(),
                        .capacity = capacity,
                        .chunks = kv.head_dim / 8,
                        .q_stride = static_cast<int32_t>(qkv.row_stride),
                        .out_stride = static_cast<int32_t>(out.row_stride)};
  const dim3 grid(static_cast<unsigned>(capacity / kBlockTokens),
                  static_cast<unsigned>(kv.num_kv_heads), 2);
  gather_blocks<<<grid, 256, 0, stream_>>>(task);
  check_launch("gathering of K/V");

  auto* q = static_cast<uint16_t*>(qkv.data) + rows.first_row * qkv.row_stride;
  auto* target = static_cast<uint16_t*>(out.data) + rows.first_row * out.row_stride;
  std::unordered_map<int64_t, void*> tensors{
      {kQ, q}, {kK, keys}, {kV, keys + half}, {kOut, target}};
  if (!is_exact) {
    tensors[kQOffsets] = task.offsets;
    tensors[kOutOffsets] = task.offsets + 2;
    tensors[kQLength] = const_cast<int32_t*>(layout.slice_rows + slice);
    tensors[kKeyLength] = const_cast<int32_t*>(layout.slice_length + slice);
  }
  return plans_->execute(*graph, tensors);
}

}  // namespace droidspeak::cuda
