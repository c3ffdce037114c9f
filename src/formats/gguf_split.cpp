// Models in several GGUF files, as llama.cpp's gguf-split cuts them: NAME-00001-of-00003.gguf.
#include <fmt/format.h>

#include "base/error.h"
#include "formats/byte_reader.h"
#include "formats/gguf.h"

namespace droidspeak {
namespace {

constexpr int64_t kMaxParts = 1024;

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& what) {
  throw Failure(ErrorCode::kInvalidArgument, fmt::format("{}: {}", path.string(), what));
}

std::string suffix_of(int64_t part, int64_t count) {
  return fmt::format("-{:05}-of-{:05}.gguf", part, count);
}

}  // namespace

void GgufFile::join_parts() {
  const int64_t count = get_int_or("split.count", 0);
  if (count <= 1) return;
  if (count > kMaxParts)
    refuse(path(), fmt::format("key \"split.count\" is {}: expected at most {}", count, kMaxParts));
  if (int64_t number = get_int_or("split.no", 0); number != 0)
    refuse(path(), fmt::format("is part {} of a GGUF file split into {}: give the first part",
                               number + 1, count));
  std::string name = path().filename().string();
  const std::string suffix = suffix_of(1, count);
  if (!name.ends_with(suffix))
    refuse(path(), fmt::format("is the first of {} parts: its name must end in \"{}\" so that the "
                               "others can be found",
                               count, suffix));
  name.resize(name.size() - suffix.size());
  for (int64_t part = 2; part <= count; ++part) {
    GgufFile other(
        std::make_shared<InputFile>(path().parent_path() / (name + suffix_of(part, count))));
    if (other.get_int_or("split.no", -1) != part - 1 || other.get_int_or("split.count", 0) != count)
      refuse(other.path(), fmt::format("its keys \"split.no\" and \"split.count\" do not say that "
                                       "it is part {} of {}",
                                       part, count));
    files_.push_back(other.files_.front());
    for (FileTensor& tensor : other.tensors_) {
      if (!tensor_index_.emplace(tensor.name, tensors_.size()).second)
        refuse(other.path(),
               fmt::format("tensor {} is in an earlier part, too", in_quotes(tensor.name)));
      tensors_.push_back(std::move(tensor));
    }
  }
  const int64_t expected = get_int_or("split.tensors.count", std::ssize(tensors_));
  if (expected != std::ssize(tensors_))
    refuse(path(), fmt::format("its parts hold {} tensors: key \"split.tensors.count\" is {}",
                               tensors_.size(), expected));
}

}  // namespace droidspeak
