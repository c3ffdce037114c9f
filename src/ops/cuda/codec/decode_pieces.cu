// One block of threads decodes one piece. Its first warp reads the 32 streams, a few rows at a
// time, into shared memory; the others make values of the rows before. What a lane waits for is its
// own stream: the two look-ups of a symbol are in shared memory.
#include <algorithm>

#include "device/cuda/cuda_handles.h"
#include "ops/cuda/device_code/runs_here.h"
#include "ops/cuda/device_code/vector.cuh"
#include "ops/piece_kernel.h"

namespace droidspeak::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWriters = kThreads / 32 - 1;  // warps that make values
constexpr int kRows = 2 * kBlockTokens;      // K's, then V's
constexpr int kMostChunkRows = 16;
constexpr int kChunkSymbols = 4096;
constexpr int kSymbolBytes = kPieceDistributions * kPieceSlots;
constexpr int kRanges = kPieceDistributions * kPieceSymbols;
constexpr int kMark = kPieceSymbols - 1 - kPieceZero;  // an escape until its value is in its place
constexpr uint32_t kNoEscape = ~0u;
constexpr uint32_t kTouchedBytes = 128;  // of each stream ahead: more than one chunk takes

// Rows that are decoded between two meetings of the warps; divides kBlockTokens.
__host__ __device__ inline int chunk_rows(int row_channels) {
  int rows = kMostChunkRows;
  while (rows > 1 && rows * row_channels > kChunkSymbols) rows /= 2;
  return rows;
}

// A lane takes four channels at a time, 32 apart from each other.
__host__ __device__ inline int quads(int row_channels) {
  return (row_channels + 127) / 128;
}

size_t shared_bytes(int row_channels) {
  const auto rows = static_cast<size_t>(2 * chunk_rows(row_channels) * row_channels);
  const auto words = static_cast<size_t>(kRanges + 2 * 32 + 2 * 32 * quads(row_channels));
  return kSymbolBytes + words * sizeof(uint32_t) + rows * sizeof(int16_t);
}

struct SharedParts {
  uint8_t* symbols;
  uint32_t* ranges;
  uint32_t* places;         // of each lane's next word after this round and after the last
  int16_t* rows;            // two chunks
  uint32_t* distributions;  // [2, quads, 32]: of a lane's four channels, 8 bits each
};

struct DecodeTask {
  PieceTables tables;
  PieceBatch batch;
  KvLayerView kv;
};

__device__ SharedParts share(unsigned char* memory, int row_channels) {
  SharedParts shared;
  shared.symbols = memory;
  shared.ranges = reinterpret_cast<uint32_t*>(memory + kSymbolBytes);
  shared.places = shared.ranges + kRanges;
  shared.rows = reinterpret_cast<int16_t*>(shared.places + 64);
  shared.distributions =
      reinterpret_cast<uint32_t*>(shared.rows + 2 * chunk_rows(row_channels) * row_channels);
  return shared;
}

__device__ void copy_tables(const PieceTables& tables, const SharedParts& shared) {
  const auto* symbols = reinterpret_cast<const uint4*>(tables.symbols);
  for (int i = threadIdx.x; i < kSymbolBytes / 16; i += kThreads)
    reinterpret_cast<uint4*>(shared.symbols)[i] = symbols[i];
  for (int i = threadIdx.x; i < kRanges; i += kThreads) shared.ranges[i] = tables.ranges[i];
  const int channels = tables.row_channels;
  auto* distributions = reinterpret_cast<uint8_t*>(shared.distributions);
  for (int half = 0; half < 2; ++half) {
    for (int c = threadIdx.x; c < channels; c += kThreads) {
      const int quad = half * quads(channels) + c / 128;
      distributions[4 * (32 * quad + c % 32) + c / 32 % 4] =
          tables.distributions[half * channels + c];
    }
  }
}

__device__ uint32_t load_word(const std::byte* at) {
  return __ldg(reinterpret_cast<const unsigned short*>(at));
}

__device__ uint32_t load_two_words(const std::byte* at) {
  return load_word(at) | load_word(at + 2) << 16;
}

