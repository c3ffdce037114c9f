// UCX, loaded when the first peer is wanted and not before: on loading it takes over signals
// (SIGSEGV, SIGBUS, SIGHUP and others), which a process without peers must not suffer. Where its
// environment says nothing else, it is asked to leave them alone and not to write to stdout.
#pragma once

#include <memory>
#include <string>

#include <ucp/api/ucp.h>

namespace droidspeak {

struct UcxLibrary {
  decltype(&ucp_config_read) config_read;
  decltype(&ucp_config_modify) config_modify;
  decltype(&ucp_config_release) config_release;
  decltype(&ucp_init_version) init_version;
  decltype(&ucp_cleanup) cleanup;
  decltype(&ucp_worker_create) worker_create;
  decltype(&ucp_worker_destroy) worker_destroy;
  decltype(&ucp_worker_get_efd) worker_get_efd;
  decltype(&ucp_worker_get_address) worker_get_address;
  decltype(&ucp_worker_release_address) worker_release_address;
  decltype(&ucp_worker_arm) worker_arm;
  decltype(&ucp_worker_progress) worker_progress;
  decltype(&ucp_worker_set_am_recv_handler) worker_set_am_recv_handler;
  decltype(&ucp_ep_create) ep_create;
  decltype(&ucp_ep_close_nbx) ep_close_nbx;
  decltype(&ucp_am_send_nbx) am_send_nbx;
  decltype(&ucp_am_recv_data_nbx) am_recv_data_nbx;
  decltype(&ucp_request_free) request_free;
  decltype(&ucs_status_string) status_string;

  // Throws Failure when it is not installed or lacks a function. Never unloaded.
  static UcxLibrary load();

  std::string text_of(ucs_status_t status) const { return status_string(status); }
};

}  // namespace droidspeak
