// What the handlers of all endpoints share: the engine, the tokenizer, names and limits.
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/build_version.h"
#include "base/mutex.h"
#include "engine/engine.h"
#include "grammar/grammar_compiler.h"
#include "server/api_error.h"
#include "server/budget.h"
#include "server/chat/answer_parser.h"
#include "server/chat/call_syntax.h"
#include "server/chat/client_text.h"
#include "server/chat/tool_section.h"
#include "server/entity_tag.h"
#include "server/openai/requests.h"
#include "server/token_bound.h"
#include "server/work_slots.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace droidspeak {

struct ServiceOptions {
  std::vector<std::string> served_names;  // for the base; empty: its own name
  std::filesystem::path adapter_root;  // adapters may be loaded from here only; empty: from nowhere
  double min_quality = 0.99;           // the engine's floor, for the state's chosen plans
  BuildVersion version;
};

class Service {
 public:
  // Throws Failure when the model's chat template cannot be parsed. Arguments outlive this.
  Service(Engine& engine, const Tokenizer& tokenizer, const ServiceOptions& options);

  Engine& engine() { return engine_; }

  const Tokenizer& tokenizer() const { return tokenizer_; }

  const ServiceOptions& options() const { return options_; }

  struct Model {
    std::string id;      // as clients know it
    std::string parent;  // empty for the base
    // As the engine has it now: a request keeps what it began with.
    std::shared_ptr<const Variant> variant;
  };

  std::vector<Model> models() const;
  // Also finds the base by its own name when it is served under others.
  std::optional<Model> find_model(std::string_view id) const;

  // A place among those that parse, render and tokenise, before a request's body is looked at: 503
  // when none becomes free in time, 499 when the client leaves.
  ApiResult<WorkSlots::Slot> take_work_slot(const HttpRequest& request);

  // 400 (param `param`) when the text cannot fit the context whatever its tokens are.
  ApiResult<std::vector<int32_t>> encode(std::string_view text, const char* param) const;
  // With BOS in front when the model wants one and `text` does not bring it.
  ApiResult<std::vector<int32_t>> encode_prompt(std::string_view text, const char* param) const;

  struct ChatTokens {
    std::vector<int32_t> tokens;
    AnswerParser::Beginning beginning;  // of the answer, as the template left it
  };

  ApiResult<ChatTokens> encode_chat(openai::ChatPrompt chat) const;

  // How the model is told of tools and how it calls them.
  const ToolDialect& tool_dialect() const { return tool_dialect_; }

  int32_t max_model_len() const { return max_model_len_; }

  int32_t vocab_size() const { return vocab_size_; }

  // What the requests in work hold together.
  Budget& prompt_budget() { return prompt_budget_; }

  Budget& logprob_budget() { return logprob_budget_; }

  // 400 (param `param`) with the reason when the format cannot be enforced; 503 when others compile
  // for too long. One large format is compiled at a time.
  ApiResult<std::shared_ptr<const CompiledGrammar>> compile(const OutputFormat& format,
                                                            const std::string& param,
                                                            const HttpRequest& request);

  // Bytes of a token, empty for ids beyond the vocabulary.
  std::string_view token_bytes(int32_t token) const;

  // Unique: "chatcmpl-5f3c...".
  std::string new_id(std::string_view prefix);
  // As the model's template takes it: Mistral's wants nine letters and digits.
  std::string new_call_id(std::string_view prefix);
  uint64_t random_seed();

  TaggedText plan_books() const { return {"application/json", plan_books_, plan_books_tag_}; }

  int64_t start_time() const { return start_time_; }  // Unix seconds

  bool is_draining() const { return is_draining_; }

  void begin_draining() { is_draining_ = true; }

  // Requests answered, by route and status.
  void count_request(const std::string& path, int status);
  std::map<std::pair<std::string, int>, uint64_t> request_counts() const;
  std::atomic<int> num_connections = 0;  // kept by the transport, shown in /metrics

 private:
  using Tokens = std::vector<int32_t>;

  // 400 (param `param`) before `encode` is called, when the text cannot fit.
  ApiResult<Tokens> encode_by(std::string_view text,
                              const char* param,
                              const std::function<Tokens()>& encode) const;

  Engine& engine_;
  const Tokenizer& tokenizer_;
  const ServiceOptions options_;
  const std::string plan_books_;  // JSON
  const std::string plan_books_tag_;
  std::optional<ChatTemplate> chat_template_;
  ToolDialect tool_dialect_;
  DeveloperRole developer_role_ = DeveloperRole::kSystem;
  int32_t max_model_len_ = 0;
  int32_t vocab_size_ = 0;
  TokenBound token_bound_;
  ClientText client_text_;
  GrammarCompiler grammars_;
  int64_t start_time_ = 0;
  WorkSlots work_slots_;
  Budget prompt_budget_;
  Budget logprob_budget_;
  mutable Mutex long_text_;  // held by who looks for the tokens of one
  WorkSlots large_work_slot_{1};
  WorkSlots compile_slots_;
  WorkSlots large_compile_slot_{1};
  std::atomic<bool> is_draining_ = false;
  mutable Mutex mutex_;
  std::mt19937_64 random_ GUARDED_BY(mutex_);
  std::map<std::pair<std::string, int>, uint64_t> counts_ GUARDED_BY(mutex_);
};

}  // namespace droidspeak
