#include "model/digest_cache.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"

namespace droidspeak {
namespace {

// Changes whenever one of the files does.
std::string describe(const std::vector<std::filesystem::path>& files) {
  std::string text = "droidspeak digest 1\n";
  for (const auto& file : files) {
    std::error_code error;
    auto size = std::filesystem::file_size(file, error);
    auto time = std::filesystem::last_write_time(file, error).time_since_epoch().count();
    text += fmt::format("{} {} {}\n", file.filename().string(), size, time);
  }
  return text;
}

}  // namespace

Digest digest_of_tensors(const std::vector<const FileTensor*>& tensors) {
  Sha256 hash;
  for (const FileTensor* tensor : tensors) {
    hash.add_field('n', tensor->name);
    hash.add_field('t', name_of(tensor->dtype));
    hash.add_field('s', std::as_bytes(std::span(tensor->shape)));
    hash.add_field('b', tensor->bytes);
  }
  return hash.finish();
}

Digest cached_digest(const std::vector<std::filesystem::path>& files,
                     const std::function<Digest()>& compute) {
  std::filesystem::path remembered = files.front().string() + ".digest";
  std::string description = describe(files);
  try {
    std::string content = read_file(remembered, 1 << 20);
    if (content.starts_with(description) && content.size() == description.size() + 65) {
      return Digest::from_hex(std::string_view(content).substr(description.size(), 64));
    }
  } catch (const Failure&) {
    // Not there or damaged: computed again.
  }
  Digest digest = compute();
  try {
    write_file_atomically(remembered, description + digest.hex() + "\n");
  } catch (const Failure&) {
    // A read-only folder costs a second at the next start.
  }
  return digest;
}

}  // namespace droidspeak
