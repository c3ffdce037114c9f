#include "model/family.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json_fields_once.h"
#include "model/adapter_files.h"
#include "model/adapter_opener.h"
#include "model/family_tokenizer.h"
#include "model/json_fields.h"

namespace droidspeak {
namespace {

Pooling read_pooling(const JsonFields& json) {
  std::string text = json.get_string("pooling");
  if (text == "mean") return Pooling::kMean;
  if (text == "last") return Pooling::kLast;
  json.refuse("pooling", "\"mean\" or \"last\"");
}

FamilyFile::Member read_member(const JsonFields& json, const std::filesystem::path& folder) {
  json.accept_only({"name", "path", "adapter", "pooling"});
  FamilyFile::Member member;
  member.name = json.get_string("name");
  if (member.name.empty() || member.name.size() > 256) json.refuse("name", "1 to 256 characters");
  bool has_path = json.has("path");
  bool has_adapter = json.has("adapter");
  if (has_path == has_adapter)
    json.refuse(has_path ? "adapter" : "path", "either \"path\" or \"adapter\"");
  if (has_path) member.path = folder / json.get_string("path");
  if (has_adapter) member.adapter = folder / json.get_string("adapter");
  if (json.has("pooling")) member.pooling = read_pooling(json);
  return member;
}

constexpr size_t kMostFamilyBytes = size_t{16} << 20;
constexpr JsonLimits kFamilyLimits{.depth = 64, .values = size_t{1} << 20};

// A second list of variants would replace the first.
JsonFields read_once_each(const std::filesystem::path& path) {
  const std::string text = read_file(path, kMostFamilyBytes);
  JsonFields json(path, text, kFamilyLimits);
  try {
    require_fields_once(text);
  } catch (const Failure& failure) {
    throw Failure(failure.code(), fmt::format("{}: {}", path.string(), failure.what()));
  }
  return json;
}

// Of one table of rotations, which has a row for each position: two million at a head size of 128.
constexpr int64_t kMostTableBytes = int64_t{1} << 30;

void check_table(const std::filesystem::path& path, const ModelConfig& config, int32_t length) {
  const int64_t row_bytes = int64_t{config.rope.rotary_dim} * static_cast<int64_t>(sizeof(float));
  if (length <= kMostTableBytes / row_bytes) return;
  throw Failure(
      ErrorCode::kInvalidArgument,
      fmt::format("{}: contexts of {} tokens take {} bytes for RoPE alone: give "
                  "--max-model-len {} or less",
                  path.string(), length, length * row_bytes, kMostTableBytes / row_bytes));
}

// The length of prompt and answer that every member allows: they read each other's caches, which
// hold for one table of rotations, so the whole family has one length, whatever is loaded of it.
int32_t common_length(const FamilyFile& file, int32_t wanted) {
  const FamilyFile::Member* shortest = &file.base;
  const ModelConfig base = load_config(file.base.path);
  int32_t limit = base.max_positions;
  for (const FamilyFile::Member& member : file.variants) {
    if (!member.adapter.empty()) continue;
    int32_t length = load_config(member.path).max_positions;
    if (length >= limit) continue;
    limit = length;
    shortest = &member;
  }
  if (wanted > limit) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("--max-model-len {}: {} allows at most {}", wanted,
                              shortest->path.string(), limit));
  }
  const int32_t length = wanted > 0 ? wanted : limit;
  check_table(shortest->path, base, length);
  return length;
}

}  // namespace

FamilyFile read_family_file(const std::filesystem::path& path) {
  std::filesystem::path file_path =
      std::filesystem::is_directory(path) ? path / "family.json" : path;
  const JsonFields json = read_once_each(file_path);
  std::filesystem::path folder = file_path.parent_path();
  json.accept_only({"name", "base", "variants", "plan_books", "codec_steps", "unprofiled"});
  FamilyFile file;
  file.path = file_path;
  file.name = json.get_string("name");
  auto base = json.find_object("base");
  if (!base) json.refuse("base", "an object with \"name\" and \"path\"");
  file.base = read_member(*base, folder);
  if (!file.base.adapter.empty()) base->refuse("adapter", "a \"path\" for the base model");
  std::vector<std::string> names{file.base.name};
  if (json.has("variants")) {
    for (const JsonFields& variant : json.get_objects("variants")) {
      file.variants.push_back(read_member(variant, folder));
      if (std::ranges::find(names, file.variants.back().name) != names.end())
        variant.refuse("name", "a name that is used once");
      names.push_back(file.variants.back().name);
    }
  }
  if (json.has("plan_books")) {
    for (const std::string& book : json.get_strings("plan_books"))
      file.plan_books.push_back(folder / book);
  }
  if (json.has("codec_steps")) file.codec_steps = folder / json.get_string("codec_steps");
  if (json.has("unprofiled")) file.unprofiled = json.get_string("unprofiled");
  return file;
}

