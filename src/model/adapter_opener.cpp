#include "model/adapter_opener.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include "base/check.h"
#include "base/error.h"

namespace droidspeak {
namespace {

[[noreturn]] void refuse_place(const AdapterPath& asked) {
  throw Failure(ErrorCode::kNotFound,
                fmt::format("{}: expected an adapter's folder or GGUF file under --adapter-root",
                            asked.path.string()));
}

[[noreturn]] void fail_to_open(const std::filesystem::path& path) {
  const int error = errno;
  throw Failure(error == ENOENT ? ErrorCode::kNotFound : ErrorCode::kUnavailable,
                fmt::format("{}: cannot open: {}", path.string(), std::strerror(error)));
}

bool is_folder(const FileDescriptor& opened) {
  struct stat status {};

  return ::fstat(opened.get(), &status) == 0 && S_ISDIR(status.st_mode);
}

}  // namespace

AdapterOpener::AdapterOpener(const AdapterPath& path, std::function<void()> before_open)
    : asked_(path), path_(path.path) {
  asked_.root.empty() ? open_anywhere() : open_below(std::move(before_open));
}

void AdapterOpener::open_anywhere() {
  FileDescriptor folder(::open(path_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() >= 0) {
    folder_ = std::move(folder);
  } else if (errno == ENOTDIR) {
    file_ = std::make_shared<InputFile>(path_);
  } else {
    fail_to_open(path_);
  }
}

void AdapterOpener::open_below(std::function<void()> before_open) {
  try {
    below_.emplace(asked_.root, std::move(before_open));
  } catch (const Failure& failure) {
    if (failure.code() == ErrorCode::kUnavailable)
      throw Failure(failure.code(), "--adapter-root cannot be opened now: try again later");
    throw Failure(ErrorCode::kInvalidArgument, "--adapter-root does not exist");
  }
  std::optional<std::filesystem::path> resolved = below_->resolve(asked_.path);
  if (!resolved) refuse_place(asked_);
  path_ = std::move(*resolved);
  std::optional<FileDescriptor> opened;
  try {
    opened = below_->open(path_, asked_.path);
  } catch (const Failure& failure) {
    if (failure.code() == ErrorCode::kUnavailable) throw;
    refuse_place(asked_);
  }
  if (!opened) refuse_place(asked_);
  if (is_folder(*opened)) {
    folder_ = std::move(opened);
    return;
  }
  if (path_.extension() != ".gguf") refuse_place(asked_);
  file_ = std::make_shared<InputFile>(std::move(*opened), asked_.path);
}

std::shared_ptr<const InputFile> AdapterOpener::open(const std::string& name) const {
  check(folder_.has_value(), "a file of an adapter that is a folder");
  const std::filesystem::path path = asked_.path / name;
  if (!below_) {
    FileDescriptor opened(
        ::openat(folder_->get(), name.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    if (opened.get() < 0) fail_to_open(path);
    return std::make_shared<InputFile>(std::move(opened), path);
  }
  std::optional<FileDescriptor> opened = below_->open_in(*folder_, name, path);
  if (!opened) refuse_place(asked_);
  return std::make_shared<InputFile>(std::move(*opened), path);
}

}  // namespace droidspeak
