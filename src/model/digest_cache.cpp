#include "model/digest_cache.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <linux/magic.h>

#include "base/error.h"

namespace droidspeak {
namespace {

// Changes whenever one of the files does.
std::string describe(const std::vector<const InputFile*>& files) {
  std::string text = "droidspeak digest 3\n";
  for (const InputFile* file : files) {
    const FileStamp& stamp = file->stamp();
    text += fmt::format("{} {} {} {} {} {}\n", file->path().filename().string(), stamp.device,
                        stamp.inode, stamp.size, stamp.modified_ns, stamp.changed_ns);
  }
  return text;
}

bool is_settled(const InputFile& file, std::chrono::system_clock::time_point now) {
  const std::chrono::nanoseconds changed(file.stamp().changed_ns);
  return now.time_since_epoch() - changed > std::chrono::seconds(2);
}

// Throws Failure when one of them changes meanwhile.
Digest computed(const std::vector<const InputFile*>& files,
                const std::function<Digest()>& compute) {
  Digest digest = compute();
  for (const InputFile* file : files) file->check_unchanged();
  return digest;
}

}  // namespace

bool tells_every_write(const InputFile& file) {
  constexpr std::array<uint64_t, 4> kTrusted = {EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC,
                                                BTRFS_SUPER_MAGIC, F2FS_SUPER_MAGIC};
  return std::ranges::count(kTrusted, file.file_system()) > 0;
}

Digest digest_of_tensors(const std::vector<const FileTensor*>& tensors,
                         const std::vector<const OtherTensor*>& others) {
  Sha256 hash;
  auto add = [&](const auto& tensor, std::string_view dtype) {
    hash.add_field('n', tensor.name);
    hash.add_field('t', dtype);
    hash.add_field('s', std::as_bytes(std::span(tensor.shape)));
    hash.begin_field('b', tensor.bytes.size());
    tensor.bytes.for_each_piece([&](std::span<const std::byte> piece) { hash.add(piece); });
  };
  for (const FileTensor* tensor : tensors) add(*tensor, name_of(tensor->dtype));
  for (const OtherTensor* tensor : others) add(*tensor, tensor->dtype);
  return hash.finish();
}

Digest cached_digest(const std::vector<const InputFile*>& files,
                     const std::function<Digest()>& compute,
                     const DigestMemory& memory) {
  auto all = [&](const auto& holds) {
    return std::ranges::all_of(files, [&](const InputFile* file) { return holds(*file); });
  };
  if (!all(memory.trusts)) return computed(files, compute);
  std::filesystem::path remembered = files.front()->path().string() + ".digest";
  std::string description = describe(files);
  try {
    std::string content = read_file(remembered, 1 << 20);
    if (content.starts_with(description) && content.size() == description.size() + 65) {
      return Digest::from_hex(std::string_view(content).substr(description.size(), 64));
    }
  } catch (const Failure&) {
    // Not there or damaged: computed again.
  }
  // Written back before they are read: whatever is written from now on has a time of its own.
  const bool is_lasting =
      all([&](const InputFile& file) { return is_settled(file, memory.now); }) &&
      all([](const InputFile& file) { return file.write_back(); });
  Digest digest = computed(files, compute);
  if (!is_lasting) return digest;
  try {
    write_file_atomically(remembered, description + digest.hex() + "\n");
  } catch (const Failure&) {
    // A read-only folder costs a second at the next start.
  }
  return digest;
}

}  // namespace droidspeak
