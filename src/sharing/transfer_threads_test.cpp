#include "sharing/transfer_threads.h"

#include <atomic>
#include <future>
#include <stdexcept>

#include <gtest/gtest.h>
#include <pthread.h>

#include "base/mutex.h"
#include "base/test_wait.h"

namespace droidspeak {
namespace {

using namespace std::chrono_literals;

// Shared by a test and a transfer that may outlive it.
struct Gate {
  void pass() {
    MutexLock lock(mutex);
    is_inside = true;
    ++num_inside;
    changed.notify_all();
    while (!is_open) changed.wait(mutex);
    has_passed = true;
    changed.notify_all();
  }

  void open() {
    MutexLock lock(mutex);
    is_open = true;
    changed.notify_all();
  }

  void wait_for(bool Gate::*what) {
    MutexLock lock(mutex);
    while (!(this->*what)) changed.wait(mutex);
  }

  Mutex mutex;
  Condition changed;
  bool is_inside = false;
  size_t num_inside = 0;
  bool is_open = false;
  bool has_passed = false;
};

TEST(TransferThreads, WaitForWhatRunsAndDropWhatWaits) {
  auto gate = std::make_shared<Gate>();
  std::atomic<size_t> num_run = 0;
  auto threads = std::make_unique<TransferThreads>();
  for (size_t i = 0; i < TransferThreads::kMaxThreads; ++i) {
    threads->start([&] {
      gate->pass();
      ++num_run;
    });
  }
  {
    MutexLock lock(gate->mutex);
    while (gate->num_inside < TransferThreads::kMaxThreads) gate->changed.wait(gate->mutex);
  }
  auto owned = std::make_shared<int>(1);
  std::weak_ptr<int> is_owned = owned;
  threads->start([&, kept = std::move(owned)] { num_run += 1000; });  // there is no thread for it
  auto ended = std::async(std::launch::async, [&] { threads.reset(); });
  wait_until([&] { return is_owned.expired(); }, "the transfer that is dropped");
  EXPECT_EQ(num_run, 0u);
  gate->open();
  ended.get();
  EXPECT_EQ(num_run, TransferThreads::kMaxThreads) << "the others were waited for";
}

TEST(TransferThreads, LeaveBehindWhatHangsLongerThanTheirPatience) {
  auto gate = std::make_shared<Gate>();
  auto owned = std::make_shared<int>(1);
  std::weak_ptr<int> is_owned = owned;
  auto threads = std::make_unique<TransferThreads>(50ms);
  threads->start([gate, kept = std::move(owned)] { gate->pass(); });
  gate->wait_for(&Gate::is_inside);
  auto ended = std::async(std::launch::async, [&] { threads.reset(); });
  ASSERT_EQ(ended.wait_for(5s), std::future_status::ready) << "it waits for a transfer that hangs";
  gate->open();  // the straggler returns, and parks with what it owns
  gate->wait_for(&Gate::has_passed);
  std::this_thread::sleep_for(20ms);
  EXPECT_FALSE(is_owned.expired()) << "its owner is gone: nothing may be destroyed any more";
}

// While it lives no thread can be made: each would need a stack larger than the address space.
class NoThreads {
 public:
  NoThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t huge;
    pthread_attr_init(&huge);
    pthread_attr_setstacksize(&huge, size_t{1} << 47);
    EXPECT_EQ(pthread_setattr_default_np(&huge), 0);
    pthread_attr_destroy(&huge);
    EXPECT_THROW(std::thread([] {}).join(), std::system_error);
  }

  ~NoThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }

  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  pthread_attr_t before_{};
};

TEST(TransferThreads, RunOneAfterTheOtherWhereTheSystemGivesNoThreads) {
  std::atomic<int> num_run = 0;
  std::promise<void> all;
  TransferThreads threads;
  {
    NoThreads none;
    for (int i = 0; i < 10; ++i) {
      threads.start([&] {
        if (++num_run == 10) all.set_value();
      });
    }
    all.get_future().wait();
  }
  std::promise<void> later;
  threads.start([&] { later.set_value(); });
  later.get_future().wait();
  EXPECT_EQ(num_run, 10);
}

TEST(TransferThreads, WithoutAnyThreadSayWhy) {
  NoThreads none;
  EXPECT_THROW(TransferThreads(), std::exception);
}

TEST(TransferThreads, ThatAreDoneAreJoinedAtOnce) {
  auto owned = std::make_shared<int>(1);
  std::weak_ptr<int> is_owned = owned;
  {
    TransferThreads threads(1h);
    threads.start([kept = std::move(owned)] {});
    wait_until([&] { return is_owned.expired(); });
  }
}

}  // namespace
}  // namespace droidspeak
