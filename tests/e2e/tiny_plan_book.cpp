#include "e2e/tiny_plan_book.h"

#include "sharing/plan_books.h"

namespace droidspeak {

namespace {

PlanEntry plan_entry(const ReusePlan& plan, double quality) {
  PlanEntry entry;
  entry.plan = plan;
  entry.quality_index = quality;
  entry.relative_cost = 0.25 + 0.25 * plan.recomputed_layers();
  return entry;
}

}  // namespace

void write_tiny_plan_book(const std::filesystem::path& path,
                          Ops& ops,
                          const FamilyFile& file,
                          const std::string& receiver_name) {
  ModelFamily family(ops, file, {});
  PlanBook book;
  set_pair(book, *family.get("base"), *family.get(receiver_name));
  book.num_layers = family.config().num_layers;
  book.data_name = "none";
  book.frontier = {plan_entry(ReusePlan::reuse_all(), 0.9), plan_entry({0, 1, 3}, 0.995)};
  save_plan_book(path, book);
}

}  // namespace droidspeak
