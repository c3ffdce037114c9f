#include "engine/engine.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/loop.h"

namespace droidspeak {
namespace {

Error invalid_request(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}

VariantState state_of(const Variant& variant) {
  bool is_adapter = variant.adapter != nullptr;
  return {.name = variant.name,
          .parent = variant.parent,
          .path = variant.path.string(),
          .digest = is_adapter ? variant.adapter_digest.hex() : variant.model_digest.hex(),
          .bytes = is_adapter ? variant.adapter->bytes() : variant.transformer->weights().bytes(),
          .invocation = is_adapter ? variant.adapter->invocation : std::vector<int32_t>(),
          .takes_from = {}};
}

}  // namespace

Engine::Engine(Ops& ops, const FamilyFile& file, const EngineOptions& options)
    : loop_(std::make_unique<Loop>(ops, file, options)) {}

Engine::~Engine() = default;

Result<std::shared_ptr<TokenStream>> Engine::submit(GenerationRequest request) {
  return loop_->submit(std::move(request));
}

Result<void> Engine::load_adapter(const std::string& name,
                                  const AdapterPath& path,
                                  IfTaken if_taken) {
  return loop_->load_adapter(name, path, if_taken);
}

Result<void> Engine::unload_adapter(const std::string& name) {
  return loop_->unload_adapter(name);
}

void Engine::drain(std::chrono::milliseconds limit) {
  loop_->drain(limit);
}

const ModelConfig& Engine::config() const {
  return loop_->family().config();
}

int32_t Engine::max_model_len() const {
  return loop_->max_model_len();
}

std::vector<std::shared_ptr<const Variant>> Engine::variants() const {
  return loop_->family().variants();
}

EngineState Engine::state() const {
  return loop_->state();
}

std::vector<PlanBook> Engine::plan_books() const {
  return loop_->plan_books();
}

bool Engine::is_healthy() const {
  return loop_->is_healthy();
}

EngineMetrics Engine::metrics() const {
  return loop_->metrics();
}

Result<void> Engine::Loop::validate(const GenerationRequest& request) const {
  auto length = static_cast<int64_t>(request.prompt->size());
  if (length == 0) return invalid_request("prompt: it is empty; give at least one token");
  if (request.max_tokens < 0)
    return invalid_request(fmt::format("max_tokens is {}: give 0 or more", request.max_tokens));
  if (request.wants_embedding && request.max_tokens > 0)
    return invalid_request(
        fmt::format("max_tokens is {}: give 0 with an embedding", request.max_tokens));
  int64_t needed = length + (request.max_tokens > 0 ? 1 : 0);
  if (needed > max_model_len_) {
    return invalid_request(
        fmt::format("prompt: {} tokens, and the context length is {}", length, max_model_len_));
  }
  int32_t vocab_size = family_.config().vocab_size;
  if (request.grammar && request.grammar->vocab_size() != vocab_size) {
    return invalid_request(fmt::format("grammar: it is for {} tokens, and the vocabulary has {}",
                                       request.grammar->vocab_size(), vocab_size));
  }
  if (request.min_tokens < 0 || (request.min_tokens > 0 && request.grammar))
    return invalid_request(
        fmt::format("min_tokens is {}: give 0 or more, and 0 with a grammar", request.min_tokens));
  for (int32_t token : *request.prompt) {
    if (token < 0 || token >= vocab_size) {
      return invalid_request(
          fmt::format("prompt: token {} is not in the vocabulary of {}", token, vocab_size));
    }
  }
  return {};
}

Result<std::shared_ptr<TokenStream>> Engine::Loop::submit(GenerationRequest request) {
  auto variant = request.variant ? request.variant : family_.find(request.model);
  if (!variant) {
    std::vector<std::string> names;
    for (const auto& other : family_.variants()) names.push_back(other->name);
    return Error{ErrorCode::kNotFound, fmt::format("model \"{}\" does not exist: there are {}",
                                                   request.model, fmt::join(names, ", "))};
  }
  if (Result<void> valid = validate(request); !valid) return valid.error();
  if (request.wants_embedding && variant->pooling == Pooling::kNone) {
    return invalid_request(fmt::format(
        "model \"{}\" is not for embeddings: the family declares no pooling", variant->name));
  }
  if (Result<void> valid = chooser_.validate(request.sharing, *variant); !valid)
    return valid.error();
  request.sharing.from = chooser_.named_sender(request.sharing);
  Result<Inbox::Place> place = inbox_.reserve(request);
  if (!place) return place.error();
  int64_t limit = static_cast<int64_t>(request.prompt->size()) + request.max_tokens;
  auto sequence = std::make_unique<Sequence>(
      SequenceOptions{.request = std::move(request),
                      .variant = std::move(variant),
                      .vocab_size = family_.config().vocab_size,
                      .max_tokens = static_cast<int32_t>(std::min<int64_t>(limit, max_model_len_)),
                      .speculation = options_.speculation,
                      .now = std::chrono::steady_clock::now()});
  std::shared_ptr<TokenStream> stream = sequence->stream;
  chooser_.ask_tiers(*sequence);
  if (Result<void> taken = inbox_.submit(std::move(*place), std::move(sequence)); !taken)
    return taken.error();
  return stream;
}

Result<void> Engine::Loop::load_adapter(const std::string& name,
                                        const AdapterPath& path,
                                        IfTaken if_taken) {
  return loader_.load(name, path, if_taken);
}

Result<void> Engine::Loop::unload_adapter(const std::string& name) {
  return inbox_.call([this, name] {
    Result<void> unloaded = adapters_.unload(name);
    follow_variants();
    return unloaded;
  });
}

void Engine::Loop::drain(std::chrono::milliseconds limit) {
  inbox_.refuse({ErrorCode::kUnavailable, "the server is shutting down: no new requests"});
  static_cast<void>(inbox_.wait_until_empty(limit));
  loader_.stop();
}

EngineState Engine::Loop::state() const {
  EngineMetrics metrics = metrics_.snapshot();
  EngineState state{.family = family_.name(),
                    .device = ops_.device().name(),
                    .num_layers = family_.config().num_layers,
                    .max_model_len = max_model_len_,
                    .variants = {},
                    .store = store_.counters(),
                    .running = metrics.running,
                    .waiting = metrics.waiting,
                    .kv_blocks_used = 0,
                    .kv_blocks_total = num_blocks_,
                    .is_healthy = is_healthy_};
  const auto variants = family_.variants();
  for (const auto& variant : variants) {
    VariantState& receiver = state.variants.emplace_back(state_of(*variant));
    for (const auto& sender : variants) {
      if (sender == variant) continue;
      if (books_.may_share(*sender, *variant) || takes_exactly(*variant, *sender))
        receiver.takes_from.push_back(sender->name);
    }
  }
  state.kv_blocks_used =
      static_cast<int32_t>(std::lround(metrics.kv_usage * state.kv_blocks_total));
  return state;
}

std::vector<PlanBook> Engine::Loop::plan_books() const {
  std::vector<PlanBook> books;
  for (const PairBook& pair : books_.pairs()) books.push_back(pair.book);
  return books;
}

EngineMetrics Engine::Loop::metrics() const {
  EngineMetrics metrics = metrics_.snapshot();
  metrics.store = store_.counters();
  return metrics;
}

}  // namespace droidspeak
