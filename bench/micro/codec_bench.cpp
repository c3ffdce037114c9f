// Size and speed of coded K/V on one core: codec_bench [--steps CODEC_STEPS.json] FILE.kv..., block
// files of a cache folder that was written with --cache-format raw (a base of the default family;
// its RoPE is assumed). Tables are learned from the first half of the files, sizes and times are
// those of the others. With a family's codec_steps only the usual step is measured.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "codec/kv_codec.h"
#include "codec/learn_tables.h"
#include "micro/bench_clock.h"

namespace {

using namespace droidspeak;  // NOLINT(google-build-using-namespace)

constexpr double kRopeTheta = 100000;

struct Block {
  std::string file;
  uint32_t position = 0;
  std::vector<KvSample> layers;  // inside `file`
  KvLayout layout;
};

template <class T>
T read_at(const std::string& bytes, size_t at) {
  T value{};
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// The offsets are those of docs/store_format.md.
Block read_block(const char* path) {
  Block block;
  block.file = read_file(path);
  block.position = read_at<uint32_t>(block.file, 88);
  block.layout = {.num_layers = read_at<int32_t>(block.file, 92),
                  .num_kv_heads = read_at<int32_t>(block.file, 96),
                  .head_dim = read_at<int32_t>(block.file, 100),
                  .dtype = DType::kF16};
  auto bytes = std::as_bytes(std::span(block.file));
  for (size_t i = 0; i < read_at<uint32_t>(block.file, 12); ++i) {
    size_t entry = 128 + 40 * i;
    bool is_raw_kv = block.file[entry] == 1 && block.file[entry + 1] == 0;
    if (!is_raw_kv) continue;
    PieceLabel label{read_at<int32_t>(block.file, entry + 4), block.position * kBlockTokens};
    block.layers.push_back({label, bytes.subspan(read_at<uint64_t>(block.file, entry + 8),
                                                 read_at<uint64_t>(block.file, entry + 16))});
  }
  return block;
}

void measure(const CodecTables& tables, const KvLayout& layout, std::span<const Block> blocks) {
  std::vector<std::vector<std::byte>> pieces;
  std::vector<PieceLabel> labels;
  size_t bytes = 0;
  size_t coded = 0;
  bench::BenchClock clock(1);
  for (const Block& block : blocks) {
    for (const KvSample& layer : block.layers) {
      auto piece = encode_piece(tables, layout, layer.label, layer.values);
      bytes += layer.values.size();
      coded += piece ? piece->size() : layer.values.size();
      if (!piece) continue;
      pieces.push_back(std::move(*piece));
      labels.push_back(layer.label);
    }
  }
  std::printf("%zu pieces, %.2f times smaller, %.3f bits a value, encode %.3f GB/s of f16\n",
              pieces.size(), double(bytes) / double(coded), 16.0 * double(coded) / double(bytes),
              double(bytes) * 1e-6 / clock.ms());
  std::vector<std::byte> values(layout.layer_bytes());
  for (cpu::InstructionSet set : cpu::available_instruction_sets()) {
    PieceDecoder decoder(set);
    double best = 1e9;
    size_t num_wrong = 0;
    for (int round = 0; round < 15; ++round) {
      clock.restart();
      for (size_t i = 0; i < pieces.size(); ++i)
        num_wrong += decoder.decode(tables, layout, labels[i], pieces[i], values) ? 0 : 1;
      best = std::min(best, clock.ms() * 1e-3);
    }
    double decoded = double(pieces.size()) * double(values.size());
    std::printf("decode %-12s %.2f GB/s of f16, %zu wrong\n",
                std::string(cpu::name_of(set)).c_str(), decoded * 1e-9 / best, num_wrong);
  }
}

std::vector<float> read_factors(const char* path) {
  std::vector<float> factors;
  const nlohmann::json file = nlohmann::json::parse(read_file(path));
  for (const auto& layer : file.at("layers")) {
    for (const char* half : {"keys", "values"}) {
      for (int eighths : layer.at(half)) factors.push_back(std::exp2(float(eighths) / 8));
    }
  }
  return factors;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<Block> blocks;
  std::vector<float> factors;
  int first = 1;
  if (argc > 2 && std::string(argv[1]) == "--steps") {
    factors = read_factors(argv[2]);
    first = 3;
  }
  for (int i = first; i < argc; ++i) {
    blocks.push_back(read_block(argv[i]));
    if (blocks.back().layers.empty()) blocks.pop_back();
  }
  if (blocks.size() < 8) {
    std::fprintf(stderr, "%zu block files with raw K/V: give at least 8\n", blocks.size());
    return 2;
  }
  KvLayout layout = blocks[0].layout;
  std::vector<float> frequencies;
  for (int i = 0; i < layout.head_dim / 2; ++i)
    frequencies.push_back(static_cast<float>(std::pow(kRopeTheta, -2.0 * i / layout.head_dim)));
  std::vector<KvSample> samples;
  for (size_t i = 0; i < blocks.size() / 2; ++i)
    samples.insert(samples.end(), blocks[i].layers.begin(), blocks[i].layers.end());
  std::vector<float> steps = {0.36f, 0.43f, 0.46f, 0.5f, 0.7f, 1.0f};
  if (!factors.empty()) steps = {0.46f};
  for (float step : steps) {
    Coarseness coarseness{.key_step = step, .value_step = step, .factors = factors};
    auto tables = learn_tables(layout, {frequencies}, samples, coarseness);
    if (!tables) {
      std::fprintf(stderr, "cannot learn: %s\n", tables.error().message.c_str());
      return 1;
    }
    std::printf("step %.2f: ", step);
    measure(*tables, layout, std::span(blocks).subspan(blocks.size() / 2));
  }
  return 0;
}
