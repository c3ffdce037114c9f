// Where other threads meet the engine thread: new requests and commands go in, the engine thread
// takes them out between steps. Bounds how many requests wait.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "engine/sequence.h"

namespace droidspeak {

class Inbox {
 public:
  using Command = std::packaged_task<Result<void>()>;

  struct Mail {
    std::vector<std::unique_ptr<Sequence>> sequences;  // in order of arrival, ids given
    std::vector<Command> commands;
    bool is_stopped = false;
  };
  // kForProgress: until mail, note_progress(), or a short while.
  enum class Wait { kNo, kUntilMail, kForProgress };

  explicit Inbox(int32_t max_waiting) : max_waiting_(static_cast<size_t>(max_waiting)) {}

  // One that will wait: counts until it is submitted or goes.
  class Place {
   public:
    ~Place();

    Place(Place&& other) noexcept : inbox_(std::exchange(other.inbox_, nullptr)) {}

    Place& operator=(Place&&) = delete;

   private:
    friend class Inbox;

    explicit Place(Inbox& inbox) : inbox_(&inbox) {}

    Inbox* inbox_;
  };

  // Any thread. Before anything is done for the request: kExhausted when too many wait (a quarter
  // more may when they continue a request), the refusal's error after refuse().
  Result<Place> reserve(const GenerationRequest& request);
  // The refusal's error after refuse().
  Result<void> submit(Place place, std::unique_ptr<Sequence> sequence);
  // Runs `command` on the engine thread and waits for it.
  Result<void> call(std::function<Result<void>()> command);
  // From now on submit() fails with this; the first refusal stays.
  void refuse(Error error);
  // False when requests are still in flight after `limit`.
  bool wait_until_empty(std::chrono::milliseconds limit);
  void stop();
  // Something that the engine thread may be waiting for has come on.
  void note_progress();

  // Engine thread.
  Mail take(Wait wait);
  void set_waiting(size_t num_waiting);  // taken out but not admitted yet
  void note_done(size_t num_sequences);  // their streams have ended
  // Fails what comes and what is not taken yet; commands fail, too.
  void break_down(const Error& error);

 private:
  bool is_empty() const REQUIRES(mutex_);

  const size_t max_waiting_;
  Mutex mutex_;
  Condition has_mail_;
  Condition is_empty_;
  Mail mail_ GUARDED_BY(mutex_);
  std::optional<Error> refusal_ GUARDED_BY(mutex_);
  bool is_broken_ GUARDED_BY(mutex_) = false;
  bool has_progress_ GUARDED_BY(mutex_) = false;
  uint64_t next_id_ GUARDED_BY(mutex_) = 1;
  size_t num_waiting_ GUARDED_BY(mutex_) = 0;   // on the engine's side
  size_t num_reserved_ GUARDED_BY(mutex_) = 0;  // not submitted yet
  size_t num_in_flight_ GUARDED_BY(mutex_) = 0;
};

}  // namespace droidspeak
