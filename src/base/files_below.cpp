#include "base/files_below.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <iterator>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include "base/error.h"

namespace droidspeak {
namespace {

namespace fs = std::filesystem;

constexpr int kFolder = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
constexpr int kInput = O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC;
constexpr int kMaxLinks = 40;  // as many as the system follows

bool is_not_there(int error) {
  return error == ENOENT || error == EACCES || error == ENAMETOOLONG;
}

[[noreturn]] void fail_to_open(const fs::path& name, int error) {
  if (error == ENXIO || error == ENODEV) {  // a socket, a device
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{}: not a regular file", name.string()));
  }
  throw Failure(is_not_there(error) ? ErrorCode::kNotFound : ErrorCode::kUnavailable,
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

bool is_same(const FileDescriptor& a, const FileDescriptor& b) {
  struct stat of_a {};

  struct stat of_b {};

  return ::fstat(a.get(), &of_a) == 0 && ::fstat(b.get(), &of_b) == 0 &&
         of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
}

std::optional<fs::path> link_at(const FileDescriptor& at, const fs::path& part) {
  std::string target(PATH_MAX, '\0');
  const ssize_t size = ::readlinkat(at.get(), part.c_str(), target.data(), target.size());
  if (size <= 0) return std::nullopt;
  target.resize(static_cast<size_t>(size));
  return target;
}

}  // namespace

// From an open folder on: ".." and links are those of the folders that are open, whatever goes by
// their paths. It ends where ".." leads out of the root: going on would tell what there is outside.
class FilesBelow::Walk {
 public:
  Walk(const FilesBelow& below, const FileDescriptor& folder, const fs::path& name)
      : below_(below), name_(name), at_(::openat(folder.get(), ".", kFolder)) {
    if (at_.get() < 0) fail_to_open(name_, errno);
  }

  std::optional<FileDescriptor> open(const fs::path& path) {
    go_on_with(path);
    while (!rest_.empty()) {
      const fs::path part = std::move(rest_.back());
      rest_.pop_back();
      const bool is_last = rest_.empty();
      const bool is_up = part == "..";
      if (is_last && is_up) return std::nullopt;
      FileDescriptor next(::openat(at_.get(), part.c_str(), is_last ? kInput : kFolder));
      if (next.get() >= 0) {
        at_ = std::move(next);
        if (is_up && !below_.holds(at_, name_)) return std::nullopt;
        continue;
      }
      const int error = errno;
      if (error != ELOOP && error != ENOTDIR) fail_to_open(name_, error);
      const std::optional<fs::path> target = link_at(at_, part);
      if (!target || ++num_links_ > kMaxLinks) return std::nullopt;
      if (target->is_absolute()) return open_absolute(*target);
      go_on_with(*target);
    }
    return std::move(at_);
  }

 private:
  void go_on_with(const fs::path& path) {
    const std::vector<fs::path> parts(path.begin(), path.end());
    std::copy_if(parts.rbegin(), parts.rend(), std::back_inserter(rest_),
                 [](const fs::path& part) { return !part.empty(); });
  }

  std::optional<FileDescriptor> open_absolute(fs::path path) const {
    for (auto part = rest_.rbegin(); part != rest_.rend(); ++part) path /= *part;
    const std::optional<fs::path> resolved = below_.resolve(path);
    return resolved ? below_.open_resolved(*resolved, name_) : std::nullopt;
  }

  const FilesBelow& below_;
  const fs::path& name_;
  FileDescriptor at_;
  std::vector<fs::path> rest_;  // the next one last
  int num_links_ = 0;
};

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
                                                  const std::string& file,
                                                  const fs::path& name) const {
  note_open();
  return Walk(*this, folder, name).open(file);
}

// By the folders that it lies in: it may have been moved since it was opened.
bool FilesBelow::holds(const FileDescriptor& folder, const fs::path& name) const {
  FileDescriptor at(::fcntl(folder.get(), F_DUPFD_CLOEXEC, 0));
  while (at.get() >= 0 && !is_same(at, folder_)) {
    FileDescriptor parent(::openat(at.get(), "..", kFolder));
    const bool is_top = parent.get() >= 0 && is_same(parent, at);
    if (is_top || (parent.get() < 0 && is_not_there(errno))) return false;
    at = std::move(parent);
  }
  if (at.get() < 0) fail_to_open(name, errno);
  return true;
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
