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

void write_family(JsonWriter& json, const EngineState& state) {
  json.begin_object();
  json.key("name").text(state.family);
  json.key("device").text(state.device);
  json.key("num_layers").integer(state.num_layers);
  json.key("max_model_len").integer(state.max_model_len);
  json.key("variants").begin_array();
  for (const VariantState& variant : state.variants) {
    json.begin_object();
    json.key("name").text(variant.name);
    json.key("parent").text_or_null(variant.parent);
    json.key("digest").text(variant.digest);
    json.key("bytes").unsigned_integer(variant.bytes);
    json.end_object();
  }
  json.end_array().end_object();
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
  json.key("full_score").number(book.full_score);
  json.key("chosen").text_or_null(chosen == nullptr ? "" : chosen->plan.to_string(book.num_layers));
  write_measurements(json, book);
  json.end_object();
}

void write_link(JsonWriter& json, const LinkReport& link) {
  json.begin_object();
  json.key("address").text(link.address);
  json.key("up").boolean(link.is_up);
  json.key("round_trip_ms").number(link.round_trip_seconds * 1e3);
  json.key("bytes_per_second").number(link.bytes_per_second);
  json.key("queued_bytes").unsigned_integer(link.queued_bytes);
  json.key("failures").unsigned_integer(link.failures);
  json.end_object();
}

void write_tier(JsonWriter& json, const TierReport& tier) {
  json.begin_object();
  json.key("name").text(std::string(tier_name(tier.tier)));
  json.key("entries").unsigned_integer(tier.entries);
  json.key("bytes").unsigned_integer(tier.bytes);
  json.key("capacity_bytes").unsigned_integer(tier.capacity_bytes);
  json.key("hits").unsigned_integer(tier.hits);
  json.key("misses").unsigned_integer(tier.misses);
  json.key("bytes_read").unsigned_integer(tier.bytes_read);
  json.key("bytes_written").unsigned_integer(tier.bytes_written);
  json.key("evictions").unsigned_integer(tier.evictions);
  json.key("damaged").unsigned_integer(tier.damaged);
  json.key("write_errors").unsigned_integer(tier.write_errors);
  json.key("dropped_writes").unsigned_integer(tier.dropped_writes);
  json.key("links").begin_array();
  for (const LinkReport& link : tier.links) write_link(json, link);
  json.end_array().end_object();
}

void write_caches(JsonWriter& json, const StoreCounters& store) {
  json.begin_object();
  json.key("tiers").begin_array();
  for (const TierReport& tier : store.tiers) write_tier(json, tier);
  json.end_array();
  json.key("misses").unsigned_integer(store.misses);
  json.key("damaged").unsigned_integer(store.damaged);
  json.key("write_errors").unsigned_integer(store.write_errors);
  json.end_object();
}

}  // namespace

HttpResponse show_state(Service& service, HttpRequest& request) {
  EngineState state = service.engine().state();
  JsonWriter json;
  json.begin_object().key("families").begin_array();
  write_family(json, state);
  json.end_array().key("plan_books").begin_array();
  for (const PlanBook& book : state.plan_books)
    write_plan_book(json, book, service.options().min_quality);
  json.end_array();
  json.key("caches");
  if (request.caller.sees_all_tenants) {
    write_caches(json, state.store);
  } else {
    json.null();  // the counters would tell what other tenants have asked before
  }
  json.key("queue").begin_object();
  json.key("running").integer(state.running).key("waiting").integer(state.waiting).end_object();
  json.key("kv").begin_object();
  json.key("blocks_used").integer(state.kv_blocks_used);
  json.key("blocks_total").integer(state.kv_blocks_total).end_object();
  json.key("healthy").boolean(state.is_healthy);
  json.key("draining").boolean(service.is_draining());
  json.end_object();
  HttpResponse response;
  response.body = std::move(json).take();
  return response;
}

}  // namespace droidspeak
