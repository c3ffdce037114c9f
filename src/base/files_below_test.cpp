#include "base/files_below.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/file.h"

namespace droidspeak {
namespace {

namespace fs = std::filesystem;

// root/inside/file and secret/file, beside each other.
class FilesBelowAFolder : public testing::Test {
 protected:
  FilesBelowAFolder() {
    fs::create_directories(root() / "inside");
    fs::create_directories(secret());
    write_file_atomically(root() / "inside/file", "ours");
    write_file_atomically(secret() / "file", "secret");
  }

  fs::path root() const { return folder_.path() / "root"; }

  fs::path secret() const { return folder_.path() / "secret"; }

  // What is read; "outside" where nothing is opened.
  std::string read(const fs::path& path, std::function<void()> before_open = {}) const {
    std::optional<FileDescriptor> opened =
        FilesBelow(root(), std::move(before_open)).open(path, path);
    return opened ? InputFile(std::move(*opened), path).read_text(100) : "outside";
  }

  void swap_for_link(const fs::path& path, const fs::path& target) const {
    fs::rename(path, folder_.path() / "away");
    fs::create_symlink(target, path);
  }

  TemporaryFolder folder_;
};

TEST_F(FilesBelowAFolder, AreOpenedByPathsOfAnyForm) {
  fs::create_symlink("inside/file", root() / "link");
  fs::create_symlink(root() / "inside", root() / "whole");
  fs::create_directory_symlink(root(), folder_.path() / "alias");
  for (const fs::path& path :
       {fs::path("inside/file"), fs::path("./inside/../inside//file"), root() / "inside/file",
        folder_.path() / "alias/inside/file", fs::path("link"), fs::path("whole/file")}) {
    EXPECT_EQ(read(path), "ours") << path;
  }
  EXPECT_TRUE(FilesBelow(root()).open(".", "."));
  EXPECT_EQ(FilesBelow(folder_.path() / "alias").resolve("link"),
            fs::canonical(root()) / "inside/file");
}

TEST_F(FilesBelowAFolder, LeaveEverythingElseAlone) {
  fs::create_symlink(secret() / "file", root() / "link");
  fs::create_symlink(secret(), root() / "folder");
  fs::create_symlink("../secret/nothing", root() / "nowhere");
  fs::create_symlink("loop", root() / "loop");
  fs::create_directories(folder_.path() / "rooted");
  write_file_atomically(folder_.path() / "rooted/file", "secret");
  for (const fs::path& path :
       {fs::path("link"), fs::path("folder/file"), fs::path("nowhere"), fs::path("loop"),
        fs::path("../secret/file"), fs::path("inside/../../secret/file"), secret() / "file",
        fs::path("../rooted/file"), fs::path("../rooted/nothing"), fs::path("inside/file/file"),
        fs::path("/"), fs::path("..")}) {
    EXPECT_EQ(read(path), "outside") << path;
  }
}

TEST_F(FilesBelowAFolder, NameWhatIsMissingAsTheyWereTold) {
  try {
    FilesBelow(root()).open("inside/nothing", "as asked");
    FAIL();
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code(), ErrorCode::kNotFound);
    EXPECT_STREQ(failure.what(), "as asked: cannot open: No such file or directory");
  }
  EXPECT_THROW(FilesBelow(folder_.path() / "nothing"), Failure);
  EXPECT_THROW(FilesBelow(root() / "inside/file"), Failure);
}

TEST_F(FilesBelowAFolder, AreNotOpenedWhenTheyBecomeLinks) {
  EXPECT_EQ(read("inside/file", [&] { swap_for_link(root() / "inside/file", secret() / "file"); }),
            "outside");
}

TEST_F(FilesBelowAFolder, AreNotOpenedWhenTheirFolderBecomesALink) {
  EXPECT_EQ(read("inside/file", [&] { swap_for_link(root() / "inside", secret()); }), "outside");
}

TEST_F(FilesBelowAFolder, AreThoseOfTheFolderThatWasThere) {
  EXPECT_EQ(read("inside/file",
                 [&] {
                   fs::create_directories(secret() / "inside");
                   write_file_atomically(secret() / "inside/file", "secret");
                   swap_for_link(root(), secret());
                 }),
            "ours");
}

// Opened as "inside"; what goes by that path is another version since.
class FilesOfAnOpenFolder : public FilesBelowAFolder {
 protected:
  FilesOfAnOpenFolder() {
    for (const char* folder : {"inside", "next"}) {
      fs::create_directories(root() / folder / "parts");
      write_file_atomically(root() / folder / "parts/file", folder);
    }
    folder_of_files_ = FilesBelow(root()).open("inside", "inside");
  }

