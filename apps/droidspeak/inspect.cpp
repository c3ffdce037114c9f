#include <algorithm>
#include <cmath>
#include <fstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/size.h"
#include "command.h"
#include "formats/safetensors.h"
#include "model/checkpoint.h"
#include "model/family_check.h"
#include "model/gguf_adapter.h"
#include "sharing/coded_family.h"
#include "sharing/plan_book.h"
#include "sharing/translation.h"
#include "store/cache_store.h"
#include "workspace.h"

namespace droidspeak {
namespace {

using nlohmann::json;

json describe_model(const std::filesystem::path& path) {
  Checkpoint checkpoint(path);
  const ModelConfig& c = checkpoint.config();
  json report = {{"kind", "model"},
                 {"path", path.string()},
                 {"format", checkpoint.is_gguf() ? "gguf" : "hugging face folder"},
                 {"architecture", c.architecture},
                 {"layers", c.num_layers},
                 {"hidden_size", c.d_model},
                 {"heads", c.num_heads},
                 {"kv_heads", c.num_kv_heads},
                 {"head_size", c.head_dim},
                 {"ffn_size", c.ffn_dim},
                 {"vocabulary", c.vocab_size},
                 {"context", c.max_positions},
                 {"digest", checkpoint.digest().hex()},
                 {"intact", true}};
  if (c.experts.count > 0) {
    report["experts"] = c.experts.count;
    report["experts_of_token"] = c.experts.per_row;
    report["expert_size"] = c.experts.ffn_dim;
  }
  return report;
}

// Columns of the maps whose names begin so, as the file itself has them; 0: there are none.
int32_t columns_of(const SafetensorsFile& maps, std::string_view kind) {
  for (const FileTensor& tensor : maps.tensors()) {
    if (tensor.name.starts_with(kind) && tensor.name.ends_with(".bias") && tensor.shape.size() == 1)
      return static_cast<int32_t>(tensor.shape[0]);
  }
  return 0;
}

// Values included. How wide the models are a book does not say: that shows in `inspect` of a
// family.
void check_maps(const PlanBook& book, const std::filesystem::path& path) {
  if (!std::filesystem::exists(book.maps_file)) {
    throw Failure(ErrorCode::kNotFound, fmt::format("{}: its translation maps {} are missing",
                                                    path.string(), book.maps_file.string()));
  }
  try {
    const SafetensorsFile maps(book.maps_file);
    static_cast<void>(load_translation(book.maps_file, book.num_layers, columns_of(maps, "kv.") / 2,
                                       columns_of(maps, "input.")));
    require_own_maps(book, path, digest_of_maps(book.maps_file));
  } catch (const Failure& failure) {
    throw Failure(failure.code(), fmt::format("{}: its translation maps cannot be used: {}",
                                              path.string(), failure.what()));
  }
}

json describe_plan_book(const std::filesystem::path& path) {
  PlanBook book = load_plan_book(path);
  json plans = json::array();
  for (const PlanEntry& entry : book.frontier) {
    plans.push_back({{"plan", entry.plan.to_string(book.num_layers)},
                     {"translated", entry.translated},
                     {"kl", entry.quality.kl},
                     {"quality_index", entry.quality_index},
                     {"relative_cost", entry.relative_cost}});
  }
  bool has_maps = !book.maps_file.empty();
  if (has_maps) check_maps(book, path);
  return {{"kind", "plan book"},
          {"path", path.string()},
          {"sender", book.sender},
          {"receiver", book.receiver},
          {"contexts", book.num_contexts},
          {"translated", has_maps},
          {"frontier", plans},
          {"intact", true}};
}

const char* name_of(MemberKind kind) {
  switch (kind) {
    case MemberKind::kBase:
      return "base";
    case MemberKind::kCheckpoint:
      return "checkpoint";
    case MemberKind::kAdapter:
      return "adapter";
  }
  return "";
}

json describe_member(const MemberCheck& member) {
  json row = {{"name", member.name},
              {"kind", name_of(member.kind)},
              {"path", member.path.string()},
              {"fits", member.problem.empty()}};
  if (!member.problem.empty()) row["problem"] = member.problem;
  if (!member.has_tokenizer) row["note"] = kNoTokenizer;
  if (!member.differences.empty()) row["differences"] = member.differences;
  return row;
}

// How finely caches are coded, as `serve` would read it.
json describe_codec_steps(const FamilyFile& file) {
  json row = {{"path", file.codec_steps.string()}, {"fits", true}};
  try {
    static_cast<void>(read_step_factors(file.codec_steps, load_config(file.base.path)));
  } catch (const Failure& failure) {
    row["fits"] = false;
    row["problem"] = failure.what();
  }
  return row;
}

// Says for every variant whether it fits. Where all do, everything is loaded, so that what is wrong
// with weights shows here, too.
json describe_family(const std::filesystem::path& path) {
  json report = {{"kind", "family"}, {"path", path.string()}, {"variants", json::array()}};
  const FamilyFile file = read_family_file(path);
  report["name"] = file.name;
  bool fits = true;
  for (const MemberCheck& member : check_members(file)) {
    report["variants"].push_back(describe_member(member));
    fits = fits && member.problem.empty();
  }
  if (fits && !file.codec_steps.empty()) {
    report["codec_steps"] = describe_codec_steps(file);
    fits = report["codec_steps"]["fits"].get<bool>();
  }
  report["intact"] = fits;
  if (!fits) return report;
  CommonOptions options;
  options.family = path.string();
  options.device = "cpu";
  options.kv_memory = "64MiB";
  Workspace workspace(options, {});
  for (json& row : report["variants"]) {
    auto variant = workspace.family->get(row["name"].get<std::string>());
    row["parent"] = variant->parent;
    row["bytes"] =
        variant->adapter ? variant->adapter->bytes() : variant->transformer->weights().bytes();
    if (is_activated(*variant)) row["invocation_tokens"] = variant->adapter->invocation;
    row["digest"] = (variant->adapter ? variant->adapter_digest : variant->model_digest).hex();
  }
  std::vector<std::string> skipped = workspace.books->unused(*workspace.family);
  report["plan_books"] = json::array();
  for (const PairBook& pair : workspace.books->pairs()) {
    if (!pair.why_unused(*workspace.family))
      report["plan_books"].push_back(
          fmt::format("{} from {}", pair.book.receiver, pair.book.sender));
  }
  report["skipped_plan_books"] = skipped;
  report["intact"] = skipped.empty();
  return report;
}

json describe_cache(const std::filesystem::path& path) {
  CacheFolderReport report = inspect_cache_folder(path);
  if (report.files == 0 && !std::filesystem::is_empty(path) &&
      !std::filesystem::exists(path / "tmp")) {
    throw Failure(ErrorCode::kNotFound,
                  fmt::format("{}: expected a cache folder, or one with family.json, "
                              "adapter_config.json or config.json: it holds none of these, and no "
                              "cached blocks",
                              path.string()));
  }
  return {{"kind", "cache folder"},          {"path", path.string()}, {"files", report.files},
          {"entries", report.entries},       {"bytes", report.bytes}, {"damaged", report.damaged},
          {"intact", report.damaged.empty()}};
}

// Those of one rank in the configuration: `r` must be that of the tensors. Reads all values.
// (PEFT stacks the factors of `target_parameters`: as many ranks as there are experts.)
void check_adapter(const SafetensorsFile& file, const JsonFields& config) {
  const int64_t rank = config.get_int("r", 1, 65536);
  const auto ranks = config.find_object("rank_pattern");  // PEFT writes an empty one
  const bool has_one_rank =
      (!ranks || ranks->keys().empty()) && config.is_blank("target_parameters");
  for (const FileTensor& tensor : file.tensors()) {
    const bool is_factor = (tensor.name.ends_with("lora_A.weight") ||
                            tensor.name.ends_with("lora_A.default.weight")) &&
                           tensor.shape.size() == 2;
    if (is_factor && has_one_rank && tensor.shape[0] != rank) {
      throw Failure(ErrorCode::kDataCorrupt,
                    fmt::format("{}: tensor \"{}\" has rank {}: r of adapter_config.json is {}",
                                file.path().string(), tensor.name, tensor.shape[0], rank));
    }
    if (!std::ranges::all_of(tensor.read_floats(), [](float v) { return std::isfinite(v); })) {
      throw Failure(ErrorCode::kDataCorrupt,
                    fmt::format("{}: tensor \"{}\" holds a value that is not finite",
                                file.path().string(), tensor.name));
    }
  }
}

json describe_adapter(const std::filesystem::path& path) {
  SafetensorsFile file(path / "adapter_model.safetensors");
  JsonFields config(path / "adapter_config.json");
  check_adapter(file, config);
  json report = {{"kind", "adapter"},
                 {"path", path.string()},
                 {"rank", config.get_int("r", 1, 65536)},
                 {"tensors", file.tensors().size()},
                 {"intact", true}};
  if (config.is_text("base_model_name_or_path"))
    report["made_for"] = config.get_string("base_model_name_or_path");
  if (config.has("alora_invocation_tokens"))
    report["invocation_tokens"] = config.get_ints("alora_invocation_tokens", 0, INT32_MAX);
  return report;
}

json describe_gguf_adapter(const std::filesystem::path& path) {
  const GgufFile file(path);
  json report = {{"kind", "adapter"},
                 {"path", path.string()},
                 {"architecture", file.get_string("general.architecture")},
                 {"tensors", file.tensors().size()},
                 {"intact", true}};
  if (const GgufValue* tokens = file.find("adapter.alora.invocation_tokens")) {
    if (const auto* list = std::get_if<std::vector<int64_t>>(tokens))
      report["invocation_tokens"] = *list;
  }
  return report;
}

json describe(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path))
    throw Failure(ErrorCode::kNotFound, fmt::format("{}: no such file or folder", path.string()));
  if (std::filesystem::is_directory(path)) {
    if (std::filesystem::exists(path / "family.json")) return describe_family(path / "family.json");
    if (std::filesystem::exists(path / "adapter_config.json")) return describe_adapter(path);
    if (std::filesystem::exists(path / "config.json")) return describe_model(path);
    return describe_cache(path);
  }
  if (is_gguf_adapter(path)) return describe_gguf_adapter(path);
  if (path.extension() != ".json") return describe_model(path);
  JsonFields fields(path);
  return fields.has("format") ? describe_plan_book(path) : describe_family(path);
}

void print_text(const json& value, int indent) {
  for (const auto& [key, item] : value.items()) {
    std::string pad(static_cast<size_t>(indent), ' ');
    if (item.is_array() && !item.empty() && item.front().is_object()) {
      fmt::print("{}{}:\n", pad, key);
      for (const json& element : item) fmt::print("{}  {}\n", pad, element.dump());
    } else {
      fmt::print("{}{}: {}\n", pad, key, item.is_string() ? item.get<std::string>() : item.dump());
    }
  }
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto options = std::make_shared<CommonOptions>();
  auto path = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand(
      "inspect",
      "What a model, adapter, family, plan book or cache folder holds, and whether it is intact");
  add_output_options(*command, *options);
  command->add_option("path", *path, "File or folder")->required();
  command->footer("Example: droidspeak inspect models/smollm2/family.json");
  command->callback([options, path] {
    json report = describe(*path);
    if (options->wants_json) {
      print_json(report);
    } else {
      print_text(report, 0);
    }
    if (!report["intact"].get<bool>())
      throw Failure(ErrorCode::kDataCorrupt, fmt::format("{}: not intact", *path));
  });
}

}  // namespace droidspeak
