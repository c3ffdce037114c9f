#include "server/plan_books.h"

#include "server/handlers.h"
#include "server/json_writer.h"

namespace droidspeak {

namespace {

void write_optional(JsonWriter& json, const char* name, const std::optional<double>& value) {
  json.key(name);
  if (value) {
    json.number(*value);
  } else {
    json.null();
  }
}

void write_plan(JsonWriter& json, const PlanEntry& entry, int32_t num_layers) {
  json.begin_object();
  json.key("plan").text(entry.plan.to_string(num_layers));
  json.key("a").integer(entry.plan.a);
  json.key("b").integer(entry.plan.b);
  json.key("c").integer(entry.plan.c);
  json.key("recomputed_layers").integer(entry.plan.recomputed_layers());
  json.key("looked_at_share").number(entry.plan.look_permille / 1000.0);
  json.key("translated").boolean(entry.translated);
  json.key("kl").number(entry.quality.kl);
  json.key("kl_low").number(entry.quality.kl_low);
  json.key("kl_high").number(entry.quality.kl_high);
  json.key("agreement").number(entry.quality.agreement);
  write_optional(json, "score", entry.quality.score);
  write_optional(json, "score_low", entry.quality.score_low);
  write_optional(json, "score_high", entry.quality.score_high);
  json.key("relative_cost").number(entry.relative_cost);
  json.key("quality").number(entry.quality_index);
  json.end_object();
}

void write_measurements(JsonWriter& json, const PlanBook& book) {
  json.key("frontier").begin_array();
  for (const PlanEntry& entry : book.frontier) write_plan(json, entry, book.num_layers);
  json.end_array();
  json.key("heat_map").begin_array();
  for (const HeatCell& cell : book.heat_map) {
    json.begin_object();
    json.key("b").integer(cell.b).key("c").integer(cell.c);
    json.key("translated").boolean(cell.translated);
    json.key("kl").number(cell.kl).key("agreement").number(cell.agreement);
    json.end_object();
  }
  json.end_array();
  json.key("sensitivity").begin_array();
  for (const LayerSensitivity& layer : book.sensitivity) {
    json.begin_object();
    json.key("layer").integer(layer.layer);
    json.key("kl").number(layer.kl).key("spread").number(layer.spread);
    json.end_object();
  }
  json.end_array();
}

void write_plan_book(JsonWriter& json, const PlanBook& book, double min_quality) {
  const PlanEntry* chosen = book.cheapest(min_quality);
  json.begin_object();
  json.key("sender").text(book.sender);
  json.key("receiver").text(book.receiver);
  json.key("num_layers").integer(book.num_layers);
  json.key("data").text(book.data_name);
  json.key("num_contexts").integer(book.num_contexts);
  json.key("context_tokens_median").integer(book.context_tokens_median);
  json.key("metric").text_or_null(book.metric);
  write_optional(json, "full_score", book.full_score);
  json.key("chosen").text_or_null(chosen == nullptr ? "" : chosen->plan.to_string(book.num_layers));
  write_measurements(json, book);
  json.end_object();
}

}  // namespace

std::string plan_books_json(std::span<const PlanBook> books, double min_quality) {
  JsonWriter json;
  json.begin_object().key("plan_books").begin_array();
  for (const PlanBook& book : books) write_plan_book(json, book, min_quality);
  json.end_array().end_object();
  return std::move(json).take();
}

HttpResponse show_plan_books(Service& service, HttpRequest& request) {
  return answer_tagged(request, service.plan_books());
}

}  // namespace droidspeak
