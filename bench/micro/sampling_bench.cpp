#include "sampling_bench.h"

#include <algorithm>
#include <numeric>
#include <random>

#include <fmt/format.h>

#include "base/check.h"
#include "ops/cuda/stopwatch.h"

namespace droidspeak::cuda {
namespace {

struct NamedSampling {
  std::string_view name;
  RowSampling how;
};

// Logits as models give them: normal, a few far above the others.
std::vector<float> random_logits(int64_t rows, int64_t columns) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 2.5f);
  std::vector<float> values(static_cast<size_t>(rows * columns));
  for (float& value : values) value = normal(random);
  for (int64_t row = 0; row < rows; ++row) {
    for (int i = 0; i < 8; ++i)
      values[static_cast<size_t>(row * columns) + random() % static_cast<size_t>(columns)] += 12;
  }
  return values;
}

class SamplingBench {
 public:
  SamplingBench(CudaDevice& device, Ops& ops, Model& model)
      : device_(device),
        ops_(ops),
        model_(model),
        fresh_(device, DType::kF32, model.batch(), model.vocab()),
        logits_(device, DType::kF32, model.batch(), model.vocab()),
        words_(static_cast<size_t>((model.vocab() + 31) / 32), 0x55555555u) {
    const std::vector<float> values = random_logits(model.batch(), model.vocab());
    device.to_device(fresh_.view().data, values.data(), values.size() * sizeof(float));
    device.synchronize();
    for (int32_t i = 0; i < 300; ++i) {
      counts_.push_back({i * 7, 1 + i % 3});
      biases_.push_back({i * 11, 0.01f});
    }
  }

  void run() {
    const double greedy = step_ms({.num_top = -1});
    fmt::print("{:<34} {:>10} {:>10} {:>14}\n", "", "ms a step", "of greedy", "us alone");
    fmt::print("{:<34} {:>10.3f} {:>10.3f} {:>14.1f}\n", "greedy", greedy, 1.0, alone_us({}));
    std::vector<NamedSampling> ways = {
        {"temperature 1", {.temperature = 1}},
        {"top-k 50", {.temperature = 1, .top_k = 50}},
        {"top-p 0.95", {.temperature = 1, .top_p = 0.95f}},
        {"top-p 0.95, temperature 0.2", {.temperature = 0.2f, .top_p = 0.95f}},
        {"min-p 0.05", {.temperature = 1, .min_p = 0.05f}},
        {"top-k 50, top-p 0.95", {.temperature = 1, .top_k = 50, .top_p = 0.95f}},
        {"penalties, bias",
         {.temperature = 1,
          .repetition_penalty = 1.0001f,
          .presence_penalty = 1e-6f,
          .frequency_penalty = 1e-6f,
          .biases = biases_,
          .seen = words_,
          .counts = counts_}},
        {"allowed tokens", {.temperature = 1, .allowed = words_}},
        {"20 logprobs", {.temperature = 1, .num_top = 20}},
        {"greedy, 5 logprobs", {.num_top = 5}}};
    for (const NamedSampling& way : ways) {
      const double ms = step_ms(way.how);
      fmt::print("{:<34} {:>10.3f} {:>10.3f} {:>14.1f}\n", way.name, ms, ms / greedy,
                 alone_us(way.how));
    }
    fmt::print("{:<34} {:>10.3f} {:>10}\n", "greedy again", step_ms({}), "");
  }

