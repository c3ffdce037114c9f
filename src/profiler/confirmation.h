// The best plans of a profile on rows that have chosen nothing: what a book promises rests on
// these.
#pragma once

#include <functional>
#include <vector>

#include "profiler/frontier.h"
#include "profiler/plan_measurement.h"
#include "profiler/profile_record.h"

namespace droidspeak {

// Plans that a book of what is known so far would list, were it less careful.
std::vector<TriedPlan> choose_finalists(const ProfileRecord& record, const CostShape& shape);

// Measures the record's finalists on one more row, with the maps that are shipped; `translator` may
// be null when none of them is translated. The row joins the record when all are done; `pause` is
// called often and may throw.
void confirm_finalists(PlanMeasurement& measured,
                       const Translator* translator,
                       ProfileRecord& record,
                       const std::function<void()>& pause);

}  // namespace droidspeak
