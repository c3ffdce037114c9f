// Damaged files: every truncation and every changed byte of the small goldens, and random damage in
// several places. A reader may accept what is left or throw Failure; nothing else.
#include <cstring>
#include <fstream>
#include <random>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/test_seed.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"

namespace droidspeak {
namespace {

std::filesystem::path golden_path(const std::string& name) {
  return std::filesystem::path(DROIDSPEAK_SOURCE_DIR) / "tests/data/formats" / name;
}

// Opens damaged forms of one file and reads all of what it finds.
template <class File>
class Mutant {
 public:
  explicit Mutant(std::string content) : original_(std::move(content)) {}

  ~Mutant() { ::close(fd_); }

  Mutant(const Mutant&) = delete;
  Mutant& operator=(const Mutant&) = delete;

  // False when it fails, as it should, with a line that names the file.
  bool opens(const std::string& content) {
    EXPECT_EQ(::ftruncate(fd_, 0), 0);
    EXPECT_EQ(::pwrite(fd_, content.data(), content.size(), 0),
              static_cast<ssize_t>(content.size()));
    try {
      File file(path_);
      for (const FileTensor& tensor : file.tensors()) read(tensor);
      return true;
    } catch (const Failure& failure) {
      EXPECT_EQ(std::string_view(failure.what()).find_first_of("\n\r"), std::string_view::npos);
      EXPECT_NE(std::string_view(failure.what()).find(path_.string()), std::string_view::npos);
      return false;
    }
  }

  const std::string& original() const { return original_; }

 private:
  static void read(const FileTensor& tensor) {
    size_t elements = 1;
    for (int64_t size : tensor.shape) elements *= static_cast<size_t>(size);
    ASSERT_LE(elements, size_t{1} << 20) << "the file is small";
    EXPECT_EQ(tensor.read_floats().size(), elements);
  }

  std::string original_;
  int fd_ = ::memfd_create("mutant", MFD_CLOEXEC);  // in memory: there are many
  std::filesystem::path path_ = "/proc/self/fd/" + std::to_string(fd_);
};

template <class File>
void expect_every_truncation_fails(Mutant<File>& mutant, size_t last_byte) {
  for (size_t size = 1; size <= last_byte; ++size) {
    ASSERT_FALSE(mutant.opens(mutant.original().substr(0, size))) << "cut to " << size << " bytes";
  }
}

template <class File>
void change_every_byte(Mutant<File>& mutant) {
  for (size_t position = 0; position < mutant.original().size(); ++position) {
    for (unsigned pattern : {0x01u, 0x80u, 0xffu}) {
      std::string content = mutant.original();
      content[position] =
          static_cast<char>(static_cast<unsigned char>(content[position]) ^ pattern);
      mutant.opens(content);
    }
  }
}

template <class File>
void damage_at_random(Mutant<File>& mutant, int rounds) {
  uint32_t seed = test_seed();
  SCOPED_TRACE("DROIDSPEAK_TEST_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  constexpr uint64_t kNasty[] = {0,          1,          0x7fffffff, 0xffffffff,
                                 1ull << 32, 1ull << 62, 1ull << 63, ~0ull};
  for (int round = 0; round < rounds; ++round) {
    std::string content = mutant.original();
    for (uint32_t i = random() % 4 + 1; i > 0; --i) {
      size_t position = random() % (content.size() - 8);
      uint64_t value = kNasty[random() % std::size(kNasty)];
      std::memcpy(content.data() + position, &value, random() % 8 + 1);
    }
    mutant.opens(content);
  }
}

class GgufDamage : public testing::TestWithParam<const char*> {};

TEST_P(GgufDamage, NeverDoesMoreThanFail) {
  Mutant<GgufFile> mutant(read_file(golden_path(GetParam())));
  ASSERT_TRUE(mutant.opens(mutant.original()));
  constexpr size_t kMaxPadding = 64;  // behind the last tensor, may be missing
  expect_every_truncation_fails(mutant, mutant.original().size() - kMaxPadding);
  change_every_byte(mutant);
  damage_at_random(mutant, 3000);
}

INSTANTIATE_TEST_SUITE_P(Goldens,
                         GgufDamage,
                         testing::Values("metadata.gguf", "q4_1.gguf", "version_2.gguf"),
                         [](const auto& test) {
                           std::string name = test.param;
                           return name.substr(0, name.find('.'));
                         });

TEST(SafetensorsDamage, NeverDoesMoreThanFail) {
  Mutant<SafetensorsFile> mutant(read_file(golden_path("model.safetensors")));
  ASSERT_TRUE(mutant.opens(mutant.original()));
  expect_every_truncation_fails(mutant, mutant.original().size() - 1);
  change_every_byte(mutant);
  damage_at_random(mutant, 3000);
}

TEST(SafetensorsDamage, OfAnIndexNeverDoesMoreThanFail) {
  TemporaryFolder folder;
  std::filesystem::copy(golden_path("sharded"), folder.path());
  std::filesystem::path index = folder.path() / "model.safetensors.index.json";
  std::string original = read_file(index);
  for (size_t position = 0; position < original.size(); ++position) {
    for (char byte : {'"', '}', '/', '.', '0', '\\', '\0', '\xff'}) {
      std::string content = original;
      content[position] = byte;
      std::ofstream(index, std::ios::binary) << content;
      try {
        SafetensorsFolder opened(folder.path());
      } catch (const Failure& failure) {
        EXPECT_EQ(std::string_view(failure.what()).find('\n'), std::string_view::npos);
      }
    }
  }
}

}  // namespace
}  // namespace droidspeak
