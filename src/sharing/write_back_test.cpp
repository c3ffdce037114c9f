#include "sharing/write_back.h"

#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/test_wait.h"
#include "device/late_device.h"

namespace droidspeak {
namespace {

constexpr size_t kMostBytes = size_t{512} << 20;

TEST(WriteBackJobs, RunInTheirOrderAndAllOfThemBeforeTheEnd) {
  LateDevice device;
  device.become_late();
  std::vector<int> done;  // by the one thread that runs them
  {
    WriteBack write_back(device);
    EXPECT_FALSE(write_back.is_immediate());
    for (int i = 0; i < 20; ++i) write_back.submit([&done, i](CopyLane&) { done.push_back(i); });
  }
  ASSERT_EQ(done.size(), 20u);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(done[static_cast<size_t>(i)], i);
}

TEST(WriteBackJobs, AreDoneAtOnceOnACpu) {
  std::unique_ptr<Device> device = make_cpu_device();
  WriteBack write_back(*device);
  EXPECT_TRUE(write_back.is_immediate());
  bool is_done = false;
  write_back.submit([&](CopyLane&) { is_done = true; });
  EXPECT_TRUE(is_done);
}

TEST(WriteBackJobs, ThatFailLeaveTheOthersAlone) {
  LateDevice device;
  device.become_late();
  WriteBack write_back(device);
  std::atomic<bool> is_done = false;
  write_back.submit([](CopyLane&) { throw Failure(ErrorCode::kUnavailable, "lost"); });
  write_back.submit([&](CopyLane&) { is_done = true; });
  wait_until([&] { return is_done.load(); });
}

// What a job holds may go only when its copies have ended.
TEST(WriteBackJobs, EndWithTheirCopies) {
  LateDevice device;
  device.become_late();
  const std::vector<int> source{1, 2, 3};
  std::vector<int> copy(3);
  {
    WriteBack write_back(device);
    write_back.submit([&](CopyLane& lane) {
      lane.to_host(copy.data(), source.data(), sizeof(int) * source.size());
    });
  }
  EXPECT_EQ(copy, source);
}

class WriteBackBuffers : public testing::Test {
 protected:
  std::unique_ptr<Device> device_ = make_cpu_device();
  std::optional<WriteBack> write_back_{*device_};
};

TEST_F(WriteBackBuffers, ComeBackAndAreUsedAgain) {
  auto first = write_back_->take_buffer(1000);
  ASSERT_TRUE(first);
  EXPECT_GE(first->bytes(), 1000u);
  auto second = write_back_->take_buffer(1000);
  EXPECT_NE(second->data(), first->data()) << "both are in use";
  const void* place = first->data();
  first.reset();
  auto third = write_back_->take_buffer(900);
  EXPECT_EQ(third->data(), place);
  EXPECT_NE(write_back_->take_buffer(900)->data(), place);
}

TEST_F(WriteBackBuffers, AreLargeEnough) {
  write_back_->take_buffer(1 << 12).reset();
  auto larger = write_back_->take_buffer(1 << 20);
  EXPECT_GE(larger->bytes(), size_t{1} << 20);
}

TEST_F(WriteBackBuffers, TakeSoMuchTogetherAtMost) {
  auto half = write_back_->take_buffer(kMostBytes / 2);
  auto other = write_back_->take_buffer(kMostBytes / 2);
  ASSERT_TRUE(half && other);
  EXPECT_FALSE(write_back_->take_buffer(4096));
  other.reset();
  EXPECT_FALSE(write_back_->take_buffer(kMostBytes / 2 + 4096));
  EXPECT_TRUE(write_back_->take_buffer(4096)) << "what was too small has made room";
  half.reset();
  EXPECT_TRUE(write_back_->take_buffer(kMostBytes));
  EXPECT_FALSE(write_back_->take_buffer(kMostBytes + 4096));
}

TEST_F(WriteBackBuffers, OutliveTheirGiver) {
  auto buffer = write_back_->take_buffer(1000);
  write_back_.reset();
  static_cast<std::byte*>(buffer->data())[999] = std::byte{1};
}

}  // namespace
}  // namespace droidspeak