 private:
  std::vector<RowSampling> rows_of(const RowSampling& how) const {
    std::vector<RowSampling> rows(static_cast<size_t>(model_.batch()), how);
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i].row = static_cast<int64_t>(i);
      rows[i].uniform = how.is_greedy() ? 0 : static_cast<double>(i) / 1000;
    }
    return rows;
  }

  double step_ms(const RowSampling& how) {
    const std::vector<RowSampling> rows = rows_of(how);
    std::vector<SampledToken> tokens(rows.size());
    const Model::Plan plan = model_.fixed_plan(Model::kNoAdapter);
    return model_.ms_of_step(ops_, [&](int32_t number) {
      Model::Work work = plan(number);
      work.finish = [&](TensorView) {
        ops_.copy(fresh_.view(), logits_.view());  // in greedy steps too
        sample(rows, tokens);
      };
      return work;
    });
  }

  // The operation with its copies, from call to return.
  double alone_us(const RowSampling& how) {
    const std::vector<RowSampling> rows = rows_of(how);
    std::vector<SampledToken> tokens(rows.size());
    StreamStopwatch watch(device_.stream());
    return 1e3 * watch.fastest(
                     20, [&] { ops_.copy(fresh_.view(), logits_.view()); },
                     [&] { sample(rows, tokens); });
  }

  // A row that cannot be sampled is left at once: its time would say nothing.
  void sample(std::span<const RowSampling> rows, std::vector<SampledToken>& tokens) {
    ops_.sample(logits_.view(), rows, tokens);
    for (const SampledToken& token : tokens) check(token.token >= 0, "every row gives a token");
  }

  CudaDevice& device_;
  Ops& ops_;
  Model& model_;
  Tensor fresh_;  // sampling changes logits
  Tensor logits_;
  std::vector<uint32_t> words_;
  std::vector<TokenCount> counts_;
  std::vector<TokenBias> biases_;
};

// `count` of the sequences, each with the adapter that is its own.
std::vector<Model::Row> rows_of(std::vector<int32_t> sequences, size_t count) {
  sequences.resize(count);
  std::vector<Model::Row> rows;
  for (int32_t sequence : sequences) rows.push_back({sequence, sequence % kMixedAdapters});
  std::ranges::stable_sort(rows, {}, &Model::Row::adapter);
  return rows;
}

// Sizes from `fewest` to 16, of `sequences` sequences.
Model::Plan changing_plan(int32_t sequences, size_t fewest) {
  return [sequences, fewest](int32_t number) {
    std::mt19937 random(static_cast<uint32_t>(number) + 1);
    std::vector<int32_t> all(static_cast<size_t>(sequences));
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), random);
    const size_t count = fewest + random() % (17 - fewest);
    return Model::Work{.rows = rows_of(std::move(all), count)};
  };
}

}  // namespace

void bench_sampling(CudaDevice& device, Ops& ops, Model& model) {
  SamplingBench(device, ops, model).run();
}

void bench_mixture(CudaDevice& device, Ops& ops, Model& model) {
  const int32_t sequences = std::min(24, model.batch());
  auto rate_of = [&](const Model::Plan& plan, Ops& with) {
    const double ms = model.ms_of_step(with, plan);
    double rows = 0;
    for (int32_t i = 0; i < 40; ++i) rows += static_cast<double>(plan(i).rows.size()) / 40;
    return std::pair(ms, rows * 1000 / ms);
  };
  const Model::Plan fixed = [](int32_t) {
    std::vector<int32_t> all(16);
    std::iota(all.begin(), all.end(), 0);
    return Model::Work{.rows = rows_of(std::move(all), 16)};
  };
  auto without = make_ops(device, Precision::kFast, {.graphs = false});
  fmt::print("16 sequences, {} adapters\n", kMixedAdapters);
  fmt::print("{:<34} {:>10} {:>12} {:>10} {:>12}\n", "", "ms a step", "tokens/s", "of fixed",
             "a step's");
  const auto [fixed_ms, fixed_rate] = rate_of(fixed, ops);
  auto print = [&](std::string_view name, std::pair<double, double> result) {
    fmt::print("{:<34} {:>10.3f} {:>12.1f} {:>10.3f} {:>12.3f}\n", name, result.first,
               result.second, result.second / fixed_rate, fixed_ms / result.first);
  };
  print("fixed batch", {fixed_ms, fixed_rate});
  print("16 others every step", rate_of(changing_plan(sequences, 16), ops));
  print("13 to 16 others every step", rate_of(changing_plan(sequences, 13), ops));
  print("9 to 16 others every step", rate_of(changing_plan(sequences, 9), ops));
  print("1 to 16 others every step", rate_of(changing_plan(sequences, 1), ops));
  print("fixed batch, no graphs", rate_of(fixed, *without));
  print("16 others every step, no graphs", rate_of(changing_plan(sequences, 16), *without));
  print("fixed batch again", rate_of(fixed, ops));
}

}  // namespace droidspeak::cuda
