// Rates of the CPU operations: products by shape and weight format, then whole prefills and decode
// steps of the SmolLM2-135M shape. Best of several rounds; the instruction sets take turns within a
// round, so their ratio survives a noisy machine. One thread is timed by its processor time.
//   ops_bench [--threads N] [--rounds N] [limits] [linear] [rows] [adapter] [prefill] [decode]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "bench_clock.h"
#include "machine_limits.h"
#include "ops/cpu/cpu_ops.h"
#include "smollm2_shape.h"
#include "tensor/half.h"

namespace droidspeak::bench {
namespace {

struct Settings {
  int threads = 2;
  int rounds = 5;
  std::vector<std::string> parts;

  bool wants(const char* part) const {
    return parts.empty() || std::find(parts.begin(), parts.end(), part) != parts.end();
  }
};

struct Machine {
  cpu::InstructionSet set;
  std::unique_ptr<Ops> ops;
};

std::vector<Machine> machines(Device& device, int threads) {
  std::vector<Machine> all;
  for (cpu::InstructionSet set : cpu::available_instruction_sets()) {
    if (set == cpu::InstructionSet::kPortable) continue;
    all.push_back({set, cpu::make_ops(device, {.num_threads = threads, .instruction_set = set})});
  }
  return all;
}

void print_names(const std::vector<Machine>& all) {
  for (const Machine& machine : all) std::printf("%14s", std::string(name_of(machine.set)).c_str());
  std::printf("\n");
}

struct Shape {
  int64_t rows;
  int64_t outputs;
  int64_t columns;
};

std::vector<std::byte> random_bytes(DType dtype, int64_t elements) {
  std::vector<std::byte> bytes(bytes_of(dtype, elements));
  const uint16_t half = f16_from_float(0.01f);
  const float whole = 0.01f;
  uint32_t state = 1;
  if (is_block_format(dtype)) {
    for (std::byte& byte : bytes)
      byte = static_cast<std::byte>((state = state * 1664525u + 1013904223u) >> 24);
    const auto step = static_cast<size_t>(traits(dtype).block_bytes);
    for (size_t at = 0; at < bytes.size(); at += step) {
      std::memcpy(bytes.data() + at, &half, 2);
      if (dtype == DType::kQ4_1) std::memcpy(bytes.data() + at + 2, &half, 2);
    }
    return bytes;
  }
  const size_t size = dtype == DType::kF32 ? 4 : 2;
  for (size_t at = 0; at < bytes.size(); at += size) {
    std::memcpy(bytes.data() + at, size == 4 ? static_cast<const void*>(&whole) : &half, size);
  }
  return bytes;
}

// GFLOP/s, and GB/s of weights for few rows, of one shape.
void run_linear(const Settings& settings, std::vector<Machine>& all, DType dtype, Shape s) {
  const auto bytes = random_bytes(dtype, s.outputs * s.columns);
  const MatrixPart part{dtype, s.outputs, s.columns, bytes, {}};
  std::vector<std::unique_ptr<WeightMatrix>> matrices;
  // As many copies as do not fit into the caches, as in a whole model.
  const int64_t copies =
      s.rows <= 16 ? std::max<int64_t>(1, (int64_t{96} << 20) / std::ssize(bytes)) : 1;
  for (int64_t i = 0; i < copies; ++i)
    matrices.push_back(all.front().ops->pack({&part, 1}, Precision::kFast));
  Device& device = all.front().ops->device();
  Tensor in(device, DType::kF32, s.rows, s.columns);
  Tensor out(device, DType::kF32, s.rows, s.outputs);
  for (int64_t i = 0; i < s.rows * s.columns; ++i)
    in.view().f32()[i] = static_cast<float>(i % 97) * 0.01f - 0.4f;
  const double flops = 2.0 * static_cast<double>(s.rows * s.outputs * s.columns);
  const int64_t calls = std::max<int64_t>(copies, static_cast<int64_t>(2e8 / flops));
  std::vector<double> best(all.size(), 1e30);
  for (int round = 0; round < settings.rounds; ++round) {
    for (size_t m = 0; m < all.size(); ++m) {
      BenchClock watch(settings.threads);
      for (int64_t i = 0; i < calls; ++i) {
        all[m].ops->linear(*matrices[static_cast<size_t>(i % copies)], in.view(), out.view());
      }
      best[m] = std::min(best[m], watch.ms() / static_cast<double>(calls));
    }
  }
  std::printf("%-5s %5ld x %5ld x %5ld  GFLOP/s", std::string(name_of(dtype)).c_str(), s.rows,
              s.outputs, s.columns);
  for (double ms : best) std::printf("%14.1f", flops / ms / 1e6);
  if (s.rows <= 16) {
    std::printf("   GB/s");
    for (double ms : best)
      std::printf("%8.1f", static_cast<double>(matrices[0]->bytes()) / ms / 1e6);
  }
  std::printf("\n");
}

void run_model(const Settings& settings,
               std::vector<Machine>& all,
               DType weights,
               const char* part) {
  std::vector<std::unique_ptr<SmolLm2Shape>> models;
  for (Machine& machine : all) {
    models.push_back(
        std::make_unique<SmolLm2Shape>(*machine.ops, settings.threads, weights, DType::kF16));
  }

  struct Run {
    int32_t sequences, position, rows;
  };

  const bool is_prefill = std::strcmp(part, "prefill") == 0;
  const std::vector<Run> runs =
      is_prefill ? std::vector<Run>{{1, 0, 512}, {1, 0, 1024}, {1, 0, 4096}}
                 : std::vector<Run>{{1, 64, 1}, {1, 1024, 1}, {1, 4096, 1}, {4, 64, 1}, {8, 64, 1}};
  // Real rows in the cache, in memory of its own.
  for (auto& model : models) {
    for (int32_t begin = 0; !is_prefill && begin < 4096; begin += 512) model->step(1, begin, 512);
    if (!is_prefill) model->step(8, 0, 64);
  }
  for (const Run& run : runs) {
    std::vector<double> best(all.size(), 1e30);
    std::vector<std::array<double, SmolLm2Shape::kNumPhases>> phases(all.size());
    const int rounds = run.rows > 2000 ? 2 : settings.rounds;
    for (int round = 0; round < rounds; ++round) {
      for (size_t m = 0; m < all.size(); ++m) {
        for (int repeat = 0; repeat < (is_prefill ? 1 : 10); ++repeat) {
          double ms = 0;
          std::array<double, SmolLm2Shape::kNumPhases> sum{};
          for (int32_t begin = 0; begin < run.rows; begin += 512) {
            ms += models[m]->step(run.sequences, run.position + begin,
                                  std::min(512, run.rows - begin));
            for (size_t i = 0; i < sum.size(); ++i) sum[i] += models[m]->phases()[i];
          }
          if (ms < best[m]) {
            best[m] = ms;
            phases[m] = sum;
          }
        }
      }
    }
    for (size_t m = 0; m < all.size(); ++m) {
      std::printf("%s %-5s %d x %d tokens at %d, %-12s %8.1f tokens/s", part,
                  std::string(name_of(weights)).c_str(), run.sequences, run.rows, run.position,
                  std::string(name_of(all[m].set)).c_str(),
                  run.sequences * run.rows / best[m] * 1e3);
      const auto& p = phases[m];
      std::printf("   %% linear %.1f attention %.1f elementwise %.1f head %.1f\n",
                  100 * p[0] / best[m], 100 * p[1] / best[m], 100 * p[2] / best[m],
                  100 * p[3] / best[m]);
    }
  }
}

void run(const Settings& settings) {
  auto device = make_cpu_device();
  if (settings.wants("limits")) {
    std::printf("limits: %.0f GFLOP/s f32, %.1f GB/s read, %d threads\n",
                fma_gflops(settings.threads), read_gigabytes(settings.threads), settings.threads);
  }
  auto all = machines(*device, settings.threads);
  if (settings.wants("linear")) {
    std::printf("%41s", "");
    print_names(all);
    for (DType dtype :
         {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1}) {
      for (Shape s : {Shape{512, 960, 576},
                      {512, 3072, 576},
                      {512, 576, 1536},
                      {512, 2048, 2048},
                      {1, 3072, 576},
                      {1, 576, 1536},
                      {1, 49152, 576},
                      {8, 3072, 576}}) {
        run_linear(settings, all, dtype, s);
      }
    }
  }
  if (settings.wants("rows")) {
    print_names(all);
    for (DType dtype : {DType::kQ4_1, DType::kQ8_0, DType::kBF16}) {
      for (int64_t rows : {1, 2, 4, 5, 6, 8, 12, 16, 24, 48, 96})
        run_linear(settings, all, dtype, {rows, 3072, 576});
    }
  }
  if (settings.wants("adapter")) {
    print_names(all);
    for (Shape s : {Shape{512, 48, 576},
                    {512, 576, 16},
                    {512, 16, 576},
                    {512, 1536, 16},
                    {512, 16, 1536},
                    {1, 48, 576},
                    {1, 1536, 16}}) {
      run_linear(settings, all, DType::kBF16, s);
    }
  }
  for (const char* part : {"prefill", "decode"}) {
    if (settings.wants(part)) run_model(settings, all, DType::kQ4_1, part);
  }
}

}  // namespace
}  // namespace droidspeak::bench

int main(int argc, char** argv) {
  droidspeak::bench::Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--threads" && i + 1 < argc) {
      settings.threads = std::atoi(argv[++i]);
    } else if (word == "--rounds" && i + 1 < argc) {
      settings.rounds = std::atoi(argv[++i]);
    } else {
      settings.parts.push_back(word);
    }
  }
  droidspeak::bench::run(settings);
}
