// A UCX worker: endpoints, active messages, and a wait that sleeps until something happens. All of
// it is for one thread at a time but wake(). Callbacks run inside progress() (or inside the call
// that begins the operation, when it ends at once) and must not close endpoints.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/file_descriptor.h"
#include "peer/frames.h"
#include "peer/ucx_library.h"

namespace droidspeak {

// A message as it came.
struct ArrivedPeerMessage {
  ucp_ep_h from = nullptr;  // null: the sender did not say
  std::span<const std::byte> head;
  std::span<const std::byte> body;  // empty when it must be fetched
  void* to_fetch = nullptr;         // for UcxWorker::receive(), only within the callback
  size_t body_bytes = 0;
};

class UcxWorker {
 public:
  using Done = std::function<void(ucs_status_t)>;
  using OnMessage = std::function<void(const ArrivedPeerMessage&)>;
  using OnError = std::function<void(ucp_ep_h, ucs_status_t)>;

  // On these devices, as devices_around() names them, unless UCX_NET_DEVICES names others. Throws
  // Failure.
  explicit UcxWorker(const std::string& devices = "all");
  ~UcxWorker();  // closes every endpoint
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  void on_message(PeerMessage message, OnMessage handler);

  void on_error(OnError handler) { on_error_ = std::move(handler); }

  // How others' workers reach this one, for their connect(). Each worker has another.
  const std::vector<std::byte>& address() const { return address_; }

  // Both sides make an endpoint to the other. UCX pairs those of two workers in the order in which
  // they were made; so both must say the same `place`, how many came before. Those that were made
  // there only (a meeting that did not come to its end) are made here too, and closed; of many
  // some, and the rest at the next calls. `address` is believed: it must be from a node that has
  // shown the secret.
  Result<ucp_ep_h> connect(std::span<const std::byte> address, uint64_t place);
  uint64_t next_place(std::span<const std::byte> address) const;
  // At once, without the other's consent. What is under way ends with an error, now or in
  // progress().
  void close(ucp_ep_h endpoint);

  struct Message {
    PeerMessage id;
    std::vector<std::byte> head{};
    std::span<const std::byte> body{};
    std::shared_ptr<const void> keep{};  // whose the body is
    unsigned flags = 0;                  // of ucp_send_am_flags
  };

  void send(ucp_ep_h endpoint, Message message, Done done);
  // `keep` owns the room until UCX writes there no more, whatever else happens.
  void receive(void* to_fetch, std::span<std::byte> room, std::shared_ptr<void> keep, Done done);

  // True when something happened.
  bool progress();
  // Until there is something to progress, wake() is called, `other` can be read, or the time is
  // over.
  void wait(std::chrono::milliseconds timeout, int other = -1);
  // From any thread.
  void wake();

  // Operations that have not ended, closing endpoints among them.
  size_t num_pending() const { return pending_.size(); }

 private:
  struct Operation;
  struct Handler;

  void leave_behind();
  void begin(Operation& operation, ucs_status_ptr_t request);
  Operation& add_operation(std::shared_ptr<const void> keep, Done done);
  void finish(Operation* operation, ucs_status_t status);
  static void sent(void* request, ucs_status_t status, void* operation);
  static void received(void* request, ucs_status_t status, size_t bytes, void* operation);
  static ucs_status_t arrived(void* handler,
                              const void* head,
                              size_t head_bytes,
                              void* body,
                              size_t body_bytes,
                              const ucp_am_recv_param_t* param);
  static void failed(void* worker, ucp_ep_h endpoint, ucs_status_t status);
  ucs_status_t pack_address();
  Result<ucp_ep_h> create_endpoint(std::span<const std::byte> address);

  const FileDescriptor wake_events_;
  const UcxLibrary ucx_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  std::vector<std::byte> address_;
  int ucx_events_ = -1;
  std::vector<std::unique_ptr<Handler>> handlers_;
  OnError on_error_;
  std::unordered_set<ucp_ep_h> endpoints_;
  std::unordered_map<std::string, uint64_t> num_connects_;  // by address
  std::unordered_map<Operation*, std::unique_ptr<Operation>> pending_;
};

}  // namespace droidspeak