  void replace_by_next() const {
    fs::rename(root() / "inside", root() / "before");
    fs::rename(root() / "next", root() / "inside");
  }

  std::string read_in_it(const std::string& file) const {
    std::optional<FileDescriptor> opened =
        FilesBelow(root()).open_in(*folder_of_files_, file, file);
    return opened ? InputFile(std::move(*opened), file).read_text(100) : "outside";
  }

  std::optional<FileDescriptor> folder_of_files_;
};

TEST_F(FilesOfAnOpenFolder, AreThoseThatItsLinksLeadTo) {
  write_file_atomically(root() / "beside", "beside");
  const fs::path inside = root() / "inside";
  fs::create_symlink("parts/file", inside / "link");
  fs::create_symlink("./parts/../link", inside / "roundabout");
  fs::create_symlink("parts", inside / "whole");
  fs::create_symlink("whole/file", inside / "through");
  fs::create_symlink("../beside", inside / "up");
  fs::create_symlink(root() / "inside/parts", inside / "absolute");
  fs::create_symlink("absolute/file", inside / "by_path");
  EXPECT_EQ(read_in_it("by_path"), "inside");
  replace_by_next();
  for (const char* name : {"link", "roundabout", "through"}) EXPECT_EQ(read_in_it(name), "inside");
  EXPECT_EQ(read_in_it("up"), "beside");
  EXPECT_EQ(read_in_it("by_path"), "next") << "that path leads to the next version now";
}

TEST_F(FilesOfAnOpenFolder, AreNeverOutside) {
  const fs::path inside = root() / "inside";
  fs::create_symlink("../../secret/file", inside / "link");
  fs::create_symlink("../../secret/nothing", inside / "nothing");
  fs::create_symlink("../..", inside / "folder");
  fs::create_symlink("loop", inside / "loop");
  fs::create_symlink("parts/file/file", inside / "beyond");
  fs::create_symlink("..", inside / "up");
  fs::create_symlink("up/../secret/file", inside / "two_steps");
  for (const char* name : {"link", "nothing", "folder", "loop", "beyond", "two_steps"})
    EXPECT_EQ(read_in_it(name), "outside") << name;
}

// Whether a way out and back is one would tell whether the folders on it are there.
TEST_F(FilesOfAnOpenFolder, DoNotTellWhatIsOutside) {
  const fs::path inside = root() / "inside";
  fs::create_symlink("../../root/inside/parts/file", inside / "out_and_in");
  fs::create_symlink("../../secret/../root/inside/parts/file", inside / "through_there");
  fs::create_symlink("../../nothing/../root/inside/parts/file", inside / "through_nothing");
  fs::create_symlink(root() / "inside/parts/file", inside / "absolute");
  for (const char* name : {"out_and_in", "through_there", "through_nothing"})
    EXPECT_EQ(read_in_it(name), "outside") << name;
  EXPECT_EQ(read_in_it("absolute"), "inside");
}

TEST_F(FilesOfAnOpenFolder, AreNotBesideItWhenItHasLeft) {
  fs::create_symlink("../file", root() / "inside/beside");
  fs::create_symlink("parts/file", root() / "inside/link");
  fs::rename(root() / "inside", secret() / "inside");
  EXPECT_EQ(read_in_it("beside"), "outside");
  EXPECT_EQ(read_in_it("link"), "inside") << "was below the root when it was opened";
}

// Nobody's fault but ours, and it passes.
TEST_F(FilesBelowAFolder, AreUnavailableWithoutDescriptors) {
  const FilesBelow below(root());
  const FileDescriptor next(::dup(STDIN_FILENO));
  ASSERT_GE(next.get(), 0);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{static_cast<rlim_t>(next.get()) + 1, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  ErrorCode code = ErrorCode::kInternal;
  try {
    below.open("inside/file", "as asked");
  } catch (const Failure& failure) {
    code = failure.code();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(code, ErrorCode::kUnavailable);
}

TEST_F(FilesBelowAFolder, DoNotWaitForPipes) {
  ASSERT_EQ(::mkfifo((root() / "pipe").c_str(), 0600), 0);
  EXPECT_THROW(read("pipe"), Failure);
  EXPECT_THROW(read("inside/file",
                    [&] {
                      fs::remove(root() / "inside/file");
                      ASSERT_EQ(::mkfifo((root() / "inside/file").c_str(), 0600), 0);
                    }),
               Failure);
}

}  // namespace
}  // namespace droidspeak
