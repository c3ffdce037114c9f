#include "engine/inbox.h"

#include <utility>

#include <fmt/format.h>

namespace droidspeak {
namespace {

constexpr std::chrono::milliseconds kLongestWait{20};

}  // namespace

Inbox::Place::~Place() {
  if (inbox_ == nullptr) return;
  MutexLock lock(inbox_->mutex_);
  --inbox_->num_reserved_;
}

Result<Inbox::Place> Inbox::reserve(const GenerationRequest& request) {
  MutexLock lock(mutex_);
  if (refusal_) return *refusal_;
  // Some places are kept for further choices, so that new requests cannot starve those let in.
  size_t kept = request.continues ? max_waiting_ / 4 + 1 : 0;
  if (mail_.sequences.size() + num_waiting_ + num_reserved_ >= max_waiting_ + kept) {
    return Error{ErrorCode::kExhausted,
                 fmt::format("{} requests are waiting already: try again later", max_waiting_)};
  }
  ++num_reserved_;
  return Place(*this);
}

Result<void> Inbox::submit(Place place, std::unique_ptr<Sequence> sequence) {
  MutexLock lock(mutex_);
  if (refusal_) return *refusal_;
  place.inbox_ = nullptr;
  --num_reserved_;
  sequence->id = next_id_++;
  mail_.sequences.push_back(std::move(sequence));
  ++num_in_flight_;
  has_mail_.notify_one();
  return {};
}

Result<void> Inbox::call(std::function<Result<void>()> command) {
  Command task(std::move(command));
  std::future<Result<void>> answer = task.get_future();
  {
    MutexLock lock(mutex_);
    if (is_broken_ || mail_.is_stopped)
      return Error{ErrorCode::kUnavailable, "the engine has stopped"};
    mail_.commands.push_back(std::move(task));
    has_mail_.notify_one();
  }
  try {
    return answer.get();
  } catch (const Failure& failure) {
    return failure.error();
  } catch (const std::future_error&) {  // the engine thread is gone
    return Error{ErrorCode::kUnavailable, "the engine has stopped"};
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::kExhausted, "out of memory"};
  }
}

void Inbox::refuse(Error error) {
  MutexLock lock(mutex_);
  if (!refusal_) refusal_ = std::move(error);
}

bool Inbox::wait_until_empty(std::chrono::milliseconds limit) {
  auto deadline = std::chrono::steady_clock::now() + limit;
  MutexLock lock(mutex_);
  while (num_in_flight_ > 0) {
    auto left = deadline - std::chrono::steady_clock::now();
    if (left <= left.zero()) return false;
    is_empty_.wait_for(mutex_, left);
  }
  return true;
}

void Inbox::stop() {
  MutexLock lock(mutex_);
  mail_.is_stopped = true;
  if (!refusal_) refusal_ = Error{ErrorCode::kUnavailable, "the engine is shutting down"};
  has_mail_.notify_one();
}

void Inbox::note_progress() {
  MutexLock lock(mutex_);
  has_progress_ = true;
  has_mail_.notify_one();
}

bool Inbox::is_empty() const {
  return !mail_.is_stopped && mail_.sequences.empty() && mail_.commands.empty();
}

Inbox::Mail Inbox::take(Wait wait) {
  MutexLock lock(mutex_);
  while (wait == Wait::kUntilMail && is_empty()) has_mail_.wait(mutex_);
  // Readers that lose interest and deadlines do not tell; they are looked at between waits.
  if (wait == Wait::kForProgress && is_empty() && !has_progress_)
    has_mail_.wait_for(mutex_, kLongestWait);
  has_progress_ = false;
  num_waiting_ += mail_.sequences.size();
  bool is_stopped = mail_.is_stopped;
  Mail taken = std::exchange(mail_, {});
  mail_.is_stopped = is_stopped;
  return taken;
}

void Inbox::set_waiting(size_t num_waiting) {
  MutexLock lock(mutex_);
  num_waiting_ = num_waiting;
}

void Inbox::note_done(size_t num_sequences) {
  if (num_sequences == 0) return;
  MutexLock lock(mutex_);
  num_in_flight_ -= num_sequences;
  if (num_in_flight_ == 0) is_empty_.notify_all();
}

void Inbox::break_down(const Error& error) {
  Mail rest;
  {
    MutexLock lock(mutex_);
    refusal_ = error;
    is_broken_ = true;
    rest = std::exchange(mail_, {});
    mail_.is_stopped = rest.is_stopped;
  }
  for (auto& sequence : rest.sequences) sequence->stream->push(error);
  note_done(rest.sequences.size());
}

}  // namespace droidspeak
