#include "device/cpu_topology.h"

#include <fstream>

#include <gtest/gtest.h>
#include <sys/mman.h>

namespace droidspeak {
namespace {

class CpuTopologyTest : public testing::Test {
 protected:
  ~CpuTopologyTest() override { std::filesystem::remove_all(system_); }

  void write(const std::filesystem::path& path, const std::string& text) {
    std::filesystem::create_directories((system_ / path).parent_path());
    std::ofstream(system_ / path) << text << "\n";
  }

  const std::filesystem::path system_ =
      std::filesystem::path(testing::TempDir()) / ("system_" + std::to_string(getpid()));
};

TEST(NumbersOf, ReadsWhatLinuxWrites) {
  EXPECT_EQ(numbers_of("0"), std::vector<int>{0});
  EXPECT_EQ(numbers_of("0-2,8,10-11"), (std::vector<int>{0, 1, 2, 8, 10, 11}));
  EXPECT_EQ(numbers_of(""), std::vector<int>{});
  EXPECT_EQ(numbers_of("3,x"), std::vector<int>{3});
  EXPECT_EQ(numbers_of("0-999999999"), std::vector<int>{});
}

TEST_F(CpuTopologyTest, ThreadsOfOneCoreCountOnce) {
  for (int processor = 0; processor < 8; ++processor) {
    const int core = processor % 4;
    write("cpu/cpu" + std::to_string(processor) + "/topology/thread_siblings_list",
          std::to_string(core) + "," + std::to_string(core + 4));
  }
  EXPECT_EQ(physical_cores(std::vector{0, 1, 2, 3, 4, 5, 6, 7}, system_), 4);
  EXPECT_EQ(physical_cores(std::vector{0, 4}, system_), 1);
  EXPECT_EQ(physical_cores(std::vector{1, 2, 6}, system_), 2);
}

TEST_F(CpuTopologyTest, ProcessorsOfWhichNothingIsKnownAreCores) {
  EXPECT_EQ(physical_cores(std::vector{0, 1, 2}, system_), 3);
}

TEST_F(CpuTopologyTest, MemoryIsInterleavedOverSeveralNodesOnly) {
  constexpr size_t kBytes = 1 << 16;
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  EXPECT_FALSE(interleave_memory(memory, kBytes, system_));
  write("node/has_memory", "0");
  EXPECT_FALSE(interleave_memory(memory, kBytes, system_));
  write("node/has_memory", "40-41");  // not this machine's
  EXPECT_FALSE(interleave_memory(memory, kBytes, system_));
  *static_cast<char*>(memory) = 1;
  munmap(memory, kBytes);
}

}  // namespace
}  // namespace droidspeak
