// Stands in for client and server where the program was built without UCX.
#include "base/error.h"
#include "peer/peer_client.h"
#include "peer/peer_server.h"

namespace droidspeak {
namespace {

[[noreturn]] void refuse() {
  throw Failure(ErrorCode::kUnavailable,
                "--peer-listen: this program was built without UCX; install the package libucx-dev "
                "and build it again");
}

}  // namespace

class PeerServer::Loop {};

class PeerClient::Loop {};

PeerServer::PeerServer(const PeerServerOptions& /*options*/, PeerSource /*source*/) {
  refuse();
}

PeerServer::~PeerServer() = default;

std::string PeerServer::address() const {
  refuse();
}

PeerServerCounters PeerServer::counters() const {
  refuse();
}

PeerClient::PeerClient(const PeerClientOptions& /*options*/) {
  refuse();
}

PeerClient::~PeerClient() = default;

void PeerClient::read(const std::string& /*address*/,
                      std::vector<PeerReadItem> /*items*/,
                      std::chrono::milliseconds /*deadline*/,
                      std::shared_ptr<PeerReadSink> /*sink*/) {
  refuse();
}

bool PeerClient::may_ask(const std::string& /*address*/) const {
  refuse();
}

std::vector<PeerLink> PeerClient::links() const {
  refuse();
}

}  // namespace droidspeak
