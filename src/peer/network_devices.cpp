#include "peer/network_devices.h"

#include <filesystem>
#include <memory>
#include <system_error>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

namespace droidspeak {
namespace {

struct FreeInterfaces {
  void operator()(ifaddrs* interfaces) const { freeifaddrs(interfaces); }
};

bool is_same_host(const sockaddr* a, const sockaddr* b) {
  if (a == nullptr || a->sa_family != b->sa_family) return false;
  if (a->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(a)->sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(b)->sin_addr.s_addr;
  }
  return a->sa_family == AF_INET6 &&
         IN6_ARE_ADDR_EQUAL(&reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr,
                            &reinterpret_cast<const sockaddr_in6*>(b)->sin6_addr);
}

bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
  uint32_t host = ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr);
  return host >> 24 == IN_LOOPBACKNET;
}

std::string interface_with(const PeerAddress& address) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return "";
  std::unique_ptr<ifaddrs, FreeInterfaces> interfaces(list);
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (!is_same_host(one->ifa_addr, address.get())) continue;
    // UCX would tell others the interface's first address, which is theirs, too.
    if ((one->ifa_flags & IFF_LOOPBACK) != 0 && !is_loopback(address.get())) continue;
    std::string name = one->ifa_name;
    return name.substr(0, name.find(':'));  // a further address may have a label
  }
  return "";
}

// As ",mlx5_0:1".
std::string rdma_ports() {
  namespace fs = std::filesystem;
  std::string ports;
  std::error_code problem;
  for (const auto& device : fs::directory_iterator("/sys/class/infiniband", problem)) {
    for (const auto& port : fs::directory_iterator(device.path() / "ports", problem))
      ports += "," + device.path().filename().string() + ":" + port.path().filename().string();
  }
  return ports;
}

}  // namespace

std::string devices_around(const PeerAddress& address) {
  std::string interface = interface_with(address);
  return interface.empty() ? "all" : interface + rdma_ports();
}

}  // namespace droidspeak
