#include "peer/ucx_worker.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/check.h"
#include "base/error.h"
#include "base/mutex.h"
#include "peer/ucx_events.h"

namespace droidspeak {

struct UcxWorker::Operation {
  UcxWorker* worker;
  std::vector<std::byte> head;
  std::shared_ptr<const void> keep;
  Done done;
};

struct UcxWorker::Handler {
  UcxWorker* worker;
  OnMessage on_message;
};

namespace {

// How long closed connections may take to end when the worker goes.
constexpr std::chrono::milliseconds kClosing{1000};
// Made up for at once, of meetings that did not come to their end; each takes two descriptors.
constexpr uint64_t kMaxSkipped = 50;
// UCX numbers those of two workers in 16 bits.
constexpr uint64_t kMostPlaces = 65000;

std::string key_of(std::span<const std::byte> address) {
  return {reinterpret_cast<const char*>(address.data()), address.size()};
}

void require(const UcxLibrary& ucx, ucs_status_t status, std::string_view what) {
  if (status == UCS_OK) return;
  throw Failure(ErrorCode::kUnavailable,
                fmt::format("UCX cannot {}: {}", what, ucx.text_of(status)));
}

FileDescriptor make_wake_events() {
  FileDescriptor made(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (made.get() < 0)
    throw Failure(ErrorCode::kUnavailable,
                  fmt::format("cannot wake up a thread: {}", std::strerror(errno)));
  return made;
}

ucp_context_h make_context(const UcxLibrary& ucx, const std::string& devices) {
  ucp_config_t* config = nullptr;
  require(ucx, ucx.config_read(nullptr, nullptr, &config), "read its configuration");
  ucs_status_t status = UCS_OK;
  if (std::getenv("UCX_NET_DEVICES") == nullptr)  // NOLINT(concurrency-mt-unsafe)
    status = ucx.config_modify(config, "NET_DEVICES", devices.c_str());
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  ucp_context_h context = nullptr;
  if (status == UCS_OK)
    status = ucx.init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context);
  ucx.config_release(config);
  require(ucx, status, "begin");
  return context;
}

}  // namespace

UcxWorker::UcxWorker(const std::string& devices)
    : wake_events_(make_wake_events()),
      ucx_(UcxLibrary::load()),
      context_(make_context(ucx_, devices)) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucs_status_t status = ucx_.worker_create(context_, &params, &worker_);
  if (status == UCS_OK) {
    status = ucx_.worker_get_efd(worker_, &ucx_events_);
    if (status == UCS_OK) status = pack_address();
    if (status != UCS_OK) ucx_.worker_destroy(worker_);
  }
  if (status != UCS_OK) ucx_.cleanup(context_);
  require(ucx_, status, "make a worker that sleeps");
}

// What ends only now has nobody to be told to.
UcxWorker::~UcxWorker() {
  on_error_ = nullptr;
  for (auto& handler : handlers_) handler->on_message = nullptr;
  for (auto& [pointer, operation] : pending_) operation->done = nullptr;
  while (!endpoints_.empty()) close(*endpoints_.begin());
  const auto end = std::chrono::steady_clock::now() + kClosing;
  while (!pending_.empty() && std::chrono::steady_clock::now() < end) {
    if (!progress()) wait(std::chrono::milliseconds(10));
  }
  if (pending_.empty()) {
    ucx_.worker_destroy(worker_);
    ucx_.cleanup(context_);
  } else {
    leave_behind();
  }
}

// UCX ends the process when a worker goes that has a message under way. So such a worker stays,
// with the memory that its messages are read from.
void UcxWorker::leave_behind() {
  struct Left {
    ucp_context_h context;
    ucp_worker_h worker;
    std::vector<std::unique_ptr<Handler>> handlers;
    std::unordered_map<Operation*, std::unique_ptr<Operation>> pending;
  };

  static Mutex mutex;
  static auto& all = *new std::vector<Left>;
  MutexLock lock(mutex);
  all.push_back({context_, worker_, std::move(handlers_), std::move(pending_)});
}

void UcxWorker::on_message(PeerMessage message, OnMessage handler) {
  handlers_.push_back(std::make_unique<Handler>(Handler{this, std::move(handler)}));
  ucp_am_handler_param_t params{};
  params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  params.id = static_cast<unsigned>(message);
  params.flags = UCP_AM_FLAG_WHOLE_MSG;
  params.cb = arrived;
  params.arg = handlers_.back().get();
  require(ucx_, ucx_.worker_set_am_recv_handler(worker_, &params), "receive messages");
}

ucs_status_t UcxWorker::arrived(void* handler,
                                const void* head,
                                size_t head_bytes,
                                void* body,
                                size_t body_bytes,
                                const ucp_am_recv_param_t* param) {
  ArrivedPeerMessage message;
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0) message.from = param->reply_ep;
  if (head_bytes > 0) message.head = {static_cast<const std::byte*>(head), head_bytes};
  message.body_bytes = body_bytes;
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    message.to_fetch = body;
  } else if (body_bytes > 0) {
    message.body = {static_cast<const std::byte*>(body), body_bytes};
  }
  auto* self = static_cast<Handler*>(handler);
  if (self->on_message) self->on_message(message);
  return UCS_OK;
}

