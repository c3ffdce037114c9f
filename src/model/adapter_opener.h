// Opens the files of an adapter, each once, and of one folder: what is checked is what was opened,
// and what is read. So its weights and its tokenizer are to be read by one opener.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/file.h"
#include "base/files_below.h"
#include "model/adapter_path.h"

namespace droidspeak {

class AdapterOpener {
 public:
  // Throws Failure. What lies outside of a root and what is missing there get the same words: what
  // there is outside is none of a client's business.
  // `before_open`: see FilesBelow; for tests.
  explicit AdapterOpener(const AdapterPath& path, std::function<void()> before_open = {});

  // Without links where there is a root.
  const std::filesystem::path& path() const { return path_; }

  // As messages name it.
  const std::filesystem::path& name() const { return asked_.path; }

  // The adapter where it is one file; null for a folder.
  const std::shared_ptr<const InputFile>& file() const { return file_; }

  // A file of the folder; throws Failure.
  std::shared_ptr<const InputFile> open(const std::string& name) const;

 private:
  void open_anywhere();
  void open_below(std::function<void()> before_open);

  const AdapterPath asked_;
  std::optional<FilesBelow> below_;       // none: no root
  std::optional<FileDescriptor> folder_;  // none: it is a file
  std::filesystem::path path_;
  std::shared_ptr<const InputFile> file_;
};

}  // namespace droidspeak
