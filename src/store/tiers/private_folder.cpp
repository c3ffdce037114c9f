#include "store/tiers/private_folder.h"

#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

namespace droidspeak {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kPrivate = 0700;
constexpr mode_t kRightsOfOthers = 0077;

bool is_name_of_ours(const std::string& name) {
  bool is_fan = name.size() == 2 && name.find_first_not_of("0123456789abcdef") == std::string::npos;
  return is_fan || name == "tmp" || name == "tables";
}

// Something in the folder that is not the cache's.
std::optional<std::string> find_stranger(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator item(folder, error), end; !error && item != end;
       item.increment(error)) {
    std::string name = item->path().filename().string();
    if (!is_name_of_ours(name) && name != "lost+found") return name;
  }
  return std::nullopt;
}

// Not through a link, and only what is ours.
bool narrow_sub_folder(const fs::path& path) {
  struct stat status {};

  bool is_wide = ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
                 status.st_uid == ::geteuid() && (status.st_mode & kRightsOfOthers) != 0;
  return is_wide && ::chmod(path.c_str(), kPrivate) == 0;
}

void narrow_root(const fs::path& folder) {
  struct stat status {};

  if (::stat(folder.c_str(), &status) != 0 || (status.st_mode & kRightsOfOthers) == 0) return;
  auto refuse = [&](const std::string& why) {
    throw Failure(
        ErrorCode::kInvalidArgument,
        fmt::format("cache folder {}: others may enter it (mode {:04o}), and {}: chmod 700 it, or "
                    "name a folder that does not exist yet",
                    folder.string(), status.st_mode & 07777, why));
  };
  if (status.st_uid != ::geteuid())
    refuse(fmt::format("it belongs to user {}, not to {}", status.st_uid, ::geteuid()));
  if (auto stranger = find_stranger(folder))
    refuse(fmt::format("it holds other things than caches (\"{}\")", *stranger));
  if (::chmod(folder.c_str(), kPrivate) != 0)
    refuse(fmt::format("that cannot be changed: {}", std::strerror(errno)));
  spdlog::warn("cache folder {}: others could enter it (mode {:04o}); it is 0700 now",
               folder.string(), status.st_mode & 07777);
}

}  // namespace

Result<void> make_private_folder(const fs::path& folder) {
  if (::mkdir(folder.c_str(), kPrivate) != 0) {
    if (errno == EEXIST) return {};
    return Error{ErrorCode::kUnavailable,
                 fmt::format("{}: cannot make it: {}", folder.string(), std::strerror(errno))};
  }
  ::chmod(folder.c_str(), kPrivate);  // the umask may have taken rights of ours
  return {};
}

void narrow_cache_folder(const fs::path& folder) {
  if (::faccessat(AT_FDCWD, folder.c_str(), W_OK, AT_EACCESS) != 0) return;
  narrow_root(folder);
  size_t num_narrowed = 0;
  std::error_code error;
  for (fs::directory_iterator item(folder, error), end; !error && item != end;
       item.increment(error)) {
    if (is_name_of_ours(item->path().filename().string()) && narrow_sub_folder(item->path()))
      ++num_narrowed;
  }
  if (num_narrowed == 0) return;
  spdlog::warn("cache folder {}: others could enter {} of its folders; they are 0700 now",
               folder.string(), num_narrowed);
}

}  // namespace droidspeak
