// Activated LoRA against PEFT: tests/data/models/smollm2 holds an adapter and what PEFT computes
// with it for prompts with the invocation at telling places (tools/make_activated_goldens.py). And
// against a slow reference, which reads a prompt in two passes.
#include <fstream>

#include "parity/golden.h"

namespace droidspeak {
namespace {

using nlohmann::json;

class Activated : public testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    if (!has_device(GetParam())) GTEST_SKIP() << "no CUDA device";
  }

  static std::filesystem::path folder() { return golden_models() / "smollm2"; }
};

struct NamedGolden {
  std::string name;
  Golden golden;
};

std::vector<NamedGolden> read_cases() {
  std::vector<NamedGolden> cases;
  const json list = json::parse(read_file(golden_models() / "smollm2/golden_activated.json"));
  for (const json& one : list) {
    cases.push_back({one["name"],
                     {one["tokens"].get<std::vector<int32_t>>(),
                      one["logits"].get<std::vector<std::vector<float>>>(),
                      one["greedy"].get<std::vector<int32_t>>()}});
  }
  return cases;
}

TEST_P(Activated, LogitsAndAnswersEqualPeft) {
  SingleModel model(folder(), folder() / "activated", {.device = GetParam()});
  const std::vector<NamedGolden> cases = read_cases();
  ASSERT_EQ(cases.size(), 10u);
  for (const auto& [name, golden] : cases) {
    SCOPED_TRACE(name);
    // Chunks end in front of the invocation, inside of it and behind it.
    for (int32_t chunk : {512, 64, 71, 7, 2, 1}) expect_golden(model, golden, chunk, 1e-3f);
    EXPECT_EQ(model.greedy(golden.tokens, static_cast<int32_t>(golden.greedy.size())),
              golden.greedy);
  }
}

// The same adapter as llama.cpp's converter writes it.
TEST_P(Activated, FromGgufLogitsEqualPeft) {
  SingleModel model(folder(), folder() / "activated.gguf", {.device = GetParam()});
  for (const auto& [name, golden] : read_cases()) {
    SCOPED_TRACE(name);
    expect_golden(model, golden, 64, 1e-3f);
  }
}

// PEFT's own words differ on whether the invocation's first token is adapted: its logits say so.
TEST_P(Activated, BeginsWithTheFirstTokenOfTheInvocation) {
  SingleModel model(folder(), folder() / "activated", {.device = GetParam()});
  SingleModel base(folder(), {}, {.device = GetParam()});
  const Golden golden = read_cases().front().golden;
  const auto invoked = model.logits(golden.tokens, 512);
  const auto plain = base.logits(golden.tokens, 512);
  const size_t begin = 70;  // "middle"
  for (size_t i = 0; i < invoked.size(); ++i) {
    float difference = 0;
    for (size_t j = 0; j < invoked[i].size(); ++j)
      difference = std::max(difference, std::abs(invoked[i][j] - plain[i][j]));
    EXPECT_EQ(difference > 1e-2f, i >= begin) << i;
  }
}

std::string name_of_device(const testing::TestParamInfo<DeviceKind>& device) {
  return device_name(device.param);
}

INSTANTIATE_TEST_SUITE_P(All,
                         Activated,
                         testing::Values(DeviceKind::kCpu, DeviceKind::kCuda),
                         name_of_device);

// Logits of all rows: what comes before `begin` in a pass without the adapter, the rest with it.
std::vector<std::vector<float>> in_two_passes(SingleModel& model,
                                              const std::vector<int32_t>& tokens,
                                              int32_t begin) {
  Transformer& transformer = *model.variant().transformer;
  const ModelConfig& config = transformer.config();
  const auto total = static_cast<int32_t>(tokens.size());
  BlockTable table;
  EXPECT_TRUE(table.reserve(model.kv().pool(), total));
  std::vector<std::vector<float>> rows;
  for (auto [first, end] : {std::pair(0, begin), std::pair(begin, total)}) {
    if (first == end) continue;
    Tensor hidden(model.ops().device(), DType::kF32, end - first, config.d_model);
    Tensor logits(model.ops().device(), DType::kF32, end - first, config.vocab_size);
    transformer.embed(
        std::span(tokens).subspan(static_cast<size_t>(first), static_cast<size_t>(end - first)),
        hidden.view());
    BatchSlice slice{{0, end - first, first, table.blocks()},
                     first == 0 && begin > 0 ? nullptr : model.variant().adapter.get()};
    transformer.forward_layers({0, config.num_layers}, std::span(&slice, 1), model.kv(),
                               hidden.view());
    transformer.logits(hidden.view(), logits.view());
    for (auto& row : read_rows(model.ops().device(), logits.view())) rows.push_back(std::move(row));
  }
  return rows;
}

// The adapters of these folders, activated.
TEST(ActivatedReference, OnePassEqualsTwoForEveryKindOfLayer) {
  const std::vector<int32_t> invocation{3, 4};
  for (const char* name : {"smollm2", "gemma2", "granite", "mixtral"}) {
    SCOPED_TRACE(name);
    TemporaryFolder adapter;
    const std::filesystem::path plain = golden_models() / name / "adapter";
    json config = json::parse(read_file(plain / "adapter_config.json"));
    config["alora_invocation_tokens"] = invocation;
    std::ofstream(adapter.path() / "adapter_config.json") << config.dump();
    std::filesystem::copy_file(plain / "adapter_model.safetensors",
                               adapter.path() / "adapter_model.safetensors");
    SingleModel model(golden_models() / name, adapter.path(), {});
    std::vector<int32_t> tokens = read_golden(golden_models() / name / "golden.json").tokens;
    for (int32_t& token : tokens) token = std::max(token, 5);
    for (size_t begin : {size_t{0}, size_t{2}, size_t{63}, size_t{64}, size_t{100},
                         tokens.size() - invocation.size()}) {
      std::vector<int32_t> prompt = tokens;
      std::ranges::copy(invocation, prompt.begin() + static_cast<std::ptrdiff_t>(begin));
      const auto expected = in_two_passes(model, prompt, static_cast<int32_t>(begin));
      for (int32_t chunk : {512, 64, 10}) {
        ASSERT_EQ(model.logits(prompt, chunk), expected) << "from " << begin << " chunk " << chunk;
      }
    }
  }
}

}  // namespace
}  // namespace droidspeak
