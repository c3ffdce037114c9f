#include "parity/reference.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "formats/safetensors.h"
#include "model/json_fields.h"
#include "model/weights.h"

namespace droidspeak {
namespace {

std::vector<Row> to_matrix(const FileTensor& tensor) {
  size_t rows = tensor.shape.size() == 2 ? static_cast<size_t>(tensor.shape[0]) : 1;
  size_t columns = static_cast<size_t>(tensor.shape.back());
  std::vector<float> values = tensor.read_floats();
  std::vector<Row> matrix(rows);
  for (size_t i = 0; i < rows; ++i)
    matrix[i].assign(values.begin() + static_cast<int64_t>(i * columns),
                     values.begin() + static_cast<int64_t>((i + 1) * columns));
  return matrix;
}

double dot(const double* a, const double* b, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

Row multiply(const std::vector<Row>& matrix, const Row& x) {
  Row out;
  for (const Row& row : matrix) out.push_back(dot(row.data(), x.data(), x.size()));
  return out;
}

Row normalize(const Row& x, const Row& weight, double epsilon) {
  double scale =
      1 / std::sqrt(dot(x.data(), x.data(), x.size()) / static_cast<double>(x.size()) + epsilon);
  Row out(x.size());
  for (size_t i = 0; i < x.size(); ++i) out[i] = x[i] * scale * weight[i];
  return out;
}

}  // namespace

ReferenceModel::ReferenceModel(const std::filesystem::path& checkpoint,
                               const std::filesystem::path& adapter)
    : checkpoint_(checkpoint), adapter_(adapter), config_(load_config(checkpoint)) {
  check(config_.architecture == "llama" && config_.rope.scaling.kind == RopeScaling::Kind::kNone,
        "the reference knows plain Llama");
  for (const char* name : {"model.embed_tokens.weight", "model.norm.weight"})
    weights_[name] = load(name);
  SafetensorsFolder folder(checkpoint);
  weights_["output"] = folder.find_tensor("lm_head.weight") ? load("lm_head.weight")
                                                            : weights_["model.embed_tokens.weight"];
  for (int32_t i = 0; i < config_.num_layers; ++i) {
    std::string prefix = "model.layers." + std::to_string(i) + ".";
    for (const char* name : {"input_layernorm.weight", "post_attention_layernorm.weight"})
      weights_[prefix + name] = load(prefix + name);
    for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                             "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
      weights_[prefix + name] = load_linear(i, name);
    }
  }
}

ReferenceModel::Matrix ReferenceModel::load(const std::string& name) const {
  SafetensorsFolder folder(checkpoint_);
  const FileTensor* tensor = folder.find_tensor(name);
  check(tensor != nullptr, name);
  return to_matrix(*tensor);
}

ReferenceModel::Matrix ReferenceModel::load_linear(int32_t layer_index,
                                                   const std::string& name) const {
  std::string module = "model.layers." + std::to_string(layer_index) + "." + name;
  Matrix matrix = load(module + ".weight");
  if (adapter_.empty()) return matrix;
  SafetensorsFile file(adapter_ / "adapter_model.safetensors");
  const FileTensor* a = file.find_tensor("base_model.model." + module + ".lora_A.weight");
  const FileTensor* b = file.find_tensor("base_model.model." + module + ".lora_B.weight");
  if (a == nullptr) return matrix;
  JsonFields json(adapter_ / "adapter_config.json");
  Matrix down = to_matrix(*a);
  Matrix up = to_matrix(*b);
  double scale = json.get_double("lora_alpha") / static_cast<double>(down.size());
  for (size_t row = 0; row < matrix.size(); ++row) {
    for (size_t r = 0; r < down.size(); ++r) {
      for (size_t column = 0; column < matrix[row].size(); ++column)
        matrix[row][column] += scale * up[row][r] * down[r][column];
    }
  }
  return matrix;
}

Rows ReferenceModel::embed(const std::vector<int32_t>& tokens) const {
  Rows rows;
  for (int32_t token : tokens)
    rows.push_back(weights_.at("model.embed_tokens.weight")[static_cast<size_t>(token)]);
  return rows;
}

void ReferenceModel::rotate(double* head, int32_t position) const {
  int32_t half = config_.head_dim / 2;
  for (int32_t i = 0; i < half; ++i) {
    double angle = position / std::pow(config_.rope.theta, 2.0 * i / config_.head_dim);
    double x = head[i];
    double y = head[half + i];
    head[i] = x * std::cos(angle) - y * std::sin(angle);
    head[half + i] = x * std::sin(angle) + y * std::cos(angle);
  }
}

Rows ReferenceModel::layer(int32_t index, const Rows& hidden, ReferenceCache& cache) const {
  Rows out;
  Row nobody_asks;
  for (const Row& input : hidden) {
    size_t position = cache.keys[static_cast<size_t>(index)].size();
    out.push_back(layer_row(index, input, position, cache, nobody_asks));
  }
  return out;
}

Row ReferenceModel::layer_row(
    int32_t index, const Row& input, size_t position, ReferenceCache& cache, Row& mass) const {
  std::string prefix = "model.layers." + std::to_string(index) + ".";
  auto weight = [&](const char* name) -> const Matrix& { return weights_.at(prefix + name); };
  auto dim = static_cast<size_t>(config_.head_dim);
  auto group = static_cast<size_t>(config_.num_heads / config_.num_kv_heads);
  auto turn = static_cast<int32_t>(position);
  Rows& keys = cache.keys[static_cast<size_t>(index)];
  Rows& values = cache.values[static_cast<size_t>(index)];
  if (position == keys.size()) {
    keys.emplace_back();
    values.emplace_back();
  }
  Row normed = normalize(input, weight("input_layernorm.weight")[0],
                         static_cast<double>(config_.norm_epsilon));
  Row q = multiply(weight("self_attn.q_proj"), normed);
  Row k = multiply(weight("self_attn.k_proj"), normed);
  for (size_t head = 0; head < q.size() / dim; ++head) rotate(q.data() + head * dim, turn);
  for (size_t head = 0; head < k.size() / dim; ++head) rotate(k.data() + head * dim, turn);
  keys[position] = k;
  values[position] = multiply(weight("self_attn.v_proj"), normed);
  Row attended(q.size(), 0.0);
  for (size_t head = 0; head < q.size() / dim; ++head) {
    size_t kv = head / group * dim;
    Row scores;
    for (size_t token = 0; token <= position; ++token)
      scores.push_back(dot(q.data() + head * dim, keys[token].data() + kv, dim) /
                       std::sqrt(static_cast<double>(dim)));
    double top = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score - top);
    for (size_t token = 0; token < scores.size(); ++token) {
      if (token < mass.size()) mass[token] += scores[token] / sum;
      for (size_t i = 0; i < dim; ++i)
        attended[head * dim + i] += scores[token] / sum * values[token][kv + i];
    }
  }
  Row x = input;
  Row projected = multiply(weight("self_attn.o_proj"), attended);
  for (size_t i = 0; i < x.size(); ++i) x[i] += projected[i];
  normed = normalize(x, weight("post_attention_layernorm.weight")[0],
                     static_cast<double>(config_.norm_epsilon));
  Row gate = multiply(weight("mlp.gate_proj"), normed);
  Row up = multiply(weight("mlp.up_proj"), normed);
  for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
  Row down = multiply(weight("mlp.down_proj"), gate);
  for (size_t i = 0; i < x.size(); ++i) x[i] += down[i];
  return x;
}

