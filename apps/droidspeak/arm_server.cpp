#include "arm_server.h"

namespace droidspeak {

namespace {

EngineOptions::Sharing sharing_of(const std::string& arm) {
  if (arm == "off") return EngineOptions::Sharing::kOff;
  if (arm == "reuse") return EngineOptions::Sharing::kPlainReuse;
  return EngineOptions::Sharing::kOn;
}

EngineOptions engine_options(const ArmParts& parts,
                             const CommonOptions& common,
                             const std::string& arm,
                             double min_quality) {
  EngineOptions engine;
  Precision precision = parse_precision(common.precision);
  engine.family = {precision, common.max_model_len};
  engine.kv_bytes = parse_kv_memory(common.kv_memory);
  engine.kv_dtype = parse_kv_dtype(common.kv_dtype, parts.device, precision);
  engine.store = store_options(common, parts.device);
  engine.max_queue = 100000;  // waiting is what is measured
  engine.min_quality = min_quality;
  engine.sharing = sharing_of(arm);
  return engine;
}

ServerOptions server_options() {
  ServerOptions server;
  server.port = 0;
  return server;
}

}  // namespace

ArmServer::ArmServer(const ArmParts& parts,
                     const CommonOptions& common,
                     const std::string& arm,
                     double min_quality)
    : engine_(parts.ops, parts.file, engine_options(parts, common, arm, min_quality)),
      server_(engine_, parts.tokenizer, server_options()) {}

}  // namespace droidspeak
