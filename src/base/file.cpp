#include "base/file.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <zlib.h>

#include "base/check.h"
#include "base/error.h"

namespace droidspeak {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, std::string_view what) {
  int error = errno;
  throw Failure(error == ENOENT ? ErrorCode::kNotFound : ErrorCode::kUnavailable,
                fmt::format("{}: {}: {}", path.string(), what, std::strerror(error)));
}

FileStamp stamp_of_regular_file(int fd, const std::filesystem::path& path) {
  struct stat status {};

  if (::fstat(fd, &status) != 0) fail(path, "cannot stat");
  if (!S_ISREG(status.st_mode)) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{}: not a regular file", path.string()));
  }
  auto nanoseconds = [](const timespec& time) {
    return static_cast<int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
  };
  return {.device = status.st_dev,
          .inode = status.st_ino,
          .size = static_cast<uint64_t>(status.st_size),
          .modified_ns = nanoseconds(status.st_mtim),
          .changed_ns = nanoseconds(status.st_ctim)};
}

// Not blocking: a pipe under that name would be waited for, not refused.
FileDescriptor open_for_reading(const std::filesystem::path& path) {
  FileDescriptor opened(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (opened.get() < 0) fail(path, "cannot open");
  return opened;
}

void check_size(const std::filesystem::path& path, uint64_t size, size_t max_bytes) {
  if (size <= max_bytes) return;
  throw Failure(ErrorCode::kInvalidArgument,
                fmt::format("{}: {} bytes, at most {} are read", path.string(), size, max_bytes));
}

}  // namespace

InputFile::InputFile(const std::filesystem::path& path) : InputFile(open_for_reading(path), path) {}

InputFile::InputFile(FileDescriptor opened, std::filesystem::path path)
    : path_(std::move(path)),
      opened_(std::move(opened)),
      stamp_(stamp_of_regular_file(opened_.get(), path_)) {
  if (stamp_.size == 0) {
    throw Failure(ErrorCode::kDataCorrupt, fmt::format("{}: file is empty", path_.string()));
  }
}

void InputFile::read(uint64_t offset, std::span<std::byte> out) const {
  size_t done = 0;
  while (done < out.size()) {
    ssize_t got = ::pread(opened_.get(), out.data() + done, out.size() - done,
                          static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path_, "cannot read");
    if (got == 0) {
      throw Failure(
          ErrorCode::kDataCorrupt,
          fmt::format("{}: ends before byte {} where it had {} bytes: it was cut while it "
                      "was read",
                      path_.string(), offset + done + 1, stamp_.size));
    }
    done += static_cast<size_t>(got);
  }
}

std::string InputFile::read_text(size_t max_bytes) const {
  check_size(path_, stamp_.size, max_bytes);
  std::string text(stamp_.size, '\0');
  read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void InputFile::check_unchanged() const {
  if (stamp_of_regular_file(opened_.get(), path_) == stamp_) return;
  throw Failure(ErrorCode::kUnavailable,
                fmt::format("{}: has been changed while it was read; try again when it is complete",
                            path_.string()));
}

uint64_t InputFile::file_system() const {
  struct statfs status {};

  return ::fstatfs(opened_.get(), &status) == 0 ? static_cast<uint64_t>(status.f_type) : 0;
}

bool InputFile::write_back() const {
  return ::fsync(opened_.get()) == 0;
}

std::string read_file(const std::filesystem::path& path, size_t max_bytes) {
  FileDescriptor fd = open_for_reading(path);
  size_t size = stamp_of_regular_file(fd.get(), path).size;
  check_size(path, size, max_bytes);
  std::string content(size, '\0');
  size_t done = 0;
  while (done < size) {
    ssize_t got = ::read(fd.get(), content.data() + done, size - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path, "cannot read");
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  content.resize(done);
  return content;
}

namespace {

// One member of a gzip file after the other.
class GzipMembers {
 public:
  explicit GzipMembers(std::string_view packed) : packed_(packed) {
    constexpr int kGzipAlone = 16 + MAX_WBITS;
    check(::inflateInit2(&stream_, kGzipAlone) == Z_OK, "zlib starts");
  }

  ~GzipMembers() { ::inflateEnd(&stream_); }

  GzipMembers(const GzipMembers&) = delete;
  GzipMembers& operator=(const GzipMembers&) = delete;

  // Of which nothing has been read yet.
  std::string_view rest() const { return packed_; }

  // Appends the next one; false when it is no complete one, or makes the text longer than that.
  bool append_next(std::string& text, size_t max_bytes) {
    ::inflateReset(&stream_);
    int state = Z_OK;
    while (state == Z_OK && text.size() <= max_bytes) state = step(text);
    return state == Z_STREAM_END && text.size() <= max_bytes;
  }

 private:
  int step(std::string& text) {
    const size_t given = std::min(packed_.size(), sizeof chunk_);
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed_.data()));
    stream_.avail_in = static_cast<uInt>(given);
    stream_.next_out = reinterpret_cast<Bytef*>(chunk_);
    stream_.avail_out = sizeof chunk_;
    const int state = ::inflate(&stream_, Z_NO_FLUSH);
    packed_.remove_prefix(given - stream_.avail_in);
    text.append(chunk_, sizeof chunk_ - stream_.avail_out);
    return state;
  }

  std::string_view packed_;
  z_stream stream_{};
  char chunk_[1 << 16];
};

}  // namespace

std::string read_text_file(const std::filesystem::path& path, size_t max_bytes) {
  const std::string packed = read_file(path, max_bytes);
  if (path.extension() != ".gz" || !packed.starts_with("\x1f\x8b")) return packed;
  std::string text;
  GzipMembers members(packed);
  while (!members.rest().empty()) {
    const size_t offset = packed.size() - members.rest().size();
    // Tapes and some writers fill their last block.
    if (offset > 0 && members.rest().find_first_not_of('\0') == std::string_view::npos) break;
    if (members.append_next(text, max_bytes)) continue;
    throw Failure(ErrorCode::kDataCorrupt,
                  fmt::format("{}: what begins at byte {} is no complete gzip member: expected "
                              "nothing else, and at most {} bytes of text",
                              path.string(), offset, max_bytes));
  }
  return text;
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  std::string temporary = path.string() + ".XXXXXX";
  FileDescriptor fd(::mkstemp(temporary.data()));
  if (fd.get() < 0) fail(path, "cannot create");
  size_t done = 0;
  while (done < content.size()) {
    ssize_t put = ::write(fd.get(), content.data() + done, content.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      ::unlink(temporary.c_str());
      fail(path, "cannot write");
    }
    done += static_cast<size_t>(put);
  }
  if (::fchmod(fd.get(), 0644) != 0 || ::fsync(fd.get()) != 0 ||
      ::rename(temporary.c_str(), path.c_str()) != 0) {
    ::unlink(temporary.c_str());
    fail(path, "cannot write");
  }
}

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "droidspeak.XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) fail(name, "cannot create folder");
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace droidspeak