Row ReferenceModel::attention_mass(std::vector<int32_t> suffix,
                                   ReferenceCache cache,
                                   int32_t first_layer) const {
  const Row logits = suffix_logits(suffix, cache).back();
  auto last = suffix.size() - 1;
  suffix.push_back(
      static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
  Row mass(cache.keys[0].size(), 0.0);
  Row nobody_asks;
  Rows hidden = embed(suffix);
  for (int32_t i = 0; i < config_.num_layers; ++i) {
    for (size_t row = 0; row < hidden.size(); ++row) {
      bool counts = i >= first_layer && row >= last;
      size_t position = cache.keys[static_cast<size_t>(i)].size();
      hidden[row] = layer_row(i, hidden[row], position, cache, counts ? mass : nobody_asks);
    }
  }
  return mass;
}

void ReferenceModel::read_again(const std::vector<int32_t>& context,
                                const std::vector<int32_t>& positions,
                                ReferenceCache& cache) const {
  std::vector<int32_t> tokens;
  for (int32_t position : positions) tokens.push_back(context[static_cast<size_t>(position)]);
  Row nobody_asks;
  Rows hidden = embed(tokens);
  for (int32_t i = 0; i < config_.num_layers; ++i) {
    for (size_t row = 0; row < hidden.size(); ++row)
      hidden[row] =
          layer_row(i, hidden[row], static_cast<size_t>(positions[row]), cache, nobody_asks);
  }
}

std::vector<int32_t> looked_at_positions(const Row& mass, size_t count) {
  std::vector<std::pair<double, int32_t>> order;
  for (int64_t token = 0; token < std::ssize(mass); ++token) {
    double sum = 0;
    double neighbours = 0;
    for (int64_t i = std::max<int64_t>(4, token - 2); i <= token + 2 && i < std::ssize(mass); ++i) {
      sum += mass[static_cast<size_t>(i)];
      neighbours += 1;
    }
    order.emplace_back(token < 4 ? -1e300 : -sum / neighbours, static_cast<int32_t>(token));
  }
  std::sort(order.begin(), order.end());
  std::vector<int32_t> positions;
  for (size_t i = 0; i < count; ++i) positions.push_back(order[i].second);
  std::sort(positions.begin(), positions.end());
  return positions;
}

ReferenceCache ReferenceModel::read(const std::vector<int32_t>& tokens) const {
  auto layers = static_cast<size_t>(config_.num_layers);
  ReferenceCache cache{std::vector<Rows>(layers), std::vector<Rows>(layers),
                       std::vector<Rows>(layers)};
  recompute(0, config_.num_layers, embed(tokens), cache);
  return cache;
}

void ReferenceModel::recompute(int32_t begin,
                               int32_t end,
                               Rows input,
                               ReferenceCache& cache) const {
  for (int32_t i = begin; i < end; ++i) {
    auto at = static_cast<size_t>(i);
    cache.inputs[at] = input;
    cache.keys[at].clear();
    cache.values[at].clear();
    input = layer(i, input, cache);
  }
}

Rows ReferenceModel::suffix_states(const std::vector<int32_t>& suffix, ReferenceCache cache) const {
  Rows hidden = embed(suffix);
  for (int32_t i = 0; i < config_.num_layers; ++i) hidden = layer(i, hidden, cache);
  for (Row& row : hidden) {
    row = normalize(row, weights_.at("model.norm.weight")[0],
                    static_cast<double>(config_.norm_epsilon));
  }
  return hidden;
}

Rows ReferenceModel::suffix_logits(const std::vector<int32_t>& suffix, ReferenceCache cache) const {
  Rows logits;
  for (const Row& row : suffix_states(suffix, std::move(cache)))
    logits.push_back(multiply(weights_.at("output"), row));
  return logits;
}

Row ReferenceMap::apply(const Row& row) const {
  Row narrow = multiply(down, row);
  Row out = multiply(up, narrow);
  for (size_t i = 0; i < out.size(); ++i) out[i] += row[i] + bias[i];
  return out;
}

void ReferenceModel::translate(int32_t layer_index,
                               const ReferenceMap& map,
                               ReferenceCache& cache) const {
  auto at = static_cast<size_t>(layer_index);
  auto dim = static_cast<size_t>(config_.head_dim);
  for (size_t token = 0; token < cache.keys[at].size(); ++token) {
    Row& key = cache.keys[at][token];
    Row& value = cache.values[at][token];
    auto position = static_cast<int32_t>(token);
    for (size_t head = 0; head < key.size() / dim; ++head)
      rotate(key.data() + head * dim, -position);
    Row both = key;
    both.insert(both.end(), value.begin(), value.end());
    both = map.apply(both);
    auto middle = both.begin() + static_cast<std::ptrdiff_t>(key.size());
    key.assign(both.begin(), middle);
    value.assign(middle, both.end());
    for (size_t head = 0; head < key.size() / dim; ++head)
      rotate(key.data() + head * dim, position);
  }
}

ReferenceCache mixed_cache(const ReferenceModel& receiver,
                           const ReferenceCache& sender,
                           const std::vector<int32_t>& context,
                           const ReusePlan& plan,
                           const ReferenceMaps& maps) {
  ReferenceCache cache = sender;
  for (const auto& [layer, map] : maps.kv) receiver.translate(layer, map, cache);
  if (plan.a > 0) receiver.recompute(0, plan.a, receiver.embed(context), cache);
  if (plan.b < plan.c) {
    // Right behind [0, a) the receiver's own hidden state flows on; else the sender's input of
    // layer b.
    if (plan.a == plan.b && plan.a > 0) {
      receiver.recompute(0, plan.c, receiver.embed(context), cache);
    } else {
      Rows input = sender.inputs[static_cast<size_t>(plan.b)];
      auto map = maps.inputs.find(plan.b);
      for (Row& row : input) row = map == maps.inputs.end() ? row : map->second.apply(row);
      receiver.recompute(plan.b, plan.c, std::move(input), cache);
    }
  }
  return cache;
}

}  // namespace droidspeak
