#include "sharing/context_writer.h"

#include <future>
#include <optional>

#include <gtest/gtest.h>

#include "base/file.h"
#include "device/late_device.h"
#include "store/test_entries.h"
#include "tensor/tensor.h"

namespace droidspeak {
namespace {

using namespace std::chrono_literals;

constexpr int32_t kNumBlocks = 5;
constexpr int32_t kNumLayers = 3;
constexpr int32_t kColumns = 24;

// The same computed context on a device where copies are immediate, or late.
template <class Kind>
class ContextWriting : public testing::Test {
 protected:
  ContextWriting() : kv_(device(), layout_, 16 * layout_.block_bytes()) {
    if constexpr (requires { device_.become_late(); }) device_.become_late();
    StoreOptions options;
    options.host_bytes = uint64_t{8} << 20;
    store_ = std::make_unique<CacheStore>(options, clock_);
    auto lane = device().make_copy_lane();
    for (int32_t i = 0; i < kNumBlocks; ++i) {
      keys_.push_back(test_key(static_cast<uint64_t>(i)));
      blocks_.push_back(2 * i + 1);
      for (int32_t layer = 0; layer < kNumLayers; ++layer)
        kv_.load(*lane, layer, blocks_.back(), contents_.emplace_back(kv_bytes(i, layer)));
    }
    lane->synchronize();
  }

  Device& device() { return device_; }

  ContextWriter::Parts parts() { return {*ops_, kv_, *store_, write_back_, Digest{}}; }

  std::vector<std::byte> kv_bytes(int32_t block, int32_t layer) const {
    return test_bytes(static_cast<uint64_t>(100 * block + layer), layout_.layer_bytes());
  }

  // E of a layer at a position.
  static float input_value(int32_t layer, int32_t position) {
    return static_cast<float>(1000 * layer + position);
  }

  // The rows are overwritten at once, as by the next layer.
  void capture(ContextWriter& writer, int32_t layer, int32_t begin, int32_t end) {
    auto count = static_cast<size_t>((end - begin) * kColumns);
    std::vector<float> rows(count);
    for (size_t i = 0; i < count; ++i)
      rows[i] = input_value(layer, begin + static_cast<int32_t>(i) / kColumns);
    writer.capture(layer, begin, {rows.data(), DType::kF32, end - begin, kColumns, kColumns});
    std::ranges::fill(rows, -1.0f);
  }

  bool holds_kv(int32_t block, int32_t layer) {
    auto entry = store_->fetch(keys_[static_cast<size_t>(block)], kv(layer));
    return entry && std::ranges::equal(entry->bytes(), kv_bytes(block, layer));
  }

  bool holds_input(int32_t block, int32_t layer) {
    auto entry = store_->fetch(keys_[static_cast<size_t>(block)], input(layer));
    if (!entry || entry->bytes().size() != kBlockTokens * kColumns * sizeof(float)) return false;
    const auto* values = reinterpret_cast<const float*>(entry->bytes().data());
    for (int32_t i = 0; i < kBlockTokens * kColumns; ++i) {
      if (values[i] != input_value(layer, block * kBlockTokens + i / kColumns)) return false;
    }
    return true;
  }

  const KvLayout layout_{kNumLayers, 2, 16, DType::kF32};
  Kind device_;
  FakeClock clock_;
  std::unique_ptr<Device> cpu_ = make_cpu_device();
  std::unique_ptr<Ops> ops_ = make_cpu_ops(*cpu_, 1);
  KvCache kv_;
  std::unique_ptr<CacheStore> store_;
  WriteBack write_back_{device()};
  std::vector<Digest> keys_;
  std::vector<int32_t> blocks_;
  std::vector<std::vector<std::byte>> contents_;
};

// The CPU device as a member.
class ImmediateDevice {
 public:
  operator Device&() { return *device_; }

