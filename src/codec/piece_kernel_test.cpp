// Where the device has no room for a kernel there is none, and the store decodes.
#include "ops/piece_kernel.h"

#include <gtest/gtest.h>

#include "codec/device_decoder.h"
#include "kv/kv_cache.h"

namespace droidspeak {
namespace {

TEST(PieceKernel, IsThereForRowsThatTheDeviceHasSharedMemoryFor) {
  if (!cuda_is_available()) GTEST_SKIP() << "no such device";
  std::unique_ptr<Device> device = make_cuda_device();
  EXPECT_NE(make_piece_kernel(*device, 1024), nullptr);
  EXPECT_EQ(make_piece_kernel(*device, 1 << 16), nullptr) << "two rows of these take 256 KiB";
  const KvLayout wide{.num_layers = 1, .num_kv_heads = 512, .head_dim = 128};
  EXPECT_EQ(make_device_decoder(*device, wide), nullptr);
}

}  // namespace
}  // namespace droidspeak
