#include "server/state.h"

#include "server/handlers.h"

namespace droidspeak {

namespace {

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
    if (!variant.invocation.empty()) {
      json.key("invocation_tokens").begin_array();
      for (int32_t token : variant.invocation) json.integer(token);
      json.end_array();
    }
    json.key("takes_from").begin_array();
    for (const std::string& sender : variant.takes_from) json.text(sender);
    json.end_array().end_object();
  }
  json.end_array().end_object();
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

}  // namespace

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

HttpResponse show_state(Service& service, HttpRequest& request) {
  EngineState state = service.engine().state();
  JsonWriter json;
  json.begin_object().key("families").begin_array();
  write_family(json, state);
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