 private:
  std::unique_ptr<Device> device_ = make_cpu_device();
};

using Kinds = testing::Types<ImmediateDevice, LateDevice>;
TYPED_TEST_SUITE(ContextWriting, Kinds);

TYPED_TEST(ContextWriting, StoresBlocksWithTheirCapturedRows) {
  ContextWriter writer(this->parts(), {2, 1, 2});
  EXPECT_EQ(writer.captured_layers(), (std::vector<int32_t>{1, 2}));
  // Chunks end inside of blocks.
  const int32_t ends[] = {100, 130, 4 * kBlockTokens + 7};
  int32_t begin = 0;
  int32_t first_block = 0;
  for (int32_t end : ends) {
    for (int32_t layer : writer.captured_layers()) this->capture(writer, layer, begin, end);
    writer.store(this->keys_, this->blocks_, first_block, end);
    begin = end;
    first_block = end / kBlockTokens;
  }
  writer.wait();
  EXPECT_FALSE(writer.has_copies());
  for (int32_t block = 0; block < 4; ++block) {
    for (int32_t layer = 0; layer < kNumLayers; ++layer)
      EXPECT_TRUE(this->holds_kv(block, layer)) << block << ' ' << layer;
    for (int32_t layer : {1, 2}) EXPECT_TRUE(this->holds_input(block, layer)) << block;
  }
  EXPECT_FALSE(this->holds_kv(4, 0));
  this->store_->check_integrity();
}

TYPED_TEST(ContextWriting, KeepsOnlyTheAskedLayersOfTheFirstBlocks) {
  ContextWriter writer(this->parts(), {});
  writer.keep_layers(2, {1});
  writer.store(this->keys_, this->blocks_, 0, 3 * kBlockTokens);
  writer.wait();
  for (int32_t block = 0; block < 3; ++block) {
    for (int32_t layer = 0; layer < kNumLayers; ++layer)
      EXPECT_EQ(this->holds_kv(block, layer), block == 2 || layer == 1) << block << ' ' << layer;
  }
}

TYPED_TEST(ContextWriting, RowsThatAreNotCompleteAreLeftOut) {
  ContextWriter writer(this->parts(), {1});
  this->capture(writer, 1, 10, 2 * kBlockTokens);
  writer.store(this->keys_, this->blocks_, 0, 2 * kBlockTokens);
  writer.wait();
  EXPECT_FALSE(this->holds_input(0, 1));
  EXPECT_TRUE(this->holds_input(1, 1));
  EXPECT_TRUE(this->holds_kv(0, 1));
}

using LateWriting = ContextWriting<LateDevice>;

TEST_F(LateWriting, PublishesNothingBeforeItIsCopied) {
  device_.close();
  ContextWriter writer(parts(), {1});
  capture(writer, 1, 0, 2 * kBlockTokens);
  writer.store(keys_, blocks_, 0, 2 * kBlockTokens);
  EXPECT_TRUE(writer.has_copies());
  std::this_thread::sleep_for(20ms);
  for (int32_t layer = 0; layer < kNumLayers; ++layer) {
    EntryId id = kv(layer);
    EXPECT_EQ(store_->longest_prefix(keys_, std::span(&id, 1)), 0u);
  }
  EXPECT_TRUE(writer.has_copies());
  device_.open();
  writer.wait();
  EXPECT_TRUE(holds_kv(1, 0));
  EXPECT_TRUE(holds_input(1, 1));
}

TEST_F(LateWriting, AWriterEndsAfterItsCopies) {
  device_.close();
  auto writer = std::make_unique<ContextWriter>(parts(), std::vector<int32_t>{});
  writer->store(keys_, blocks_, 0, kBlockTokens);
  auto end = std::async(std::launch::async, [&] { writer.reset(); });
  EXPECT_EQ(end.wait_for(20ms), std::future_status::timeout);
  device_.open();
  end.get();
  EXPECT_TRUE(holds_kv(0, 2));
}

TEST_F(LateWriting, WhatIsErasedMeanwhileStaysErased) {
  device_.close();
  ContextWriter writer(parts(), {});
  writer.store(keys_, blocks_, 0, kBlockTokens);
  std::this_thread::sleep_for(20ms);
  store_->erase(keys_);
  device_.open();
  writer.wait();
  EXPECT_FALSE(holds_kv(0, 0));
  store_->check_integrity();
}

// The second job has not asked for room yet when the erasure comes.
TEST_F(LateWriting, WhatIsErasedBeforeItIsCopiedStaysErased) {
  device_.close();
  ContextWriter writer(parts(), {});
  writer.store(keys_, blocks_, 0, kBlockTokens);
  writer.store(keys_, blocks_, 1, 2 * kBlockTokens);
  store_->erase_owned_by(Digest{});
  device_.open();
  writer.wait();
  EXPECT_FALSE(holds_kv(0, 0));
  EXPECT_FALSE(holds_kv(1, 0));
  writer.store(keys_, blocks_, 0, kBlockTokens);
  writer.wait();
  EXPECT_TRUE(holds_kv(0, 0)) << "computed after it";
}

TEST_F(LateWriting, ReadsRowsBackWhenThereIsNoMemoryToSetThemAside) {
  std::vector<std::shared_ptr<Buffer>> taken;
  while (auto buffer = write_back_.take_buffer(size_t{64} << 20)) taken.push_back(buffer);
  ASSERT_EQ(taken.size(), 8u) << "512 MiB";
  ASSERT_EQ(write_back_.take_buffer(size_t{64} << 20), nullptr);
  ContextWriter writer(parts(), {1});
  capture(writer, 1, 0, kBlockTokens);
  writer.store(keys_, blocks_, 0, kBlockTokens);
  writer.wait();
  EXPECT_TRUE(holds_input(0, 1));
}

// Copies go into memory of the store, which must not be given back before they are done.
TEST_F(LateWriting, WaitsForItsCopiesWhenOneFails) {
  device_.fail_after(2 * kNumLayers + 1);
  {
    ContextWriter writer(parts(), {});
    writer.store(keys_, blocks_, 0, 4 * kBlockTokens);
    writer.wait();
  }
  EXPECT_GE(device_.num_waits(), 1);
  EXPECT_EQ(device_.num_left_copies(), 0u);
  for (int32_t block = 0; block < 4; ++block) EXPECT_FALSE(holds_kv(block, 0)) << block;
  store_->check_integrity();
  ContextWriter again(parts(), {});
  again.store(keys_, blocks_, 0, 4 * kBlockTokens);
  again.wait();
  EXPECT_TRUE(holds_kv(3, 2));
}

// 20 blocks of 4 MiB: 64 MiB of them are under way at a time.
TEST(ContextWriter, PutsLargeContextsInPieces) {
  const KvLayout layout{1, 64, 128, DType::kF32};
  ASSERT_EQ(layout.layer_bytes(), size_t{4} << 20);
  LateDevice device;
  device.become_late();
  KvCache kv_memory(device, layout, 2 * layout.block_bytes());
  FakeClock clock;
  StoreOptions options;
  options.host_bytes = uint64_t{96} << 20;
  CacheStore store(options, clock);
  auto cpu = make_cpu_device();
  auto ops = make_cpu_ops(*cpu, 1);
  WriteBack write_back(device);
  std::vector<Digest> keys;
  for (uint64_t i = 0; i < 20; ++i) keys.push_back(test_key(i));
  const std::vector<int32_t> blocks(keys.size(), 1);  // the same content for all of them
  const int waits_before = device.num_waits();
  ContextWriter writer({*ops, kv_memory, store, write_back, Digest{}}, {});
  writer.store(keys, blocks, 0, 20 * kBlockTokens);
  writer.wait();
  EXPECT_EQ(device.num_waits() - waits_before, 2);
  EntryId id = kv(0);
  EXPECT_EQ(store.longest_prefix(keys, std::span(&id, 1)), keys.size());
}

TEST_F(LateWriting, BuffersAreUsedAgain) {
  void* first = write_back_.take_buffer(4096)->data();
  EXPECT_EQ(write_back_.take_buffer(4096)->data(), first);
  EXPECT_EQ(write_back_.take_buffer(1000)->data(), first) << "large enough";
  std::shared_ptr<Buffer> again = write_back_.take_buffer(4096);
  std::shared_ptr<Buffer> other = write_back_.take_buffer(4096);
  EXPECT_EQ(again->data(), first);
  EXPECT_NE(other->data(), first) << "it is in use";
  EXPECT_GE(write_back_.take_buffer(8192)->bytes(), 8192u) << "these are too small";
}

TEST_F(LateWriting, BuffersThatCameBackDoNotCount) {
  for (int i = 0; i < 20; ++i) EXPECT_NE(write_back_.take_buffer(size_t{64} << 20), nullptr);
  EXPECT_NE(write_back_.take_buffer(size_t{512} << 20), nullptr) << "none is in use";
  EXPECT_EQ(write_back_.take_buffer((size_t{512} << 20) + 1), nullptr);
}

// The leading blocks stay when what follows them is erased with its owner, and only they have E.
TYPED_TEST(ContextWriting, LeadingBlocksAreOfAnotherOwner) {
  const Digest leading = test_key(77);
  const Digest own = test_key(78);
  ContextWriter::Parts parts = this->parts();
  parts.owner = own;
  ContextWriter writer(parts, {1});
  writer.lead_with(2, leading);
  this->capture(writer, 1, 0, 100);
  this->capture(writer, 1, 100, 3 * kBlockTokens);
  this->capture(writer, 1, 3 * kBlockTokens, 4 * kBlockTokens);
  writer.store(this->keys_, this->blocks_, 0, 4 * kBlockTokens);
  writer.wait();
  for (int32_t block = 0; block < 4; ++block) {
    EXPECT_TRUE(this->holds_kv(block, 0)) << block;
    EXPECT_EQ(this->holds_input(block, 1), block < 2) << block;
  }
  this->store_->erase_owned_by(own);
  for (int32_t block = 0; block < 4; ++block)
    EXPECT_EQ(this->holds_kv(block, 0), block < 2) << block;
  this->store_->erase_owned_by(leading);
  EXPECT_FALSE(this->holds_kv(0, 0));
}

}  // namespace
}  // namespace droidspeak
