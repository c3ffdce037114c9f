#include "peer/ucx_library.h"

#include <cstdlib>

#include <dlfcn.h>
#include <fmt/format.h>

#include "base/error.h"
#include "peer/ucx_events.h"

namespace droidspeak {
namespace {

// What the environment says already, stays.
void set_defaults() {
  setenv("UCX_HANDLE_ERRORS", "none", 0);
  setenv("UCX_ERROR_SIGNALS", "", 0);
  setenv("UCX_DEBUG_SIGNO", "0", 0);
  setenv("UCX_LOG_LEVEL", "fatal", 0);
  setenv("UCX_WARN_UNUSED_ENV_VARS", "n", 0);
  // Newer UCX (1.16 in Ubuntu 24.04) has other protocols by default, which end the process now and
  // then when the other side goes in the middle of a reply (its issue 9528).
  setenv("UCX_PROTO_ENABLE", "n", 0);
  // A node that does not answer must not hold up the others.
  setenv("UCX_TCP_CONN_NB", "y", 0);
  // Pieces in which a reply comes. The defaults are smaller and cost 7 to 12 % more processor time
  // over TCP, and 1.9 to 2.6 times as much over shared memory (decision 013); what is reserved for
  // them is the same.
  setenv("UCX_TCP_RX_SEG_SIZE", "1m", 0);
  for (const char* name : {"UCX_SYSV_SEG_SIZE", "UCX_POSIX_SEG_SIZE"}) setenv(name, "60k", 0);
  for (const char* name : {"UCX_SYSV_RX_BUFS_GROW", "UCX_POSIX_RX_BUFS_GROW"})
    setenv(name, "64", 0);
}

template <class Function>
void find(void* library, const char* name, Function& function) {
  void* symbol = dlsym(library, name);
  if (symbol == nullptr) {
    throw Failure(ErrorCode::kUnavailable,
                  fmt::format("UCX: libucp.so.0 has no {}; version 1.13 or later is needed", name));
  }
  function = reinterpret_cast<Function>(symbol);
}

}  // namespace

UcxLibrary UcxLibrary::load() {
  if (!ucx_asks_us_for_events()) {
    throw Failure(ErrorCode::kUnavailable,
                  "UCX: this program was linked without exporting epoll_wait(), which peers need "
                  "(src/peer/ucx_events.h)");
  }
  set_defaults();
  void* library = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw Failure(ErrorCode::kUnavailable,
                  fmt::format("UCX cannot be loaded ({}); peers need the package libucx0",
                              dlerror()));  // NOLINT(concurrency-mt-unsafe)
  }
  UcxLibrary ucx{};
  find(library, "ucp_config_read", ucx.config_read);
  find(library, "ucp_config_modify", ucx.config_modify);
  find(library, "ucp_config_release", ucx.config_release);
  find(library, "ucp_init_version", ucx.init_version);
  find(library, "ucp_cleanup", ucx.cleanup);
  find(library, "ucp_worker_create", ucx.worker_create);
  find(library, "ucp_worker_destroy", ucx.worker_destroy);
  find(library, "ucp_worker_get_efd", ucx.worker_get_efd);
  find(library, "ucp_worker_get_address", ucx.worker_get_address);
  find(library, "ucp_worker_release_address", ucx.worker_release_address);
  find(library, "ucp_worker_arm", ucx.worker_arm);
  find(library, "ucp_worker_progress", ucx.worker_progress);
  find(library, "ucp_worker_set_am_recv_handler", ucx.worker_set_am_recv_handler);
  find(library, "ucp_ep_create", ucx.ep_create);
  find(library, "ucp_ep_close_nbx", ucx.ep_close_nbx);
  find(library, "ucp_am_send_nbx", ucx.am_send_nbx);
  find(library, "ucp_am_recv_data_nbx", ucx.am_recv_data_nbx);
  find(library, "ucp_request_free", ucx.request_free);
  find(library, "ucs_status_string", ucx.status_string);
  return ucx;
}

}  // namespace droidspeak
