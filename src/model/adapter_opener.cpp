#include "model/adapter_opener.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include "base/error.h"

namespace droidspeak {
namespace {

[[noreturn]] void refuse_place(const AdapterPath& asked) {
  throw Failure(ErrorCode::kNotFound,
                fmt::format("{}: expected an adapter's folder or GGUF file under --adapter-root",
                            asked.path.string()));
}

bool is_folder(const FileDescriptor& opened) {
  struct stat status {};

  return ::fstat(opened.get(), &status) == 0 && S_ISDIR(status.st_mode);
}

}  // namespace

AdapterOpener::AdapterOpener(const AdapterPath& path, std::function<void()> before_open)
    : asked_(path), path_(path.path) {
  if (!asked_.root.empty()) {
    open_below(std::move(before_open));
    return;
  }
  std::error_code error;
  if (std::filesystem::is_regular_file(path_, error)) file_ = std::make_shared<InputFile>(path_);
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
  if (!folder_) return std::make_shared<InputFile>(path_ / name);
  std::optional<FileDescriptor> opened = below_->open_in(*folder_, name, asked_.path / name);
  if (!opened) refuse_place(asked_);
  return std::make_shared<InputFile>(std::move(*opened), asked_.path / name);
}

}  // namespace droidspeak
