#include "store/tiers/file_system.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

namespace droidspeak {
namespace {

Error error_of(int number, const std::filesystem::path& path, std::string_view action) {
  ErrorCode code = ErrorCode::kUnavailable;
  if (number == ENOENT) code = ErrorCode::kNotFound;
  if (number == ENOSPC || number == EDQUOT || number == EFBIG) code = ErrorCode::kExhausted;
  return {code, fmt::format("{}: cannot {}: {}", path.string(), action, std::strerror(number))};
}

constexpr mode_t kPrivate = 0600;   // whatever the umask: what lies in a cache is somebody's text
constexpr size_t kMaxPieces = 512;  // of one writev, below every system's IOV_MAX

// Leaves out the first `done` bytes.
void advance(std::vector<iovec>& pieces, size_t& first, size_t done) {
  while (done > 0) {
    size_t step = std::min(done, pieces[first].iov_len);
    pieces[first].iov_base = static_cast<char*>(pieces[first].iov_base) + step;
    pieces[first].iov_len -= step;
    done -= step;
    if (pieces[first].iov_len == 0) ++first;
  }
}

// 0 once the file was removed.
uint64_t num_names(const FileHandle& file) {
  struct stat status {};

  return ::fstat(file.get(), &status) == 0 ? status.st_nlink : 0;
}

}  // namespace

FileHandle::~FileHandle() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

// Not blocking: a pipe under that name would be waited for, not refused.
Result<FileHandle> FileSystem::open(const std::filesystem::path& path) {
  int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return error_of(errno, path, "open");
  return FileHandle(descriptor);
}

Result<FileHandle> FileSystem::create(const std::filesystem::path& path) {
  // Between open and lock, a process that clears up may take the file for a dead writer's and
  // remove it.
  constexpr int kAttempts = 16;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    FileHandle file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, kPrivate));
    if (file.get() < 0) return error_of(errno, path, "create");
    if (::fchmod(file.get(), kPrivate) != 0) return error_of(errno, path, "keep private");
    while (::flock(file.get(), LOCK_EX) != 0) {
      if (errno != EINTR) return error_of(errno, path, "lock");
    }
    if (num_names(file) > 0) return file;
  }
  return error_of(EAGAIN, path, "create");
}

Result<size_t> FileSystem::read(const FileHandle& file,
                                uint64_t offset,
                                std::span<std::byte> bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    ssize_t got = ::pread(file.get(), bytes.data() + done, bytes.size() - done,
                          static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return error_of(errno, "block file", "read");
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

Result<void> FileSystem::write(const FileHandle& file,
                               std::span<const std::span<const std::byte>> pieces) {
  std::vector<iovec> vectors;
  vectors.reserve(pieces.size());
  for (std::span<const std::byte> piece : pieces) {
    if (piece.empty()) continue;
    vectors.push_back({const_cast<std::byte*>(piece.data()), piece.size()});
  }
  size_t first = 0;
  while (first < vectors.size()) {
    size_t count = std::min(vectors.size() - first, kMaxPieces);
    ssize_t put = ::writev(file.get(), vectors.data() + first, static_cast<int>(count));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return error_of(errno, "block file", "write");
    advance(vectors, first, static_cast<size_t>(put));
  }
  return {};
}

Result<void> FileSystem::write_back(const FileHandle& file) {
  constexpr unsigned kWait =
      SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  if (::sync_file_range(file.get(), 0, 0, kWait) == 0) return {};
  bool cannot_be_asked = errno == ENOSYS || errno == EINVAL || errno == ESPIPE;
  if (!cannot_be_asked) return error_of(errno, "block file", "write back");
  return {};
}

Result<void> FileSystem::sync(const FileHandle& file) {
  if (::fdatasync(file.get()) != 0) return error_of(errno, "block file", "sync");
  return {};
}

Result<void> FileSystem::sync_folder(const std::filesystem::path& folder) {
  FileHandle handle(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (handle.get() < 0) return error_of(errno, folder, "open");
  if (::fsync(handle.get()) != 0) return error_of(errno, folder, "sync");
  return {};
}

Result<void> FileSystem::rename(const std::filesystem::path& from,
                                const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) return error_of(errno, to, "rename to");
  return {};
}

Result<void> FileSystem::remove(const std::filesystem::path& path) {
  if (::unlink(path.c_str()) != 0) return error_of(errno, path, "remove");
  return {};
}

void remove_if_abandoned(const std::filesystem::path& path) {
  FileHandle file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0 || ::flock(file.get(), LOCK_EX | LOCK_NB) != 0) return;
  ::unlink(path.c_str());  // while the lock is held, see create()
}

uint64_t size_of(const FileHandle& file) {
  struct stat status {};

  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return 0;
  return static_cast<uint64_t>(status.st_size);
}

}  // namespace droidspeak
