#include "sharing/transfer_threads.h"

#include <atomic>
#include <future>

#include <gtest/gtest.h>

#include "base/mutex.h"

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
  while (!is_owned.expired()) std::this_thread::yield();  // it is dropped
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

TEST(TransferThreads, ThatAreDoneAreJoinedAtOnce) {
  auto owned = std::make_shared<int>(1);
  std::weak_ptr<int> is_owned = owned;
  {
    TransferThreads threads(1h);
    threads.start([kept = std::move(owned)] {});
    while (!is_owned.expired()) std::this_thread::yield();
  }
}

}  // namespace
}  // namespace droidspeak