// One lane's stream, and one of 32 escapes that come next.
class StreamReader {
 public:
  __device__ StreamReader(const std::byte* bytes, const PieceTask& task, int lane)
      : bytes_(bytes),
        escapes_at_(task.escapes_at),
        num_escapes_(task.num_escapes),
        lane_(lane),
        state_(load_two_words(bytes + task.states_at + 4 * lane)) {
    const uint32_t num_words = load_word(bytes + task.num_words_at + 2 * lane);
    uint32_t end = num_words;
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t before = __shfl_up_sync(~0u, end, step);
      if (lane >= step) end += before;
    }
    at_ = task.words_at + 2 * (end - num_words);
    last_ = task.words_at + 2 * end;
    next_ = load_word(bytes + at_);
    load_escape();
  }

  // Rows of one half, whose distributions these are.
  __device__ void read_rows(const SharedParts& shared,
                            const uint32_t* distributions,
                            int num_rows,
                            int row_channels,
                            int16_t* rows) {
    for (int row = 0; row < num_rows; ++row, rows += row_channels) {
      for (int quad = 0; quad < quads(row_channels); ++quad) {
        const uint32_t four = distributions[32 * quad + lane_];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int first = 128 * quad + 32 * i;
          if (first < row_channels) rows[first + lane_] = read(shared, four >> 8 * i & 0xff);
        }
      }
    }
  }

  // Escapes whose index is below `end`, into rows that begin with index `first`.
  __device__ void put_escapes(uint32_t first, uint32_t end, int16_t* rows) {
    __syncwarp();
    while (true) {
      if (index_ < end) {
        const bool is_at_mark = index_ >= first && rows[index_ - first] == kMark;
        if (is_at_mark) rows[index_ - first] = static_cast<int16_t>(value_);
        is_right_ = is_right_ && is_at_mark;
        index_ = kNoEscape;
        ++num_put_;
      }
      const bool is_window_done = __all_sync(~0u, index_ == kNoEscape);
      if (!is_window_done || window_ + 32 >= num_escapes_) return;
      window_ += 32;
      load_escape();
    }
  }

  __device__ uint32_t place() const {
    return at_;
  }

  // Whether every word was taken in, the state is where the encoder began, and each mark has its
  // escape.
  __device__ bool is_finished() const {
    const bool is_done = is_right_ && at_ == last_ && state_ == 1u << 16;
    const unsigned num_marks = __reduce_add_sync(~0u, num_marks_);
    const unsigned num_put = __reduce_add_sync(~0u, num_put_);
    return __all_sync(~0u, is_done) && num_marks == num_escapes_ && num_put == num_escapes_;
  }

 private:
  __device__ int16_t read(const SharedParts& shared, unsigned distribution) {
    const uint32_t slot = state_ % kPieceSlots;
    const unsigned symbol = shared.symbols[distribution * kPieceSlots + slot];
    const uint32_t range = shared.ranges[distribution * kPieceSymbols + symbol];
    uint32_t state = (range >> 16) * (state_ / kPieceSlots) + slot - (range & 0xffff);
    if (state < 1u << 16) {
      state = state << 16 | next_;
      at_ = at_ < last_ ? at_ + 2 : last_;
      next_ = load_word(bytes_ + at_);
    }
    state_ = state;
    num_marks_ += symbol == kPieceSymbols - 1;
    return static_cast<int16_t>(static_cast<int>(symbol) - kPieceZero);
  }

  __device__ void load_escape() {
    const uint32_t number = window_ + static_cast<uint32_t>(lane_);
    index_ = kNoEscape;
    if (number >= num_escapes_) return;
    const std::byte* escape = bytes_ + escapes_at_ + 8 * number;
    index_ = load_two_words(escape);
    value_ = static_cast<int32_t>(load_two_words(escape + 4));
  }

  const std::byte* bytes_;
  uint32_t escapes_at_;
  uint32_t num_escapes_;
  int lane_;
  uint32_t state_;
  uint32_t at_;    // of next_
  uint32_t last_;  // the stream's end: nothing behind the word there is read
  uint32_t next_;
  unsigned num_marks_ = 0;
  unsigned num_put_ = 0;
  uint32_t window_ = 0;  // number of lane 0's escape
  uint32_t index_ = kNoEscape;
  int32_t value_ = 0;
  bool is_right_ = true;
};

