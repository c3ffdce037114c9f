#include "server/listener.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/error.h"

namespace droidspeak {

namespace {

constexpr int kBacklog = 512;
// Files of models, caches and logs, and connections that are being refused.
constexpr rlim_t kOtherDescriptors = 256;

struct FreeAddresses {
  void operator()(addrinfo* addresses) const { freeaddrinfo(addresses); }
};

int new_socket(int family) {
  return ::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

// -1 with errno when this address cannot be used.
int listen_on(const addrinfo& address) {
  int socket = new_socket(address.ai_family);
  if (socket < 0) return -1;
  int yes = 1;
  int no = 0;
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (address.ai_family == AF_INET6) setsockopt(socket, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
  if (::bind(socket, address.ai_addr, address.ai_addrlen) == 0 && ::listen(socket, kBacklog) == 0)
    return socket;
  int problem = errno;
  ::close(socket);
  errno = problem;
  return -1;
}

int port_of(int socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

Failure path_failure(const std::filesystem::path& path, std::string_view problem) {
  return Failure(ErrorCode::kUnavailable,
                 fmt::format("cannot listen on --socket {}: {}", path.string(), problem));
}

sockaddr_un address_of(const std::filesystem::path& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.native().size() >= sizeof address.sun_path) {
    throw path_failure(path, fmt::format("its path has {} bytes, and a socket's 1 to {}",
                                         path.native().size(), sizeof address.sun_path - 1));
  }
  std::copy(path.native().begin(), path.native().end(), address.sun_path);
  return address;
}

// Removes a socket that nobody listens on any more.
void remove_stale(const std::filesystem::path& path, const sockaddr_un& address) {
  struct stat status {};

  if (::lstat(path.c_str(), &status) != 0) return;
  if (!S_ISSOCK(status.st_mode))
    throw path_failure(path, "there is a file of that name; choose another one");
  int probe = new_socket(AF_UNIX);
  int result = ::connect(probe, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  int problem = errno;
  ::close(probe);
  if (result == 0 || problem == EAGAIN)
    throw path_failure(path, "another server listens there; choose another path");
  if (problem != ECONNREFUSED) throw path_failure(path, std::strerror(problem));
  ::unlink(path.c_str());
}

}  // namespace

Listener Listener::on_port(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  int status = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  std::unique_ptr<addrinfo, FreeAddresses> addresses(found);
  std::string problem = status != 0 ? gai_strerror(status) : "no such address";
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    Listener listener(listen_on(*address));
    if (listener.socket_ >= 0) {
      listener.port_ = port_of(listener.socket_);
      return listener;
    }
    problem = std::strerror(errno);
  }
  throw Failure(ErrorCode::kUnavailable,
                fmt::format("cannot listen on {}:{}: {}; choose another --host or --port", host,
                            port, problem));
}

Listener Listener::on_path(const std::filesystem::path& path) {
  sockaddr_un address = address_of(path);
  remove_stale(path, address);
  Listener listener(new_socket(AF_UNIX));
  // On Linux the file gets the mode that the socket has when it is bound.
  bool is_listening =
      ::fchmod(listener.socket_, S_IRUSR | S_IWUSR) == 0 &&
      ::bind(listener.socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  if (!is_listening) throw path_failure(path, std::strerror(errno));

  struct stat status {};

  if (::lstat(path.c_str(), &status) == 0) {
    listener.path_ = std::filesystem::absolute(path);
    listener.file_ = {status.st_dev, status.st_ino};
  }
  if (::listen(listener.socket_, kBacklog) != 0) throw path_failure(path, std::strerror(errno));
  return listener;
}

Listener::Listener(Listener&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)),
      port_(other.port_),
      path_(std::exchange(other.path_, {})),
      file_(other.file_) {}

Listener::~Listener() {
  struct stat status {};

  bool is_ours = !path_.empty() && ::lstat(path_.c_str(), &status) == 0 &&
                 std::pair(status.st_dev, status.st_ino) == file_;
  if (is_ours) ::unlink(path_.c_str());
  if (socket_ >= 0) ::close(socket_);
}

void Listener::stop() const {
  ::shutdown(socket_, SHUT_RDWR);
}

void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

int connections_within_limit(int wanted) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return wanted;
  rlim_t others = std::min(kOtherDescriptors, limit.rlim_cur / 2);
  rlim_t most = std::max<rlim_t>(limit.rlim_cur - others, 1);
  return most < static_cast<rlim_t>(wanted) ? static_cast<int>(most) : wanted;
}

}  // namespace droidspeak
