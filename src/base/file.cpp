#include "base/file.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/error.h"

namespace droidspeak {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, std::string_view what) {
  int error = errno;
  throw Failure(error == ENOENT ? ErrorCode::kNotFound : ErrorCode::kUnavailable,
                fmt::format("{}: {}: {}", path.string(), what, std::strerror(error)));
}

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}

  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }

  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  int get() const { return fd_; }

 private:
  int fd_;
};

size_t size_of_regular_file(int fd, const std::filesystem::path& path) {
  struct stat status {};

  if (::fstat(fd, &status) != 0) fail(path, "cannot stat");
  if (!S_ISREG(status.st_mode)) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{}: not a regular file", path.string()));
  }
  return static_cast<size_t>(status.st_size);
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) fail(path, "cannot open");
  size_ = size_of_regular_file(fd.get(), path);
  if (size_ == 0) {
    throw Failure(ErrorCode::kDataCorrupt, fmt::format("{}: file is empty", path.string()));
  }
  void* data = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) fail(path, "cannot map");
  data_ = static_cast<const std::byte*>(data);
}

MappedFile::~MappedFile() {
  unmap();
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    unmap();
    path_ = std::move(other.path_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

void MappedFile::unmap() noexcept {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  data_ = nullptr;
}

std::string read_file(const std::filesystem::path& path, size_t max_bytes) {
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) fail(path, "cannot open");
  size_t size = size_of_regular_file(fd.get(), path);
  if (size > max_bytes) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{}: {} bytes, at most {} are read", path.string(), size, max_bytes));
  }
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

std::string read_text_file(const std::filesystem::path& path, size_t max_bytes) {
  if (path.extension() != ".gz") return read_file(path, max_bytes);
  gzFile file = ::gzopen(path.c_str(), "rb");
  if (file == nullptr) fail(path, "cannot open");
  std::string content;
  char chunk[1 << 16];
  int got = 0;
  while ((got = ::gzread(file, chunk, sizeof chunk)) > 0 && content.size() <= max_bytes) {
    content.append(chunk, static_cast<size_t>(got));
  }
  bool complete = ::gzclose(file) == Z_OK && got == 0;
  if (!complete) {
    throw Failure(
        ErrorCode::kDataCorrupt,
        fmt::format("{}: not a complete gzip file of at most {} bytes", path.string(), max_bytes));
  }
  return content;
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
