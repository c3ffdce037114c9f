// The plan books of a family, checked against the models that are loaded: a book whose digests do
// not match is not used, and says why.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "model/family.h"
#include "sharing/plan_book.h"

namespace droidspeak {

struct ChosenPlan {
  ReusePlan plan;
  std::shared_ptr<const Translator> translator;  // null: raw
  std::string shown;                             // as in a report
  int32_t look_layer = 0;                        // of the pair
};

class PlanCatalog {
 public:
  // Throws Failure for a file that is no plan book; a book of absent or other models is skipped
  // with a reason.
  PlanCatalog(Ops& ops, const ModelFamily& family);

  // The book for this pair of loaded variants, or null.
  const PlanBook* find(const Variant& sender, const Variant& receiver) const;
  // Packed maps of a book; null when it has none. Loaded on first use.
  std::shared_ptr<const Translator> translator(const PlanBook& book) const;

  // Resolves a request for a pair. `auto` takes the cheapest plan with quality_index >= floor, full
  // prefill when there is none.
  ChosenPlan choose(const PlanRequest& request,
                    const Variant& sender,
                    const Variant& receiver,
                    double floor = 0.99) const;

  const std::vector<PlanBook>& books() const { return books_; }

  const std::vector<std::string>& skipped() const { return skipped_; }  // file and reason

  // Where a variant must capture E when it reads: transition layers of the books that name it as
  // sender.
  std::vector<int32_t> captured_layers(const Variant& sender) const;

 private:
  Ops& ops_;
  int32_t num_layers_;
  int32_t kv_columns_;
  int32_t d_model_;
  std::vector<PlanBook> books_;
  std::vector<std::string> skipped_;
  mutable Mutex mutex_;
  mutable std::map<std::string, std::shared_ptr<const Translator>> translators_
      GUARDED_BY(mutex_);  // by file
};

}  // namespace droidspeak
