// Everything a command needs to run models: device, family, tokenizer, K/V memory, store.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "command.h"
#include "device/device.h"
#include "kv/kv_cache.h"
#include "model/family.h"
#include "model/family_check.h"
#include "ops/ops.h"
#include "sharing/plan_books.h"
#include "sharing/prompt_runner.h"
#include "store/cache_store.h"
#include "text/tokenizer.h"

namespace droidspeak {

std::unique_ptr<Device> make_device(const std::string& name);
std::unique_ptr<Ops> make_ops(Device& device, const CommonOptions& options);
// Tokenizer of a GGUF file or Hugging Face folder.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& model_path);
// The same for a model of this config. Throws Failure when it makes ids that the model has no
// embedding for.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& model_path,
                                          const ModelConfig& config);
// What a variant's files say of prompts and answers that `base`, by which it is served, does not.
std::vector<std::string> differences_of(const FamilyFile::Member& variant, const Tokenizer& base);
// check_family(), and that the base brings a tokenizer, without which nothing can be asked, with
// the differences of the others.
std::vector<MemberCheck> check_members(const FamilyFile& file);
// What is said of members without MemberCheck::has_tokenizer.
inline constexpr const char* kNoTokenizer = "it brings no tokenizer: the base's is used";
DType parse_kv_dtype(const std::string& name, const Device& device, Precision precision);
Precision parse_precision(const std::string& name);
// 0 for "auto": what kv_budget() finds right.
uint64_t parse_kv_memory(const std::string& text);
// The host tier lies in memory that `device` copies from fastest.
StoreOptions store_options(const CommonOptions& options, Device& device);

// Waits until the remote store, if there is one, is reached or was found unreachable; a second at
// most. Before that nothing is found there.
void wait_for_remote(const CacheStore& store);

class Workspace {
 public:
  // `profile` leaves the family's plan books alone: it makes new ones of those that nobody can use.
  enum class PlanBooksAre { kRead, kLeftAlone };

  // Loads the base and the variants in `models` (empty: all).
  Workspace(const CommonOptions& options,
            const std::vector<std::string>& models,
            PlanBooksAre books_are = PlanBooksAre::kRead);

  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
  FamilyFile file;
  std::unique_ptr<ModelFamily> family;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<KvCache> kv;
  SteadyClock clock;
  StoreOptions stored;  // what `store` was made with
  std::unique_ptr<CacheStore> store;
  std::unique_ptr<PromptRunner> runner;

  std::unique_ptr<PlanBooks> books;  // null: left alone

  // Ids of a raw text, with BOS where the model wants it. It may go on, so nothing ends it.
  std::vector<int32_t> tokenize_raw(const std::string& text) const;
  // Throws Failure when the prompt plus `new_tokens` exceed the model's context.
  void check_length(size_t prompt_tokens, int64_t new_tokens) const;
};

}  // namespace droidspeak
