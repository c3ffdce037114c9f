// Writes a family.json from files that lie on a disk.
#include <algorithm>
#include <cctype>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/utf8.h"
#include "command.h"
#include "formats/byte_reader.h"
#include "model/gguf_adapter.h"
#include "sharing/plan_book.h"
#include "sharing/plan_books.h"
#include "sharing/translation.h"
#include "workspace.h"

namespace droidspeak {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct InitOptions {
  CommonOptions common;
  std::string base;
  std::vector<std::string> variants;
  std::string out;
  std::string name;
};

[[noreturn]] void refuse(const std::string& what) {
  throw Failure(ErrorCode::kInvalidArgument, what);
}

// What family.json can say.
void require_utf8(const std::string& text) {
  if (valid_utf8_prefix(text) != text.size())
    refuse(fmt::format("{}: names and paths must be UTF-8, for family.json holds them",
                       in_quotes(text)));
}

// Single files of a folder that is meant.
void refuse_part_of_folder(const fs::path& path) {
  const std::string extension = path.extension().string();
  if (fs::is_regular_file(path) && (extension == ".safetensors" || extension == ".json"))
    refuse(fmt::format("{}: expected a GGUF file or a folder: give {}", path.string(),
                       path.parent_path().string()));
}

// Absolute, without a slash behind a folder; links keep their names.
fs::path full_path_of(const fs::path& path) {
  const fs::path full = fs::absolute(path).lexically_normal();
  return full.has_filename() ? full : full.parent_path();
}

// "NAME=PATH", or a path whose last part is the name.
FamilyFile::Member member_of(const std::string& argument) {
  require_utf8(argument);
  const size_t sign = argument.find('=');
  const bool is_named = sign != std::string::npos && !fs::exists(argument);
  const fs::path path = is_named ? argument.substr(sign + 1) : argument;
  if (path.empty()) refuse(fmt::format("\"{}\" names no file or folder", argument));
  if (!fs::exists(path)) refuse(fmt::format("{}: no such file or folder", path.string()));
  FamilyFile::Member member;
  const fs::path full = full_path_of(path);
  refuse_part_of_folder(full);
  const fs::path last = fs::is_directory(full) ? full.filename() : full.stem();
  member.name = is_named ? argument.substr(0, sign) : last.string();
  const bool is_plain = std::ranges::all_of(member.name, [](unsigned char c) {
    return c >= 0x80 || std::isalnum(c) != 0 ||
           std::string_view("-_.:+@").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (member.name.empty() || member.name.size() > 256 || !is_plain)
    refuse(
        fmt::format("{}: its name is \"{}\": expected 1 to 256 letters, digits or -_.:+@ "
                    "(NAME=PATH gives it another)",
                    argument, member.name));
  const bool is_adapter = fs::exists(full / "adapter_config.json") || is_gguf_adapter(full);
  (is_adapter ? member.adapter : member.path) = full;
  return member;
}

// The file to write, in a folder that is there or can be made.
fs::path out_path(const std::string& out) {
  require_utf8(out);
  if (out.empty()) refuse("--out names no file or folder");
  fs::path path = fs::weakly_canonical(fs::absolute(out));
  if (path.extension() != ".json") path /= "family.json";
  if (fs::exists(path)) refuse(fmt::format("{} exists: --out must name a new file", path.string()));
  fs::path folder = path.parent_path();
  while (!fs::exists(folder)) folder = folder.parent_path();
  if (!fs::is_directory(folder))
    refuse(fmt::format("--out {}: {} is a file: expected a folder", out, folder.string()));
  return path;
}

FamilyFile family_of(const InitOptions& options) {
  FamilyFile file;
  file.path = out_path(options.out);
  file.base = member_of(options.base);
  if (file.base.path.empty())
    refuse(fmt::format("{} is an adapter: the base must be a GGUF file or a Hugging Face folder",
                       options.base));
  require_utf8(options.name);
  file.name = options.name.empty() ? file.base.name : options.name;
  std::set<std::string> names{file.base.name};
  for (const std::string& argument : options.variants) {
    file.variants.push_back(member_of(argument));
    if (!names.insert(file.variants.back().name).second)
      refuse(fmt::format("{}: the name \"{}\" is taken: give it another one, NAME=PATH", argument,
                         file.variants.back().name));
  }
  return file;
}

// Throws Failure where `serve` would refuse it, and with it the family.
void require_usable(const PlanBook& book, const fs::path& path, const ModelConfig& config) {
  if (book.num_layers != config.num_layers)
    refuse(fmt::format("num_layers is {}: the model has {}", book.num_layers, config.num_layers));
  if (book.maps_file.empty()) return;
  check_translation(book.maps_file, config.num_layers, config.kv_columns(), config.d_model);
  require_own_maps(book, path, digest_of_maps(book.maps_file));
}

// Plan books where `next_commands` has them written, of pairs of this family. Whether they are for
// these very weights shows when they are used, and in `inspect`.
std::vector<fs::path> books_beside(const FamilyFile& file) {
  std::set<std::string> names{file.base.name};
  for (const FamilyFile::Member& member : file.variants) names.insert(member.name);
  const ModelConfig config = load_config(file.base.path);
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(file.path.parent_path() / "plans", error))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  std::ranges::sort(files);
  std::vector<fs::path> taken;
  std::vector<PlanBook> books;
  for (const fs::path& path : files) {
    try {
      const PlanBook book = load_plan_book(path);
      if (!names.contains(book.sender) || !names.contains(book.receiver)) continue;
      require_usable(book, path, config);
      auto is_other = [&](const PlanBook& other) { return may_be_for_one_pair(book, other); };
      if (std::ranges::any_of(books, is_other))
        refuse(fmt::format("there is another one for {} from {}", book.receiver, book.sender));
      books.push_back(book);
      taken.push_back(path);
    } catch (const Failure& failure) {
      fmt::print(stderr, "droidspeak: {} is left out: {}\n", path.string(), failure.what());
    }
  }
  return taken;
}

// Throws Failure unless all members fit.
std::vector<MemberCheck> require_fit(const FamilyFile& file) {
  std::string problems;
  std::vector<MemberCheck> members = check_members(file);
  for (const MemberCheck& member : members) {
    if (!member.problem.empty())
      problems += fmt::format("{}\"{}\" ({}): {}", problems.empty() ? "" : "; ", member.name,
                              member.path.string(), member.problem);
  }
  if (!problems.empty()) refuse(fmt::format("no family.json was written: {}", problems));
  return members;
}

json describe(const FamilyFile& file) {
  auto entry = [&](const FamilyFile::Member& member) {
    const bool is_adapter = !member.adapter.empty();
    const fs::path& path = is_adapter ? member.adapter : member.path;
    return json{{"name", member.name},
                {is_adapter ? "adapter" : "path",
                 path.lexically_relative(file.path.parent_path()).string()}};
  };
  json variants = json::array();
  for (const FamilyFile::Member& member : file.variants) variants.push_back(entry(member));
  json family = {{"name", file.name}, {"base", entry(file.base)}, {"variants", variants}};
  for (const fs::path& book : file.plan_books)
    family["plan_books"].push_back(book.lexically_relative(file.path.parent_path()).string());
  return family;
}

// One word for a shell.
std::string as_word(const std::string& text) {
  auto is_plain = [](unsigned char c) {
    return c >= 0x80 || std::isalnum(c) != 0 ||
           std::string_view("-_.:+@/,%").find(static_cast<char>(c)) != std::string_view::npos;
  };
  if (std::ranges::all_of(text, is_plain)) return text;
  std::string word = "'";
  for (char c : text) word += c == '\'' ? "'\\''" : std::string(1, c);
  return word + "'";
}

// Activated LoRAs take the base's caches without a plan, and a pair with a book has one.
std::vector<std::string> next_commands(const FamilyFile& file,
                                       const std::vector<MemberCheck>& members) {
  std::vector<std::string> commands;
  for (const MemberCheck& member : members) {
    if (member.kind == MemberKind::kBase || member.is_activated) continue;
    const fs::path book = file.path.parent_path() / "plans" /
                          fmt::format("{}-from-{}.json", member.name, file.base.name);
    if (std::ranges::count(file.plan_books, book) > 0) continue;
    commands.push_back(fmt::format(
        "droidspeak profile --family {} --sender {} --receiver {} --data ROWS.jsonl --out {}",
        as_word(file.path.string()), file.base.name, member.name, as_word(book.string())));
  }
  commands.push_back(fmt::format("droidspeak serve --family {}", as_word(file.path.string())));
  return commands;
}

std::vector<std::string> notes_on(const std::vector<MemberCheck>& members) {
  std::vector<std::string> notes;
  for (const MemberCheck& member : members) {
    if (!member.has_tokenizer)
      notes.push_back(
          fmt::format("\"{}\" ({}): {}", member.name, member.path.string(), kNoTokenizer));
  }
  return notes;
}

void run_init(const InitOptions& options) {
  FamilyFile file = family_of(options);
  const std::vector<MemberCheck> members = require_fit(file);
  file.plan_books = books_beside(file);
  fs::create_directories(file.path.parent_path());
  const json family = describe(file);
  write_file_atomically(file.path, family.dump(2) + "\n");
  const std::vector<std::string> next = next_commands(file, members);
  const std::vector<std::string> notes = notes_on(members);
  if (options.common.wants_json)
    return print_json(
        {{"family", file.path.string()}, {"content", family}, {"notes", notes}, {"next", next}});
  fmt::print("wrote {}: {} and {} variants that fit it, {} plan books\n", file.path.string(),
             file.base.name, file.variants.size(), file.plan_books.size());
  for (const std::string& note : notes) fmt::print("note: {}\n", note);
  fmt::print("next:\n");
  for (const std::string& command : next) fmt::print("  {}\n", command);
}

}  // namespace

void add_family(CLI::App& app) {
  CLI::App* family = app.add_subcommand("family", "Make families of models");
  family->require_subcommand(1);
  family->footer("Example: droidspeak family init base.gguf qa=adapters/qa --out my/family.json");
  auto options = std::make_shared<InitOptions>();
  CLI::App* init = family->add_subcommand(
      "init", "Write a family.json from files and folders, checked to fit together");
  add_output_options(*init, options->common);
  init->add_option("base", options->base, "GGUF file or Hugging Face folder, or NAME=PATH")
      ->required();
  init->add_option(
      "variants", options->variants,
      "GGUF files, Hugging Face folders or adapters (PEFT folders, GGUF), or NAME=PATH");
  init->add_option("--out", options->out, "family.json to write, or the folder for it")->required();
  init->add_option("--name", options->name, "Name of the family (else the base's)");
  init->footer("Example: droidspeak family init base.gguf qa=adapters/qa --out my/family.json");
  init->callback([options] { run_init(*options); });
}

}  // namespace droidspeak
