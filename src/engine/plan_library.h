// The plan books of a family with their translation maps, which are read when they are first
// needed. Immutable after construction; a book counts only for variants whose digests it was
// measured with, so that replacing an adapter silences its books.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "model/family.h"
#include "sharing/lazy_translator.h"
#include "sharing/plan_book.h"

namespace droidspeak {

struct PairBook {
  PlanBook book;
  std::shared_ptr<const LazyTranslator> maps;  // null: it has none
};

// Whose cache it is follows from the weights and how they are used, not from a name that may stand
// for others by now.
inline bool is_same_model(const Variant& a, const Variant& b) {
  return a.model_digest == b.model_digest && a.adapter_digest == b.adapter_digest &&
         a.transformer->configuration() == b.transformer->configuration();
}

class PlanLibrary {
 public:
  // Throws Failure naming the file when a book cannot be read, or the header of its maps, or when
  // they do not fit the model.
  PlanLibrary(Ops& ops, const ModelConfig& config, const std::vector<std::filesystem::path>& files);

  // Null when no book was measured with these two.
  const PairBook* find(const Variant& sender, const Variant& receiver) const;
  // Layers at which E of `sender` is kept, ascending: what any book of its needs.
  std::vector<int32_t> captured_layers(const Variant& sender) const;

  const std::vector<PairBook>& pairs() const { return pairs_; }

 private:
  std::vector<PairBook> pairs_;
};

}  // namespace droidspeak
