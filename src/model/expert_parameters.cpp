#include "model/expert_parameters.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "model/architectures/architecture.h"
#include "model/row_order.h"

namespace droidspeak {
namespace {

struct TensorName {
  int32_t layer = 0;
  AdapterPlace::Side side = AdapterPlace::Side::kDown;
  std::string twin;  // the name of the other side
};

// "base_model.model.model.layers.3.mlp.experts.base_layer.lora_A.weight": which parameter it is
// for is not in its name.
std::optional<TensorName> parse(std::string_view name) {
  TensorName parsed;
  std::string_view rest = name;
  consume(rest, "base_model.model.");
  if (!consume(rest, "model.layers.")) return std::nullopt;
  const auto layer = consume_layer(rest);
  if (!layer || !consume(rest, ".mlp.experts")) return std::nullopt;
  parsed.layer = *layer;
  while (consume(rest, ".base_layer")) {
  }
  const auto side = static_cast<size_t>(rest.data() - name.data()) + std::strlen(".lora_");
  if (consume(rest, ".lora_B")) {
    parsed.side = AdapterPlace::Side::kUp;
  } else if (!consume(rest, ".lora_A")) {
    return std::nullopt;
  }
  consume(rest, ".default");
  if (rest != ".weight") return std::nullopt;
  parsed.twin = name;
  parsed.twin[side] = name[side] == 'A' ? 'B' : 'A';
  return parsed;
}

// [rows, rank * experts] to one [rows, rank] for each expert.
std::vector<FileTensor> split_columns(const FileTensor& tensor, int64_t rank, int64_t experts) {
  const auto element = static_cast<int64_t>(bytes_of(tensor.dtype, 1));
  const int64_t rows = tensor.shape[0];
  const std::vector<std::byte> all = tensor.read();
  auto sorted = std::make_shared<std::vector<std::byte>>();
  sorted->reserve(all.size());
  std::vector<FileTensor> parts;
  for (int64_t e = 0; e < experts; ++e) {
    const auto begin = static_cast<std::ptrdiff_t>(sorted->size());
    for (int64_t i = 0; i < rows * rank; ++i) {
      const auto* from = all.data() + (i * experts + e) * element;
      sorted->insert(sorted->end(), from, from + element);
    }
    const auto end = static_cast<std::ptrdiff_t>(sorted->size());
    auto copy = [sorted, begin, end](std::vector<std::byte>& out) {
      out.assign(sorted->begin() + begin, sorted->begin() + end);
    };
    parts.push_back(
        {tensor.name, tensor.dtype, {rows, rank}, {static_cast<uint64_t>(end - begin), copy}});
  }
  return parts;
}

// [experts * rank, columns] likewise.
std::vector<FileTensor> split_rows(const FileTensor& tensor, int64_t rank, int64_t experts) {
  const FileTensor whole{tensor.name, tensor.dtype, {experts, rank, tensor.shape[1]}, tensor.bytes};
  std::vector<FileTensor> parts;
  for (int64_t e = 0; e < experts; ++e) parts.push_back(whole.slice(e));
  return parts;
}

}  // namespace

std::optional<std::vector<AdapterTensor>> ExpertParameters::split(const FileTensor& tensor) const {
  const int64_t experts = base_.experts.count;
  const auto name = parse(tensor.name);
  if (!name || experts == 0) return std::nullopt;
  const FileTensor* twin = file_.find_tensor(name->twin);
  if (twin == nullptr) refuse(tensor, fmt::format("has no \"{}\" beside it", name->twin));
  const bool is_down = name->side == AdapterPlace::Side::kDown;
  const Pair pair{is_down ? tensor : *twin, is_down ? *twin : tensor};
  check_ranks(tensor, pair);
  const std::string parameter = parameter_of(tensor, pair);
  const std::string module = fmt::format("model.layers.{}.mlp.experts", name->layer);
  const std::string path = fmt::format("{}.{}", module, parameter);
  refuse_patterns(tensor, module);
  refuse_patterns(tensor, path);
  if (const std::string why = config_.why_no_parameter(path); !why.empty()) {
    refuse(tensor, fmt::format("{} of adapter_config.json, where PEFT leaves it out: expected "
                               "\"{}\" among the parameters, or no such tensor",
                               why, path));
  }
  const int64_t rank = pair.down.shape[0] / experts;
  const std::vector<FileTensor> parts =
      is_down ? split_rows(tensor, rank, experts) : split_columns(tensor, rank, experts);
  const bool is_by_turns = !is_down && parameter == "gate_up_proj" && has_rows_by_turns();
  const auto order = is_by_turns ? rows_by_turns(base_.experts.ffn_dim) : std::vector<int32_t>();
  std::vector<AdapterTensor> found;
  for (const FileTensor& part : parts) {
    const std::string expert = fmt::format("mlp.experts.{}.{}", found.size(), parameter);
    const auto target = std::ranges::find(targets_, expert, &AdapterTarget::name);
    found.push_back({part, AdapterPlace{name->layer, &*target, name->side}, order});
  }
  return found;
}

void ExpertParameters::check_module(const AdapterTensor& tensor) const {
  if (!tensor.place || !tensor.place->target->name.ends_with(".gate_up_proj")) return;
  if (tensor.place->target->linear.of_expert != nullptr && has_rows_by_turns())
    refuse(tensor.tensor, fmt::format("is for a module that {} does not have: expected the "
                                      "parameter of all experts, \"mlp.experts.gate_up_proj\"",
                                      base_.architecture));
}

bool ExpertParameters::has_rows_by_turns() const {
  return std::ranges::any_of(all_architectures(), [&](const Architecture* architecture) {
    return architecture->name == base_.architecture && architecture->hf_interleaves_gate_up;
  });
}

void ExpertParameters::refuse(const FileTensor& tensor, const std::string& what) const {
  throw Failure(ErrorCode::kInvalidArgument,
                fmt::format("{}: tensor \"{}\" {}", file_.path().string(), tensor.name, what));
}

void ExpertParameters::check_ranks(const FileTensor& tensor, const Pair& pair) const {
  const std::vector<int64_t>& a = pair.down.shape;
  const std::vector<int64_t>& b = pair.up.shape;
  const bool is_pair = a.size() == 2 && b.size() == 2 && a[0] == b[1];
  if (!is_pair || a[0] == 0 || a[0] % base_.experts.count != 0)
    refuse(tensor, fmt::format("belongs to [{}] and [{}]: expected ranks of {} experts",
                               fmt::join(a, ", "), fmt::join(b, ", "), base_.experts.count));
}

std::string ExpertParameters::parameter_of(const FileTensor& tensor, const Pair& pair) const {
  const int64_t in = pair.down.shape[1];
  const int64_t out = pair.up.shape[0];
  const int64_t d = base_.d_model;
  const int64_t ffn = base_.experts.ffn_dim;
  if (in == d && out == 2 * ffn) return "gate_up_proj";
  if (in == ffn && out == d) return "down_proj";
  refuse(tensor, fmt::format("belongs to a correction from {} to {}: expected {} to {} or {} to {} "
                             "(files of an older PEFT have them swapped)",
                             in, out, d, 2 * ffn, ffn, d));
}

void ExpertParameters::refuse_patterns(const FileTensor& tensor, const std::string& module) const {
  if (config_.has_pattern(module))
    refuse(tensor, "has a rank_pattern or alpha_pattern: for experts they are not supported");
}

}  // namespace droidspeak
