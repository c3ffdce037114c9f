// A real server with a real engine on a tiny family, on a free loopback port.
#pragma once

#include <memory>

#include "base/file.h"
#include "device/device.h"
#include "e2e/http_client.h"
#include "engine/engine.h"
#include "model/family.h"
#include "ops/ops.h"
#include "server/server.h"
#include "support/tiny_model.h"
#include "text/tokenizer.h"

namespace droidspeak {

struct TinyServerOptions {
  ServerOptions server;
  EngineOptions engine;
  // With a plan book for (base, alpha): plain reuse, and 0,1,3 as its better plan.
  enum class PlanBooks { kNone, kBaseToAlpha } plan_books = PlanBooks::kNone;
  Pooling base_pooling = Pooling::kNone;
  Device* device = nullptr;  // one that passes for a CPU and outlives the server; null: a CPU
};

class TinyServer {
 public:
  explicit TinyServer(TinyServerOptions options = {});

  int port() const { return server_->port(); }

  Engine& engine() { return *engine_; }

  HttpServer& server() { return *server_; }

  const std::filesystem::path& folder() const { return folder_.path(); }

  ClientResponse get(const std::string& path, std::vector<std::string> headers = {});
  ClientResponse post(const std::string& path,
                      const std::string& body,
                      std::vector<std::string> headers = {});

 private:
  TemporaryFolder folder_;
  std::unique_ptr<Device> own_device_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace droidspeak
