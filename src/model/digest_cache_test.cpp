#include "model/digest_cache.h"

#include <fstream>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/test_wait.h"

namespace droidspeak {
namespace {

using namespace std::chrono_literals;

// One file whose "digest" is that of its bytes.
class RememberedDigest : public testing::Test {
 protected:
  RememberedDigest() { write("first"); }

  void write(std::string_view content) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << content;
  }

  struct stat status() const {
    struct stat found {};

    EXPECT_EQ(::stat(path_.c_str(), &found), 0);
    return found;
  }

  // Writes until the file system's clock, which is coarse, has moved.
  void rewrite(std::string_view content) const {
    const timespec before = status().st_ctim;
    wait_until(
        [&] {
          write(content);
          const timespec now = status().st_ctim;
          return now.tv_sec != before.tv_sec || now.tv_nsec != before.tv_nsec;
        },
        "another time of change");
  }

  // As seen so long after now.
  Digest digest(std::chrono::seconds later = 1h) {
    InputFile file(path_);
    return cached_digest({&file},
                         [&] {
                           ++times_computed_;
                           const std::string content = read_file(path_);
                           return sha256(std::as_bytes(std::span(content)));
                         },
                         {std::chrono::system_clock::now() + later, trusts_});
  }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_.path() / "model.safetensors";
  int times_computed_ = 0;
  // Wherever the folder for temporary files lies.
  bool (*trusts_)(const InputFile&) = [](const InputFile&) { return true; };
};

TEST_F(RememberedDigest, IsComputedOnce) {
  Digest first = digest();
  EXPECT_EQ(digest(), first);
  EXPECT_EQ(times_computed_, 1);
}

TEST_F(RememberedDigest, IsForgottenWhenContentOfEqualSizeAndTimeTakesItsPlace) {
  Digest first = digest();
  const struct stat before = status();
  rewrite("other");
  const timespec times[] = {before.st_atim, before.st_mtim};
  ASSERT_EQ(::utimensat(AT_FDCWD, path_.c_str(), times, 0), 0);
  const struct stat after = status();
  ASSERT_EQ(before.st_mtim.tv_nsec, after.st_mtim.tv_nsec);
  ASSERT_EQ(before.st_size, after.st_size);
  EXPECT_NE(digest(), first);
  EXPECT_EQ(times_computed_, 2);
}

TEST_F(RememberedDigest, IsForgottenWhenAnotherFileTakesItsName) {
  Digest first = digest();
  std::filesystem::path other = folder_.path() / "other";
  std::ofstream(other) << "other";
  std::filesystem::last_write_time(other, std::filesystem::last_write_time(path_));
  std::filesystem::rename(other, path_);
  EXPECT_NE(digest(), first);
}

TEST_F(RememberedDigest, IsNotKeptOfAFileThatHasJustBeenWritten) {
  digest(0s);
  EXPECT_FALSE(std::filesystem::exists(path_.string() + ".digest"));
  digest(0s);
  EXPECT_EQ(times_computed_, 2);
}

// Times of change stay where they are while a page that is mapped is written again. (Where the
// temporary folder is not trusted nothing is remembered, and there is nothing to forget.)
TEST_F(RememberedDigest, IsForgottenWhenAMappedPageIsWrittenTwice) {
  trusts_ = tells_every_write;
  const FileDescriptor opened(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
  void* mapped = ::mmap(nullptr, 5, PROT_READ | PROT_WRITE, MAP_SHARED, opened.get(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* text = static_cast<volatile char*>(mapped);
  text[0] = 'F';
  const Digest first = digest();
  const struct stat before = status();
  wait_until(
      [&] {
        const std::filesystem::path other = folder_.path() / "other";
        std::ofstream(other) << "later";
        struct stat now {};

        EXPECT_EQ(::stat(other.c_str(), &now), 0);
        return now.st_ctim.tv_sec > before.st_ctim.tv_sec ||
               now.st_ctim.tv_nsec > before.st_ctim.tv_nsec;
      },
      "another time of change");
  text[0] = 'W';
  EXPECT_NE(digest(), first);
  ::munmap(mapped, 5);
}

// There a write through a mapping changes no time at all.
TEST(DigestMemory, HasNoMemoryFileSystems) {
  const TemporaryFolder folder;
  FileDescriptor in_memory(::memfd_create("weights", MFD_CLOEXEC));
  ASSERT_EQ(::write(in_memory.get(), "first", 5), 5);
  const InputFile file(std::move(in_memory), folder.path() / "model.safetensors");
  EXPECT_FALSE(tells_every_write(file));
  auto digest_at = [&](uint8_t value) {
    return cached_digest({&file}, [&] { return sha256(std::as_bytes(std::span(&value, 1))); },
                         {.now = std::chrono::system_clock::now() + 1h});
  };
  EXPECT_NE(digest_at(1), digest_at(2)) << "nothing is remembered";
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST_F(RememberedDigest, IsComputedAgainWhenTheMemoIsDamaged) {
  Digest first = digest();
  std::ofstream(path_.string() + ".digest") << "droidspeak digest 3\nnonsense";
  EXPECT_EQ(digest(), first);
  EXPECT_EQ(times_computed_, 2);
}

TEST_F(RememberedDigest, OfAFileThatChangesMeanwhileIsRefused) {
  InputFile file(path_);
  auto compute = [&] {
    rewrite("other");
    return Digest();
  };
  try {
    cached_digest({&file}, compute, {std::chrono::system_clock::now() + 1h, trusts_});
    FAIL() << "a digest of half a file";
  } catch (const Failure& failure) {
    EXPECT_THAT(failure.what(), testing::HasSubstr("has been changed while it was read"));
  }
  EXPECT_FALSE(std::filesystem::exists(path_.string() + ".digest"));
}

TEST(DigestOfTensors, DoesNotDependOnWhereTheBytesLie) {
  std::vector<float> values(1 << 19, 1.5f);  // two pieces
  values.back() = 2;
  auto bytes = std::as_bytes(std::span(values));
  TemporaryFolder folder;
  std::ofstream(folder.path() / "file", std::ios::binary)
      .write("12345", 5)
      .write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
  auto file = std::make_shared<InputFile>(folder.path() / "file");
  FileTensor memory{"a", DType::kF32, {1 << 19}, bytes};
  FileTensor stored{"a", DType::kF32, {1 << 19}, {file, 5, bytes.size()}};
  EXPECT_EQ(digest_of_tensors({&memory}), digest_of_tensors({&stored}));
  // What was computed when files were mapped: plan books hold such digests.
  Sha256 hash;
  int64_t shape = 1 << 19;
  hash.add_field('n', "a");
  hash.add_field('t', "f32");
  hash.add_field('s', std::as_bytes(std::span(&shape, 1)));
  hash.add_field('b', bytes);
  EXPECT_EQ(digest_of_tensors({&stored}), hash.finish());
}

// Clocks of file systems are coarse: within two seconds another change may have the same time.
TEST_F(RememberedDigest, IsKeptTwoSecondsAfterTheLastChangeOfAllFiles) {
  const std::filesystem::path other = folder_.path() / "other";
  auto changed = [](const std::filesystem::path& path) {
    return std::chrono::system_clock::time_point(
        std::chrono::nanoseconds(InputFile(path).stamp().changed_ns));
  };
  wait_until(
      [&] {
        std::ofstream(other) << "later";
        return changed(other) > changed(path_);
      },
      "another time of change");
  auto is_kept = [&](std::chrono::system_clock::time_point now) {
    const InputFile first(path_);
    const InputFile second(other);
    cached_digest({&first, &second}, [] { return Digest(); }, {now, trusts_});
    return std::filesystem::remove(path_.string() + ".digest");
  };
  EXPECT_FALSE(is_kept(changed(path_) + 2s));
  EXPECT_FALSE(is_kept(changed(other) + 2s)) << "the first alone has settled";
  EXPECT_TRUE(is_kept(changed(other) + 2s + 1ns));
}

}  // namespace
}  // namespace droidspeak
