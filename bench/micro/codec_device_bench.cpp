// Speed of decoding coded K/V on a GPU, of one layer of a context: from pinned host memory into the
// paged cache, as a load does it, and of the kernel alone. Values are made up
// (codec/test_values.h); what they take coded is printed. One core of the CPU beside it.
//   codec_device_bench
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "codec/device_decoder.h"
#include "codec/kv_codec.h"
#include "codec/test_values.h"
#include "kv/kv_cache.h"
#include "micro/bench_clock.h"

namespace {

using namespace droidspeak;  // NOLINT(google-build-using-namespace)

constexpr int kRounds = 20;
constexpr int kWallClock = 2;  // more than one thread: the device counts

// Counts the time from launch to end.
class TimedKernel final : public PieceKernel {
 public:
  TimedKernel(std::unique_ptr<PieceKernel> kernel, double& ms)
      : kernel_(std::move(kernel)), ms_(ms) {}

  void decode(const PieceTables& tables, const PieceBatch& batch, const KvLayerView& kv) override {
    bench::BenchClock clock(kWallClock);
    kernel_->decode(tables, batch, kv);
    ms_ += clock.ms();
  }

 private:
  std::unique_ptr<PieceKernel> kernel_;
  double& ms_;
};

struct Coded {
  std::shared_ptr<const CodecTables> tables;
  std::vector<std::vector<std::byte>> pieces;
  size_t bytes = 0;
};

Coded encode(const KvLayout& layout, uint32_t num_blocks) {
  std::vector<float> frequencies = test_frequencies(static_cast<size_t>(layout.head_dim) / 2);
  Coded coded{std::make_shared<CodecTables>(test_tables(layout, frequencies)), {}};
  for (uint32_t block = 0; block < num_blocks; ++block) {
    PieceLabel label{0, block * kBlockTokens};
    auto piece = encode_piece(*coded.tables, layout, label,
                              test_values(layout, frequencies, label, 1, block));
    coded.bytes += piece->size();
    coded.pieces.push_back(std::move(*piece));
  }
  return coded;
}

double cpu_seconds(const Coded& coded, const KvLayout& layout) {
  std::vector<std::byte> values(layout.layer_bytes());
  PieceDecoder decoder;
  bench::BenchClock clock(1);
  for (uint32_t i = 0; i < coded.pieces.size(); ++i)
    (void)decoder.decode(*coded.tables, layout, {0, i * kBlockTokens}, coded.pieces[i], values);
  return clock.ms() * 1e-3;
}

void measure(Device& device, const char* name, const KvLayout& layout, uint32_t num_blocks) {
  Coded coded = encode(layout, num_blocks);
  Buffer pinned = device.allocate_host(coded.bytes);
  std::vector<CodedBlock> blocks;
  auto* at = static_cast<std::byte*>(pinned.data());
  for (uint32_t i = 0; i < num_blocks; ++i) {
    const std::vector<std::byte>& piece = coded.pieces[i];
    std::memcpy(at, piece.data(), piece.size());
    blocks.push_back({{at, piece.size()}, coded.tables, i * kBlockTokens, static_cast<int32_t>(i)});
    at += piece.size();
  }
  KvCache kv(device, layout, num_blocks * layout.block_bytes());
  double kernel_ms = 0;
  auto channels = static_cast<int32_t>(padded_channels(layout.num_kv_heads, layout.head_dim));
  DeviceDecoder decoder(
      device, std::make_unique<TimedKernel>(make_piece_kernel(device, channels), kernel_ms),
      layout);
  double best = 1e9;
  double best_kernel = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    kernel_ms = 0;
    bench::BenchClock clock(kWallClock);
    if (decoder.decode(0, kv.layer(0), blocks)) std::printf("a piece does not decode\n");
    best = std::min(best, clock.ms() * 1e-3);
    best_kernel = std::min(best_kernel, kernel_ms * 1e-3);
  }
  double bytes = double(num_blocks) * double(layout.layer_bytes());
  std::printf(
      "%-24s %6.1f MB, %.2f times smaller: kernel %6.1f GB/s, with copies %6.1f GB/s, one "
      "core of the CPU %.2f GB/s\n",
      name, bytes * 1e-6, bytes / double(coded.bytes), bytes * 1e-9 / best_kernel,
      bytes * 1e-9 / best, bytes * 1e-9 / cpu_seconds(coded, layout));
}

}  // namespace

int main() {
  if (!cuda_is_available()) {
    std::fprintf(stderr, "no CUDA device, or a build without CUDA\n");
    return 2;
  }
  auto device = make_cuda_device();
  KvLayout large{.num_layers = 1, .num_kv_heads = 8, .head_dim = 128, .dtype = DType::kF16};
  KvLayout small{.num_layers = 1, .num_kv_heads = 3, .head_dim = 64, .dtype = DType::kF16};
  measure(*device, "8B, 2048 tokens", large, 32);
  measure(*device, "8B, 8192 tokens", large, 128);
  measure(*device, "8B, 32768 tokens", large, 512);
  measure(*device, "135M, 4096 tokens", small, 64);
  measure(*device, "135M, 32768 tokens", small, 512);
  large.dtype = DType::kBF16;
  measure(*device, "8B, 8192 tokens, bf16", large, 128);
  return 0;
}