// Multiplies and adds apart, as the CPU does: the same bits come out.
__device__ float value_of(float mean, float step, float scale, int symbol) {
  return __fadd_rn(mean, __fmul_rn(__fmul_rn(step, scale), static_cast<float>(symbol)));
}

// Makes values of one head of one token.
template <class T>
class HeadWriter {
 public:
  __device__ HeadWriter(const DecodeTask& task, const PieceTask& piece, int lane)
      : tables_(task.tables),
        bytes_(task.batch.bytes),
        piece_(piece),
        kv_(task.kv),
        first_turns_(task.batch.first_turns + 2 * int64_t{blockIdx.x} * task.tables.num_pairs),
        lane_(lane) {}

  // `symbols` are the head's.
  __device__ void write(int half, int token, int head, const int16_t* symbols) const {
    const int64_t slot = (int64_t{piece_.block} * kv_.num_kv_heads + head) * kBlockTokens + token;
    T* to = static_cast<T*>(half == 0 ? kv_.k : kv_.v) + slot * kv_.head_dim;
    if (token < piece_.num_exact) return copy_exact(half, token, head, to);
    const int64_t channel = int64_t{half} * tables_.row_channels + head * kv_.head_dim;
    const float* means = tables_.means + channel;
    const float* steps = tables_.steps + channel;
    const float scale = half == 0 ? 1.0f : scale_of(token);
    const int pairs = half == 0 ? tables_.num_pairs : 0;
    auto value_at = [&](int i) {
      return value_of(__ldg(means + i), __ldg(steps + i), scale, symbols[i]);
    };
    for (int i = lane_; i < pairs; i += 32) {
      const float2 turn = turn_of(token, i);
      const float x = value_at(i);
      const float y = value_at(pairs + i);
      to[i] = from_float<T>(__fsub_rn(__fmul_rn(x, turn.x), __fmul_rn(y, turn.y)));
      to[pairs + i] = from_float<T>(__fadd_rn(__fmul_rn(y, turn.x), __fmul_rn(x, turn.y)));
    }
    for (int i = 2 * pairs + lane_; i < kv_.head_dim; i += 32) to[i] = from_float<T>(value_at(i));
  }

 private:
  __device__ float scale_of(int token) const {
    const auto both =
        __ldg(reinterpret_cast<const uint8_t*>(bytes_ + piece_.scales_at) + token / 2);
    return tables_.scales[token % 2 == 0 ? both & 15 : both >> 4];
  }

  // Cosine and sine: the angle of the block's first token, and that from there on.
  __device__ float2 turn_of(int token, int i) const {
    const int pairs = tables_.num_pairs;
    const float* on = tables_.turns + 2 * token * pairs + i;
    const float cosine = __ldg(on);
    const float sine = __ldg(on + pairs);
    const float first_cosine = __ldg(first_turns_ + i);
    const float first_sine = __ldg(first_turns_ + pairs + i);
    return {__fsub_rn(__fmul_rn(first_cosine, cosine), __fmul_rn(first_sine, sine)),
            __fadd_rn(__fmul_rn(first_sine, cosine), __fmul_rn(first_cosine, sine))};
  }

  __device__ void copy_exact(int half, int token, int head, T* to) const {
    constexpr int kWords = sizeof(T) / 2;
    const int64_t row = (int64_t{half} * piece_.num_exact + token) * kv_.num_kv_heads + head;
    const std::byte* from = bytes_ + piece_.exact_at + row * kv_.head_dim * int64_t{sizeof(T)};
    auto* words = reinterpret_cast<unsigned short*>(to);
    for (int i = lane_; i < kWords * kv_.head_dim; i += 32)
      words[i] = static_cast<unsigned short>(load_word(from + 2 * i));
  }

  const PieceTables& tables_;
  const std::byte* bytes_;
  const PieceTask piece_;
  const KvLayerView& kv_;
  const float* first_turns_;
  int lane_;
};

