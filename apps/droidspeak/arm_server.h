// A server of our own with empty caches, for one arm of a load test.
#pragma once

#include <string>

#include "command.h"
#include "engine/engine.h"
#include "server/server.h"
#include "workspace.h"

namespace droidspeak {

// Shared by all arms.
struct ArmParts {
  Ops& ops;
  Device& device;
  const FamilyFile& file;
  const Tokenizer& tokenizer;
};

class ArmServer {
 public:
  // `arm`: "off" (own prefix cache only), "reuse" (senders' caches as they are) or "droidspeak".
  ArmServer(const ArmParts& parts,
            const CommonOptions& common,
            const std::string& arm,
            double min_quality);

  std::string url() const { return server_.url(); }

 private:
  Engine engine_;
  HttpServer server_;
};

}  // namespace droidspeak
