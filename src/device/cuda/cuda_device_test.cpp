#include <algorithm>
#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "device/device.h"

namespace droidspeak {
namespace {

class CudaDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!cuda_is_available()) GTEST_SKIP() << "no CUDA device";
    device_ = make_cuda_device();
  }

  static std::vector<int> numbers(size_t count, int first) {
    std::vector<int> values(count);
    std::iota(values.begin(), values.end(), first);
    return values;
  }

  std::unique_ptr<Device> device_;
};

TEST_F(CudaDeviceTest, GivesZeroedMemoryAndCopiesInOrder) {
  Buffer buffer = device_->allocate(1 << 20);
  std::vector<int> values(1 << 18, 1);
  device_->to_host(values.data(), buffer.data(), buffer.bytes());
  EXPECT_TRUE(std::ranges::all_of(values, [](int value) { return value == 0; }));
  std::vector<int> first = numbers(1 << 18, 5);
  std::vector<int> second = numbers(1 << 18, 9);
  device_->to_device(buffer.data(), first.data(), buffer.bytes());
  device_->to_device(buffer.data(), second.data(), buffer.bytes());
  device_->to_host(values.data(), buffer.data(), buffer.bytes());
  EXPECT_EQ(values, second);
}

TEST_F(CudaDeviceTest, PinnedHostMemoryIsZeroed) {
  Buffer buffer = device_->allocate_host(100000);
  const auto* bytes = static_cast<const std::byte*>(buffer.data());
  EXPECT_TRUE(std::all_of(bytes, bytes + 100000, [](std::byte b) { return b == std::byte{0}; }));
}

TEST_F(CudaDeviceTest, ComputeStreamWaitsForALanesEvent) {
  constexpr size_t kBytes = size_t{64} << 20;
  Buffer host = device_->allocate_host(kBytes);
  Buffer buffer = device_->allocate(kBytes);
  device_->synchronize();
  auto lane = device_->make_copy_lane();
  for (int round = 1; round <= 4; ++round) {
    std::fill_n(static_cast<int*>(host.data()), kBytes / sizeof(int), round);
    lane->to_device(buffer.data(), host.data(), kBytes);
    auto event = lane->record();
    device_->wait(*event);
    int last = 0;
    device_->to_host(&last, static_cast<std::byte*>(buffer.data()) + kBytes - sizeof last,
                     sizeof last);
    EXPECT_EQ(last, round);
  }
}

TEST_F(CudaDeviceTest, LaneWaitsForTheComputeStream) {
  constexpr size_t kBytes = size_t{64} << 20;
  Buffer host = device_->allocate_host(kBytes);
  Buffer back = device_->allocate_host(kBytes);
  Buffer buffer = device_->allocate(kBytes);
  auto lane = device_->make_copy_lane();
  for (int round = 1; round <= 4; ++round) {
    std::fill_n(static_cast<int*>(host.data()), kBytes / sizeof(int), round);
    device_->to_device(buffer.data(), host.data(), kBytes);
    lane->wait_for_compute();
    lane->to_host(back.data(), buffer.data(), kBytes);
    lane->synchronize();
    EXPECT_EQ(static_cast<int*>(back.data())[kBytes / sizeof(int) - 1], round);
  }
}

TEST_F(CudaDeviceTest, LaneMovesManySmallPiecesOfPinnedAndPlainMemory) {
  constexpr size_t kPieces = 1000;
  constexpr size_t kInts = 300;
  Buffer buffer = device_->allocate(kPieces * kInts * sizeof(int));
  Buffer pinned = device_->allocate_host(buffer.bytes());
  std::vector<int> plain = numbers(kPieces * kInts, 0);
  std::copy(plain.begin(), plain.end(), static_cast<int*>(pinned.data()));
  auto lane = device_->make_copy_lane();
  for (size_t i = 0; i < kPieces; ++i) {
    const int* source = i % 3 == 0 ? plain.data() : static_cast<const int*>(pinned.data());
    lane->to_device(static_cast<int*>(buffer.data()) + i * kInts, source + i * kInts,
                    kInts * sizeof(int));
  }
  lane->synchronize();
  std::vector<int> back(plain.size());
  std::fill_n(static_cast<int*>(pinned.data()), plain.size(), -1);
  for (size_t i = 0; i < kPieces; ++i) {
    int* target = i % 3 == 0 ? back.data() : static_cast<int*>(pinned.data());
    lane->to_host(target + i * kInts, static_cast<int*>(buffer.data()) + i * kInts,
                  kInts * sizeof(int));
  }
  lane->synchronize();
  for (size_t i = 0; i < plain.size(); ++i) {
    const int value = i / kInts % 3 == 0 ? back[i] : static_cast<int*>(pinned.data())[i];
    ASSERT_EQ(value, plain[i]);
  }
}

TEST_F(CudaDeviceTest, SaysWhatIsFreeWhenMemoryIsOut) {
  size_t before = device_->free_bytes();
  try {
    device_->allocate(size_t{1} << 50);
    FAIL() << "allocated a petabyte";
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code(), ErrorCode::kExhausted);
    EXPECT_THAT(failure.what(), testing::HasSubstr("free"));
  }
  Buffer small = device_->allocate(1 << 20);  // the failure leaves nothing behind
  device_->synchronize();
  EXPECT_LE(device_->free_bytes(), before);
}

}  // namespace
}  // namespace droidspeak