// Brings words that the streams will soon come to into the first cache.
__device__ void touch_ahead(const DecodeTask& task, const PieceTask& piece, uint32_t place) {
  for (uint32_t ahead = 32; ahead <= kTouchedBytes; ahead += 32) {
    const uint32_t at = min(place + ahead, piece.states_at);
    unsigned short word;
    asm volatile("ld.global.ca.u16 %0, [%1];" : "=h"(word) : "l"(task.batch.bytes + at));
  }
}

// grid: pieces. A round decodes one chunk and makes values of the one before.
template <class T>
__global__ void __launch_bounds__(kThreads) decode_kernel(const __grid_constant__ DecodeTask task) {
  extern __shared__ __align__(16) unsigned char memory[];
  const int row_channels = task.tables.row_channels;
  const int rows = chunk_rows(row_channels);
  const SharedParts shared = share(memory, row_channels);
  const PieceTask piece = task.batch.tasks[blockIdx.x];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  copy_tables(task.tables, shared);
  StreamReader reader(task.batch.bytes, piece, lane);
  const HeadWriter<T> writer(task, piece, lane);
  const int heads = task.kv.num_kv_heads;
  if (warp == 0) shared.places[32 + lane] = reader.place();
  __syncthreads();
  for (int first = 0; first <= kRows; first += rows) {
    const int round = first / rows;
    if (warp == 0 && first < kRows) {
      int16_t* chunk = shared.rows + round % 2 * rows * row_channels;
      const uint32_t* distributions =
          shared.distributions + first / kBlockTokens * quads(row_channels) * 32;
      reader.read_rows(shared, distributions, rows, row_channels, chunk);
      reader.put_escapes(static_cast<uint32_t>(first * row_channels),
                         static_cast<uint32_t>((first + rows) * row_channels), chunk);
      shared.places[round % 2 * 32 + lane] = reader.place();
    }
    if (warp == 1) touch_ahead(task, piece, shared.places[(round + 1) % 2 * 32 + lane]);
    if (warp > 0 && first > 0) {
      const int before = first - rows;
      const int16_t* chunk = shared.rows + (round + 1) % 2 * rows * row_channels;
      for (int i = warp - 1; i < rows * heads; i += kWriters) {
        const int row = i / heads;
        const int head = i % heads;
        writer.write(before / kBlockTokens, (before + row) % kBlockTokens, head,
                     chunk + row * row_channels + head * task.kv.head_dim);
      }
    }
    __syncthreads();
  }
  if (warp != 0) return;
  const bool is_finished = reader.is_finished();
  if (lane == 0 && !is_finished) task.batch.is_damaged[blockIdx.x] = 1;
}

class CudaPieceKernel final : public PieceKernel {
 public:
  void decode(const PieceTables& tables, const PieceBatch& batch, const KvLayerView& kv) override {
    if (batch.num_pieces == 0) return;
    const DecodeTask task{tables, batch, kv};
    switch (kv.dtype) {
      case DType::kF16:
        return launch(decode_kernel<__half>, task);
      case DType::kBF16:
        return launch(decode_kernel<__nv_bfloat16>, task);
      default:
        check(kv.dtype == DType::kF32, "only floats are coded");
        return launch(decode_kernel<float>, task);
    }
  }

 private:
  void launch(void (*kernel)(DecodeTask), const DecodeTask& task) {
    const size_t bytes = shared_bytes(task.tables.row_channels);
    check_cuda(
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "give a kernel shared memory");
    kernel<<<static_cast<unsigned>(task.batch.num_pieces), kThreads, bytes, stream_.get()>>>(task);
    check_launch("decode K/V");
    end_.record(stream_.get());
    end_.wait();
  }

  Stream stream_;
  Marker end_;
};

}  // namespace
}  // namespace droidspeak::cuda

namespace droidspeak {

std::unique_ptr<PieceKernel> make_piece_kernel(const Device& device, int32_t row_channels) {
  if (device.kind() != DeviceKind::kCuda) return nullptr;
  const int room = cuda::attribute_of_device(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  if (cuda::shared_bytes(row_channels) > static_cast<size_t>(room)) return nullptr;
  return std::make_unique<cuda::CudaPieceKernel>();
}

}  // namespace droidspeak
