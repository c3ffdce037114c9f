// Opens what lies below a folder that others may write into. The links of a path are resolved, and
// then it is opened part by part without following any: what becomes a link in between is not
// opened, so nothing outside ever is. What is opened in a folder that is open, is of that folder,
// links included. Opening does not wait for pipes.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "base/file_descriptor.h"

namespace droidspeak {

class FilesBelow {
 public:
  // Throws Failure when there is no such folder. `before_open` is called when a path has been
  // resolved and is not opened yet; for tests.
  explicit FilesBelow(const std::filesystem::path& root, std::function<void()> before_open = {});

  // The path without links; relative ones start at the root. Nothing when it leads outside.
  std::optional<std::filesystem::path> resolve(const std::filesystem::path& path) const;

  // A file or folder. Nothing when it leads outside, or to a link by now. Throws Failure naming it
  // as `name` when it is missing or cannot be opened.
  std::optional<FileDescriptor> open(const std::filesystem::path& path,
                                     const std::filesystem::path& name) const;
  // A file of `folder`, which was opened here: of that very folder, whatever goes by its path now.
  // A link there leads on from the folder that it lies in, and out of the root and back only as an
  // absolute path. Otherwise as above.
  std::optional<FileDescriptor> open_in(const FileDescriptor& folder,
                                        const std::string& file,
                                        const std::filesystem::path& name) const;

 private:
  class Walk;

  bool holds(const FileDescriptor& folder, const std::filesystem::path& name) const;
  std::optional<FileDescriptor> open_resolved(const std::filesystem::path& resolved,
                                              const std::filesystem::path& name) const;

  void note_open() const {
    if (before_open_) before_open_();
  }

  std::filesystem::path root_;  // without links
  FileDescriptor folder_;
  std::function<void()> before_open_;
};

}  // namespace droidspeak
