#include "profiler/confirmation.h"

#include <map>
#include <utility>

#include "profiler/book_builder.h"

namespace droidspeak {

std::vector<TriedPlan> choose_finalists(const ProfileRecord& record, const CostShape& shape) {
  auto cost = [&](const TriedPlan& tried) { return relative_cost(tried, shape); };
  return pareto_plans(likely_losses(record), cost, 1);
}

void confirm_finalists(PlanMeasurement& measured,
                       const Translator* translator,
                       ProfileRecord& record,
                       const std::function<void()>& pause) {
  pause();
  measured.context().read_both(needs_of(record.finalists).inputs, {});
  ReferenceAnswer reference = measured.answer_in_full();
  reference.rows.clear();
  if (translator != nullptr) measured.context().translate(*translator);
  std::map<TriedPlan, std::vector<TriedPlan>> groups;  // by layers
  for (const TriedPlan& tried : record.finalists) groups[tried.layers()].push_back(tried);
  for (const auto& [base, plans] : groups) {
    pause();
    measured.measure_group(base, plans, translator);
  }
  record.confirming_references.push_back(std::move(reference));
  measured.add_to(record.confirmed, record.num_confirmed);
  record.confirming_tokens += measured.context().layer_tokens();
  ++record.num_confirmed;
}

}  // namespace droidspeak
