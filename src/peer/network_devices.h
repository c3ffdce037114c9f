// Which of the machine's network devices UCX is to use.
#pragma once

#include <string>

#include "peer/peer_address.h"

namespace droidspeak {

// In the form of UCX_NET_DEVICES: the interface that has the address, and RDMA's ports. Others
// (bridges, other networks) might have addresses that mean something else to other nodes, and
// should not be listened on. "all" when none has it.
std::string devices_around(const PeerAddress& address);

}  // namespace droidspeak