void UcxWorker::failed(void* worker, ucp_ep_h endpoint, ucs_status_t status) {
  auto* self = static_cast<UcxWorker*>(worker);
  if (self->on_error_) self->on_error_(endpoint, status);
}

ucs_status_t UcxWorker::pack_address() {
  ucp_address_t* packed = nullptr;
  size_t bytes = 0;
  ucs_status_t status = ucx_.worker_get_address(worker_, &packed, &bytes);
  if (status != UCS_OK) return status;
  auto* begin = reinterpret_cast<const std::byte*>(packed);
  address_.assign(begin, begin + bytes);
  ucx_.worker_release_address(worker_, packed);
  return status;
}

Result<ucp_ep_h> UcxWorker::create_endpoint(std::span<const std::byte> address) {
  ++num_connects_[key_of(address)];  // UCX counts those that fail
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLER |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {failed, this};
  ucp_ep_h endpoint = nullptr;
  ucs_status_t status = ucx_.ep_create(worker_, &params, &endpoint);
  if (status != UCS_OK) return Error{ErrorCode::kUnavailable, ucx_.text_of(status)};
  endpoints_.insert(endpoint);
  return endpoint;
}

uint64_t UcxWorker::next_place(std::span<const std::byte> address) const {
  auto found = num_connects_.find(key_of(address));
  return found == num_connects_.end() ? 0 : found->second;
}

Result<ucp_ep_h> UcxWorker::connect(std::span<const std::byte> address, uint64_t place) {
  uint64_t next = next_place(address);
  if (place >= kMostPlaces) {
    return Error{ErrorCode::kUnavailable,
                 fmt::format("{} connections were made, more than UCX can tell apart: one of the "
                             "two must start anew",
                             place)};
  }
  const uint64_t last = std::min(place, next + kMaxSkipped);
  for (; next < last; ++next) {
    if (Result<ucp_ep_h> skipped = create_endpoint(address)) close(*skipped);
  }
  if (next != place) {
    return Error{ErrorCode::kUnavailable,
                 fmt::format("it wants connection {} where {} is next", place, next)};
  }
  return create_endpoint(address);
}

UcxWorker::Operation& UcxWorker::add_operation(std::shared_ptr<const void> keep, Done done) {
  auto operation =
      std::make_unique<Operation>(Operation{this, {}, std::move(keep), std::move(done)});
  Operation* pointer = operation.get();
  pending_.emplace(pointer, std::move(operation));
  return *pointer;
}

void UcxWorker::finish(Operation* operation, ucs_status_t status) {
  auto found = pending_.extract(operation);
  check(!found.empty(), "an operation of UCX ends once");
  if (found.mapped()->done) found.mapped()->done(status);
}

// What ended at once has no request, and its callback is not called.
void UcxWorker::begin(Operation& operation, ucs_status_ptr_t request) {
  if (!UCS_PTR_IS_PTR(request)) finish(&operation, UCS_PTR_RAW_STATUS(request));
}

void UcxWorker::sent(void* request, ucs_status_t status, void* operation) {
  auto* self = static_cast<Operation*>(operation)->worker;
  self->finish(static_cast<Operation*>(operation), status);
  self->ucx_.request_free(request);
}

void UcxWorker::received(void* request, ucs_status_t status, size_t /*bytes*/, void* operation) {
  sent(request, status, operation);
}

void UcxWorker::send(ucp_ep_h endpoint, Message message, Done done) {
  Operation& operation = add_operation(std::move(message.keep), std::move(done));
  operation.head = std::move(message.head);
  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = message.flags | UCP_AM_SEND_FLAG_REPLY;
  params.cb.send = sent;
  params.user_data = &operation;
  begin(operation,
        ucx_.am_send_nbx(endpoint, static_cast<unsigned>(message.id), operation.head.data(),
                         operation.head.size(), message.body.data(), message.body.size(), &params));
}

void UcxWorker::receive(void* to_fetch,
                        std::span<std::byte> room,
                        std::shared_ptr<void> keep,
                        Done done) {
  Operation& operation = add_operation(std::move(keep), std::move(done));
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.recv_am = received;
  params.user_data = &operation;
  begin(operation, ucx_.am_recv_data_nbx(worker_, to_fetch, room.data(), room.size(), &params));
}

void UcxWorker::close(ucp_ep_h endpoint) {
  endpoints_.erase(endpoint);
  Operation& operation = add_operation(nullptr, nullptr);
  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  params.cb.send = sent;
  params.user_data = &operation;
  begin(operation, ucx_.ep_close_nbx(endpoint, &params));
}

bool UcxWorker::progress() {
  constexpr int kRounds = 32;  // then the caller has its turn
  return go_on_one_at_a_time([this] { return ucx_.worker_progress(worker_) != 0; }, kRounds);
}

void UcxWorker::wait(std::chrono::milliseconds timeout, int other) {
  if (ucx_.worker_arm(worker_) != UCS_OK) return;
  pollfd events[] = {{ucx_events_, POLLIN, 0}, {wake_events_.get(), POLLIN, 0}, {other, POLLIN, 0}};
  poll(events, 3, static_cast<int>(timeout.count()));
  eventfd_t count = 0;
  if ((events[1].revents & POLLIN) != 0) eventfd_read(wake_events_.get(), &count);
}

void UcxWorker::wake() {
  eventfd_write(wake_events_.get(), 1);
}

}  // namespace droidspeak