ModelFamily::ModelFamily(Ops& ops,
                         const FamilyFile& file,
                         const FamilyOptions& options,
                         const std::vector<std::string>& only)
    : ops_(ops), file_(file), precision_(options.precision) {
  auto is_wanted = [&](const std::string& name) {
    return only.empty() || std::ranges::find(only, name) != only.end();
  };
  const int32_t length = common_length(file, options.max_model_len);
  auto load_full = [&](const FamilyFile::Member& member, const std::string& parent) {
    auto variant = std::make_shared<Variant>();
    variant->name = member.name;
    variant->parent = parent;
    variant->path = member.path;
    variant->pooling = member.pooling;
    auto weights = load_weights(ops, member.path, options.precision);
    variant->model_digest = weights->digest;
    variant->transformer = std::make_shared<Transformer>(ops, weights, length);
    return variant;
  };
  base_ = load_full(file.base, "");
  variants_.push_back(base_);
  BaseTokenizer tokenizer(file.base.path);
  for (const FamilyFile::Member& member : file.variants) {
    if (!is_wanted(member.name)) continue;
    if (!member.adapter.empty()) {
      try {
        add_adapter(member.name, member.adapter, tokenizer);
      } catch (const Failure& failure) {
        throw Failure(failure.code(), fmt::format("{}: variant \"{}\": {}", file.path.string(),
                                                  member.name, failure.what()));
      }
      continue;
    }
    auto variant = load_full(member, file.base.name);
    std::string mismatch = describe_mismatch(config(), variant->transformer->config());
    if (mismatch.empty()) {
      mismatch = tokenizer.mismatch_of(member.path);
      if (!mismatch.empty()) mismatch = "its tokenizer differs: " + mismatch;
    }
    if (!mismatch.empty()) {
      throw Failure(ErrorCode::kInvalidArgument,
                    fmt::format("{}: variant \"{}\" does not fit the base: {}",
                                member.path.string(), member.name, mismatch));
    }
    variants_.push_back(variant);
  }
}

std::shared_ptr<const Variant> ModelFamily::find(std::string_view name) const {
  MutexLock lock(mutex_);
  auto found =
      std::ranges::find_if(variants_, [&](const auto& variant) { return variant->name == name; });
  return found == variants_.end() ? nullptr : *found;
}

std::shared_ptr<const Variant> ModelFamily::get(std::string_view name) const {
  if (auto variant = find(name)) return variant;
  std::vector<std::string> names;
  for (const auto& variant : variants()) names.push_back(variant->name);
  throw Failure(ErrorCode::kNotFound,
                fmt::format("model \"{}\" is not in family \"{}\": there are {}", name, file_.name,
                            fmt::join(names, ", ")));
}

std::vector<std::shared_ptr<const Variant>> ModelFamily::variants() const {
  MutexLock lock(mutex_);
  return variants_;
}

void ModelFamily::add_adapter(const std::string& name, const std::filesystem::path& folder) {
  BaseTokenizer tokenizer(file_.base.path);
  add_adapter(name, folder, tokenizer);
}

void ModelFamily::add_adapter(const std::string& name,
                              const std::filesystem::path& folder,
                              BaseTokenizer& tokenizer) {
  const AdapterOpener opener(folder);
  tokenizer.require_fit(opener);
  add_adapter(name, folder, AdapterFiles(opener, config(), precision_).pack(ops_));
}

void ModelFamily::add_adapter(const std::string& name,
                              const std::filesystem::path& folder,
                              std::shared_ptr<const Adapter> adapter) {
  if (auto before = find(name); before && !before->adapter) {
    throw Failure(
        ErrorCode::kInvalidArgument,
        fmt::format("adapter \"{}\": the name belongs to a full checkpoint of the family; take "
                    "another one",
                    name));
  }
  auto variant = std::make_shared<Variant>();
  variant->name = name;
  variant->parent = base_->name;
  variant->path = folder;
  variant->transformer = base_->transformer;
  variant->adapter = std::move(adapter);
  variant->model_digest = base_->model_digest;
  variant->adapter_digest = variant->adapter->digest;
  variant->pooling = pooling_of(name, folder);
  MutexLock lock(mutex_);
  auto found =
      std::ranges::find_if(variants_, [&](const auto& other) { return other->name == name; });
  if (found == variants_.end()) {
    variants_.push_back(std::move(variant));
  } else {
    *found = std::move(variant);
  }
}

Pooling ModelFamily::pooling_of(std::string_view name, const std::filesystem::path& folder) const {
  auto member = std::ranges::find_if(file_.variants, [&](const FamilyFile::Member& other) {
    return other.name == name && other.adapter == folder;
  });
  return member == file_.variants.end() ? Pooling::kNone : member->pooling;
}

bool ModelFamily::remove_adapter(std::string_view name) {
  MutexLock lock(mutex_);
  return std::erase_if(variants_, [&](const auto& variant) {
           return variant->name == name && variant->adapter;
         }) > 0;
}

}  // namespace droidspeak
