#include "server/handlers.h"
#include "server/json_writer.h"

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

void write_tier(JsonWriter& json, const char* name, const StoreCounters::PerTier& tier) {
  json.key(name).begin_object();
  json.key("entries").unsigned_integer(tier.entries);
  json.key("bytes").unsigned_integer(tier.bytes);
  json.key("capacity_bytes").unsigned_integer(tier.capacity_bytes);
  json.key("hits").unsigned_integer(tier.hits);
  json.key("bytes_read").unsigned_integer(tier.bytes_read);
  json.key("bytes_written").unsigned_integer(tier.bytes_written);
  json.key("evictions").unsigned_integer(tier.evictions);
  json.end_object();
}

void write_caches(JsonWriter& json, const StoreCounters& store) {
  json.begin_object();
  write_tier(json, "host", store.host);
  write_tier(json, "disk", store.disk);
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
