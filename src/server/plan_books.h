// Plan books as JSON, the same for as long as the server runs.
#pragma once

#include <span>
#include <string>

#include "sharing/plan_book.h"

namespace droidspeak {

// `chosen` of each is the cheapest plan with at least this quality.
std::string plan_books_json(std::span<const PlanBook> books, double min_quality);

}  // namespace droidspeak
