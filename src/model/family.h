// A base model and its variants, from family.json. Base weights are in memory once; a variant is a
// full checkpoint or a LoRA adapter beside the base. Variants can be added, replaced and removed at
// run time: whoever holds a Variant keeps it alive.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "model/transformer.h"
#include "model/weights.h"

namespace droidspeak {

class BaseTokenizer;

// How a variant's embedding is made of its tokens' final hidden states, as it was trained.
enum class Pooling { kNone, kMean, kLast };

// One model that can be asked for by name. Immutable; shared by requests in flight.
struct Variant {
  std::string name;
  std::string parent;  // the base's name; empty for the base itself
  std::filesystem::path path;
  std::shared_ptr<Transformer> transformer;  // shared by all adapters of one base
  std::shared_ptr<const Adapter> adapter;    // null for full checkpoints
  Digest model_digest;
  Digest adapter_digest;             // zero without adapter
  Pooling pooling = Pooling::kNone;  // kNone: it is not for embeddings
};

struct FamilyOptions {
  Precision precision = Precision::kFast;
  int32_t max_model_len = 0;  // 0: what the model allows
};

// What family.json says, before anything is loaded.
struct FamilyFile {
  std::string name;
  std::filesystem::path path;

  struct Member {
    std::string name;
    std::filesystem::path path;     // full checkpoint, resolved
    std::filesystem::path adapter;  // PEFT folder or GGUF, resolved; empty: a full checkpoint
    Pooling pooling = Pooling::kNone;
  };

  Member base;
  std::vector<Member> variants;
  std::vector<std::filesystem::path> plan_books;
  std::filesystem::path codec_steps;  // how finely caches are coded; empty: alike everywhere
  std::string unprofiled;             // plan for pairs without a book; empty: they share nothing
};

// Throws Failure naming the file and field.
FamilyFile read_family_file(const std::filesystem::path& path);

class ModelFamily {
 public:
  // Loads the base and those variants in `only` (empty: all). Throws Failure when one does not fit.
  ModelFamily(Ops& ops,
              const FamilyFile& file,
              const FamilyOptions& options,
              const std::vector<std::string>& only = {});

  const std::string& name() const { return file_.name; }

  const FamilyFile& file() const { return file_; }

  const ModelConfig& config() const { return base_->transformer->config(); }

  std::shared_ptr<const Variant> base() const { return base_; }

  // Null when there is no such variant.
  std::shared_ptr<const Variant> find(std::string_view name) const;
  // Throws Failure(kNotFound) that lists the names there are.
  std::shared_ptr<const Variant> get(std::string_view name) const;
  std::vector<std::shared_ptr<const Variant>> variants() const;  // base first

  // Loads a PEFT folder under `name`, replacing an adapter of that name. Throws Failure, also when
  // the name is the base's or another full checkpoint's.
  void add_adapter(const std::string& name, const std::filesystem::path& folder);
  // The same with an adapter that was loaded from `folder` for this base already, and whose
  // tokenizer fits.
  void add_adapter(const std::string& name,
                   const std::filesystem::path& folder,
                   std::shared_ptr<const Adapter> adapter);
  // False when there is no adapter of that name.
  bool remove_adapter(std::string_view name);

 private:
  void add_adapter(const std::string& name,
                   const std::filesystem::path& folder,
                   BaseTokenizer& tokenizer);
  // What the family says of the adapter in this folder.
  Pooling pooling_of(std::string_view name, const std::filesystem::path& folder) const;

  Ops& ops_;
  FamilyFile file_;
  Precision precision_;
  std::shared_ptr<const Variant> base_;
  mutable Mutex mutex_;
  std::vector<std::shared_ptr<const Variant>> variants_ GUARDED_BY(mutex_);
};

}  // namespace droidspeak
