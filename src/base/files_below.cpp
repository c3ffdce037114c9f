#include "base/files_below.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>

#include "base/error.h"

namespace droidspeak {
namespace {

namespace fs = std::filesystem;

constexpr int kFolder = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
constexpr int kInput = O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC;

[[noreturn]] void fail_to_open(const fs::path& name, int error) {
  if (error == ENXIO || error == ENODEV) {  // a socket, a device
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{}: not a regular file", name.string()));
  }
  const bool is_not_there = error == ENOENT || error == EACCES || error == ENAMETOOLONG;
  throw Failure(is_not_there ? ErrorCode::kNotFound : ErrorCode::kUnavailable,
                fmt::format("{}: cannot open: {}", name.string(), std::strerror(error)));
}

fs::path without_links(const fs::path& root) {
  std::error_code error;
  fs::path resolved = fs::canonical(root, error);
  if (error) fail_to_open(root, error.value());
  return resolved;
}

FileDescriptor open_folder(const fs::path& root) {
  FileDescriptor folder(::open(root.c_str(), kFolder));
  if (folder.get() < 0) fail_to_open(root, errno);
  return folder;
}

}  // namespace

FilesBelow::FilesBelow(const fs::path& root, std::function<void()> before_open)
    : root_(without_links(root)),
      folder_(open_folder(root_)),
      before_open_(std::move(before_open)) {}

std::optional<fs::path> FilesBelow::resolve(const fs::path& path) const {
  std::error_code error;
  fs::path resolved = fs::weakly_canonical(root_ / path, error);
  const bool is_below = !error && std::ranges::mismatch(root_, resolved).in1 == root_.end();
  return is_below ? std::optional(std::move(resolved)) : std::nullopt;
}

std::optional<FileDescriptor> FilesBelow::open(const fs::path& path, const fs::path& name) const {
  const std::optional<fs::path> resolved = resolve(path);
  if (!resolved) return std::nullopt;
  note_open();
  return open_resolved(*resolved, name);
}

std::optional<FileDescriptor> FilesBelow::open_in(const FileDescriptor& folder,
                                                  const fs::path& path,
                                                  const std::string& file,
                                                  const fs::path& name) const {
  note_open();
  FileDescriptor opened(::openat(folder.get(), file.c_str(), kInput));
  if (opened.get() >= 0) return opened;
  if (errno != ELOOP) fail_to_open(name, errno);
  std::string target(PATH_MAX, '\0');
  const ssize_t size = ::readlinkat(folder.get(), file.c_str(), target.data(), target.size());
  if (size <= 0) return std::nullopt;
  target.resize(static_cast<size_t>(size));
  const std::optional<fs::path> resolved = resolve(path / target);
  return resolved ? open_resolved(*resolved, name) : std::nullopt;
}

std::optional<FileDescriptor> FilesBelow::open_resolved(const fs::path& resolved,
                                                        const fs::path& name) const {
  FileDescriptor at(::openat(folder_.get(), ".", kFolder));
  if (at.get() < 0) fail_to_open(name, errno);
  const fs::path below = resolved.lexically_relative(root_);
  for (auto part = below.begin(); part != below.end(); ++part) {
    const bool is_last = std::next(part) == below.end();
    FileDescriptor next(::openat(at.get(), part->c_str(), is_last ? kInput : kFolder));
    if (next.get() < 0) {
      // A link: what was resolved has been swapped, or leads nowhere.
      if (errno == ELOOP || errno == ENOTDIR) return std::nullopt;
      fail_to_open(name, errno);
    }
    at = std::move(next);
  }
  return at;
}

}  // namespace droidspeak
