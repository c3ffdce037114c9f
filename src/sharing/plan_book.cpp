#include "sharing/plan_book.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json_fields_once.h"
#include "base/json_scan.h"
#include "sharing/look.h"

namespace droidspeak {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;

json to_json(const PlanEntry& entry, int32_t num_layers) {
  const PlanQuality& q = entry.quality;
  json out{{"plan", entry.plan.to_string(num_layers)},
           {"translated", entry.translated},
           {"recomputed_layers", entry.plan.recomputed_layers()},
           {"relative_cost", entry.relative_cost},
           {"quality_index", entry.quality_index},
           {"kl", q.kl},
           {"kl_ci95", {q.kl_low, q.kl_high}},
           {"agreement", q.agreement}};
  if (q.score) out["score"] = *q.score;
  if (q.score_low && q.score_high) out["score_difference_ci95"] = {*q.score_low, *q.score_high};
  if (q.gold_lost && q.gold_lost_error) {
    out["gold_lost"] = *q.gold_lost;
    out["gold_lost_se"] = *q.gold_lost_error;
  }
  return out;
}

struct NumberRange {
  double low;
  double high;
  const char* expected;
};

constexpr size_t kMostShown = 100;  // bytes of a value

[[noreturn]] void refuse(std::string_view name, const json& value, std::string_view expected) {
  std::string shown = value.dump(-1, ' ', true);
  if (shown.size() > kMostShown) shown = shown.substr(0, kMostShown) + "...";
  throw Failure(ErrorCode::kInvalidArgument,
                fmt::format("{} is {}: expected {}", name, shown, expected));
}

// Throws Failure naming the field, as those below do.
const json& require(const json& in, const char* name) {
  auto found = in.find(name);
  if (found != in.end()) return *found;
  throw Failure(ErrorCode::kInvalidArgument, fmt::format("{} is missing", name));
}

bool is_within(const json& value, const NumberRange& range) {
  if (!value.is_number()) return false;
  const auto number = value.get<double>();
  return std::isfinite(number) && number >= range.low && number <= range.high;
}

std::optional<double> read_optional(const json& in, const char* name, const NumberRange& range) {
  if (!in.contains(name)) return std::nullopt;
  if (!is_within(in[name], range)) refuse(name, in[name], range.expected);
  return in[name].get<double>();
}

double read_number(const json& in, const char* name, const NumberRange& range) {
  require(in, name);
  return *read_optional(in, name, range);
}

struct NumberPair {
  double low;
  double high;
};

NumberPair read_interval(const json& in, const char* name, const NumberRange& range) {
  const json& value = require(in, name);
  if (!value.is_array() || value.size() != 2 || !is_within(value[0], range) ||
      !is_within(value[1], range) || value[0].get<double>() > value[1].get<double>()) {
    refuse(name, value, fmt::format("[low, high] in this order, each {}", range.expected));
  }
  return {value[0].get<double>(), value[1].get<double>()};
}

// Converting a number that does not fit would give another one.
int32_t read_whole(const json& in, const char* name, int32_t low, int32_t high) {
  const json& value = require(in, name);
  if (value.is_number_unsigned()) {
    auto number = value.get<uint64_t>();
    if (number >= static_cast<uint64_t>(low) && number <= static_cast<uint64_t>(high))
      return static_cast<int32_t>(number);
  }
  refuse(name, value, fmt::format("{} to {}", low, high));
}

bool read_flag(const json& in, const char* name) {
  const json& value = require(in, name);
  if (!value.is_boolean()) refuse(name, value, "true or false");
  return value.get<bool>();
}

std::string read_text(const json& in, const char* name) {
  const json& value = require(in, name);
  if (!value.is_string()) refuse(name, value, "a string");
  return value.get<std::string>();
}

const json& read_list(const json& in, const char* name, size_t most) {
  const json& list = require(in, name);
  if (list.is_array() && list.size() <= most) return list;
  throw Failure(
      ErrorCode::kInvalidArgument,
      fmt::format("{} is {}: expected a list of at most {}", name,
                  list.is_array() ? fmt::format("a list of {}", list.size()) : "no list", most));
}

// Failures of `read` say which item they are of.
template <class Read>
void read_items(const json& in, const char* name, size_t most, const Read& read) {
  const json& list = read_list(in, name, most);
  for (size_t i = 0; i < list.size(); ++i) {
    try {
      read(list[i]);
    } catch (const Failure& failure) {
      throw Failure(failure.code(), fmt::format("{}[{}]: {}", name, i, failure.what()));
    }
  }
}

constexpr int32_t kMostLayers = 1024;
constexpr size_t kMostPlans = 1024;  // each is weighed for every prompt
constexpr size_t kMostCells = size_t{1} << 20;
constexpr double kMost = std::numeric_limits<double>::max();
constexpr NumberRange kShare = {0, 1, "a number from 0 to 1"};
constexpr NumberRange kNotNegative = {0, kMost, "a number that is not negative"};
constexpr NumberRange kDifference = {-1, 1, "a number from -1 to 1"};
// None, and what profiler/metrics.h has.
constexpr std::array<std::string_view, 6> kMetrics = {
    "", "f1", "exact_match", "rouge_l", "edit_similarity", "final_number"};

void read_gold(const json& in, PlanQuality& quality) {
  quality.gold_lost = read_optional(in, "gold_lost", {-kMost, 1, "a number of at most 1"});
  quality.gold_lost_error = read_optional(in, "gold_lost_se", kNotNegative);
  if (quality.gold_lost.has_value() != quality.gold_lost_error.has_value()) {
    throw Failure(
        ErrorCode::kInvalidArgument,
        fmt::format("plan {}: gold_lost and gold_lost_se: expected both or none, found only {}",
                    in.at("plan").dump(), quality.gold_lost ? "gold_lost" : "gold_lost_se"));
  }
}

// A field that nobody reads may be one that was meant otherwise.
void require_object(const json& in,
                    std::string_view where,
                    const std::set<std::string_view>& known) {
  if (!in.is_object()) refuse(where, in, "an object");
  for (const auto& [name, value] : in.items()) {
    if (known.contains(name)) continue;
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{} has the field \"{}\", which is unknown: expected {}", where, name,
                              fmt::join(known, ", ")));
  }
}

void read_score(const json& in, PlanQuality& quality) {
  quality.score = read_optional(in, "score", kShare);
  if (!in.contains("score_difference_ci95")) return;
  const auto [low, high] = read_interval(in, "score_difference_ci95", kDifference);
  quality.score_low = low;
  quality.score_high = high;
  if (quality.score) return;
  throw Failure(ErrorCode::kInvalidArgument,
                fmt::format("plan {}: score_difference_ci95 is {}, and score is missing: expected "
                            "it too",
                            in.at("plan").dump(), in["score_difference_ci95"].dump()));
}

PlanEntry entry_from_json(const json& in, int32_t num_layers) {
  require_object(
      in, "it",
      {"plan", "translated", "recomputed_layers", "relative_cost", "quality_index", "kl", "kl_ci95",
       "agreement", "score", "score_difference_ci95", "gold_lost", "gold_lost_se"});
  PlanEntry entry;
  entry.plan = parse_plan(read_text(in, "plan"), num_layers);
  entry.translated = read_flag(in, "translated");
  if (entry.plan.is_full(num_layers)) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("plan {} recomputes every layer: expected plans that "
                              "reuse some, full prefill is not listed",
                              in.at("plan").dump()));
  }
  const int32_t recomputed = entry.plan.recomputed_layers();
  if (in.contains("recomputed_layers") &&
      read_whole(in, "recomputed_layers", 0, num_layers) != recomputed) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("plan {}: recomputed_layers is {}: expected {}", in.at("plan").dump(),
                              in["recomputed_layers"].dump(), recomputed));
  }
  entry.relative_cost = read_number(in, "relative_cost", kNotNegative);
  entry.quality_index = read_number(in, "quality_index", kShare);
  PlanQuality& q = entry.quality;
  q.kl = read_number(in, "kl", kNotNegative);
  const auto [low, high] = read_interval(in, "kl_ci95", kNotNegative);
  q.kl_low = low;
  q.kl_high = high;
  q.agreement = read_number(in, "agreement", kShare);
  read_score(in, q);
  read_gold(in, q);
  return entry;
}

json digests(const Digest& model, const Digest& adapter, const std::optional<Digest>& formula) {
  json out{{"model", model.hex()}, {"adapter", adapter == Digest{} ? "" : adapter.hex()}};
  if (formula) out["formula"] = formula->hex();
  return out;
}

Digest read_digest(const json& in, const char* name) {
  const json& value = require(in, name);
  if (!value.is_string()) refuse(name, value, "64 lower-case hex digits");
  try {
    return Digest::from_hex(value.get<std::string>());
  } catch (const Failure& failure) {
    throw Failure(failure.code(), fmt::format("{}: {}", name, failure.what()));
  }
}

std::optional<Digest> read_optional_digest(const json& in, const char* name) {
  return in.contains(name) ? std::optional(read_digest(in, name)) : std::nullopt;
}

// Of the sender, or the receiver.
struct BookSide {
  std::string name;
  Digest model, adapter;
  std::optional<Digest> formula;
};

BookSide read_side(const json& in, const char* name) {
  const json& side = require(in, name);
  require_object(side, name, {"name", "digests"});
  const json& digests = require(side, "digests");
  require_object(digests, "digests", {"model", "adapter", "formula"});
  const bool has_adapter = require(digests, "adapter") != "";
  return {read_text(side, "name"), read_digest(digests, "model"),
          has_adapter ? read_digest(digests, "adapter") : Digest{},
          read_optional_digest(digests, "formula")};
}

void read_pair(const json& in, PlanBook& book) {
  BookSide sender = read_side(in, "sender");
  BookSide receiver = read_side(in, "receiver");
  book.sender = std::move(sender.name);
  book.sender_model = sender.model;
  book.sender_adapter = sender.adapter;
  book.sender_formula = sender.formula;
  book.receiver = std::move(receiver.name);
  book.receiver_model = receiver.model;
  book.receiver_adapter = receiver.adapter;
  book.receiver_formula = receiver.formula;
}

void read_data(const json& in, PlanBook& book) {
  const json& data = require(in, "data");
  require_object(data, "data", {"name", "sha256", "contexts", "context_tokens_median"});
  book.data_name = read_text(data, "name");
  book.data_digest = read_digest(data, "sha256");
  book.num_contexts = read_whole(data, "contexts", 0, INT32_MAX);
  book.context_tokens_median = read_whole(data, "context_tokens_median", 0, INT32_MAX);
}

void read_metric(const json& in, PlanBook& book) {
  book.metric = read_text(in, "metric");
  if (std::ranges::find(kMetrics, book.metric) == kMetrics.end())
    refuse("metric", in.at("metric"), fmt::format("one of \"{}\"", fmt::join(kMetrics, "\", \"")));
  book.full_score = read_optional(in, "full_score", kShare);
}

void read_maps(const json& in, const std::filesystem::path& path, PlanBook& book) {
  std::filesystem::path maps = read_text(in, "maps");
  if (maps != maps.filename())
    throw Failure(
        ErrorCode::kInvalidArgument,
        fmt::format("maps is \"{}\": expected a file name beside the plan book", maps.string()));
  book.maps_digest = read_optional_digest(in, "maps_sha256");
  if (!maps.empty()) {
    book.maps_file = path.parent_path() / maps;
  } else if (book.maps_digest) {
    throw Failure(ErrorCode::kInvalidArgument,
                  "maps_sha256 is there, and maps is \"\": expected the name of their file");
  }
}

json to_json(const PlanBook& book) {
  json out{
      {"format", "droidspeak plan book"},
      {"version", kVersion},
      {"sender",
       {{"name", book.sender},
        {"digests", digests(book.sender_model, book.sender_adapter, book.sender_formula)}}},
      {"receiver",
       {{"name", book.receiver},
        {"digests", digests(book.receiver_model, book.receiver_adapter, book.receiver_formula)}}},
      {"num_layers", book.num_layers},
      {"data",
       {{"name", book.data_name},
        {"sha256", book.data_digest.hex()},
        {"contexts", book.num_contexts},
        {"context_tokens_median", book.context_tokens_median}}},
      {"metric", book.metric},
      {"maps", book.maps_file.filename().string()},
      {"profile_seconds", book.profile_seconds},
      {"prefill_equivalents", book.prefill_equivalents},
      {"frontier", json::array()},
      {"heat_map", json::array()},
      {"sensitivity", json::array()}};
  if (book.full_score) out["full_score"] = *book.full_score;
  if (book.full_gold_probability) out["full_gold_probability"] = *book.full_gold_probability;
  if (book.num_confirming > 0) out["confirmed_contexts"] = book.num_confirming;
  if (book.look_layer) out["look_layer"] = *book.look_layer;
  if (book.maps_digest) out["maps_sha256"] = book.maps_digest->hex();
  for (const PlanEntry& entry : book.frontier)
    out["frontier"].push_back(to_json(entry, book.num_layers));
  for (const HeatCell& cell : book.heat_map) {
    out["heat_map"].push_back({{"b", cell.b},
                               {"c", cell.c},
                               {"translated", cell.translated},
                               {"kl", cell.kl},
                               {"agreement", cell.agreement}});
  }
  for (const LayerSensitivity& layer : book.sensitivity) {
    out["sensitivity"].push_back(
        {{"layer", layer.layer}, {"kl", layer.kl}, {"spread", layer.spread}});
  }
  return out;
}

void require_format(const json& in) {
  if (!in.is_object()) refuse("it", in, "an object");
  const json& format = require(in, "format");
  const json& version = require(in, "version");
  if (format == "droidspeak plan book" && version == kVersion) return;
  throw Failure(ErrorCode::kInvalidArgument,
                fmt::format("format is {} version {}: expected \"droidspeak plan book\" version {}",
                            format.dump(), version.dump(), kVersion));
}

// Two entries of one plan would promise two things.
void add_entry(PlanBook& book, PlanEntry entry) {
  for (const PlanEntry& other : book.frontier) {
    if (other.plan != entry.plan || other.translated != entry.translated) continue;
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("plan \"{}\", {}: it is in the frontier already, expected each once",
                              entry.plan.to_string(book.num_layers),
                              entry.translated ? "translated" : "not translated"));
  }
  book.frontier.push_back(std::move(entry));
}

HeatCell cell_from_json(const json& in, int32_t num_layers) {
  require_object(in, "it", {"b", "c", "translated", "kl", "agreement"});
  HeatCell cell{read_whole(in, "b", 0, num_layers), read_whole(in, "c", 0, num_layers),
                read_flag(in, "translated"), read_number(in, "kl", kNotNegative),
                read_number(in, "agreement", kShare)};
  if (cell.b > cell.c) refuse("b", in.at("b"), fmt::format("at most c, which is {}", cell.c));
  return cell;
}

LayerSensitivity sensitivity_from_json(const json& in, int32_t num_layers) {
  require_object(in, "it", {"layer", "kl", "spread"});
  return {read_whole(in, "layer", 0, num_layers - 1), read_number(in, "kl", kNotNegative),
          read_number(in, "spread", kNotNegative)};
}

void read_measurements(const json& in, PlanBook& book) {
  read_items(in, "frontier", kMostPlans,
             [&](const json& entry) { add_entry(book, entry_from_json(entry, book.num_layers)); });
  const auto translated = std::ranges::find(book.frontier, true, &PlanEntry::translated);
  if (translated != book.frontier.end() && book.maps_file.empty()) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("frontier: plan \"{}\" is translated, and maps is empty: expected "
                              "the name of the maps' file",
                              translated->plan.to_string(book.num_layers)));
  }
  read_items(in, "heat_map", kMostCells, [&](const json& cell) {
    book.heat_map.push_back(cell_from_json(cell, book.num_layers));
  });
  read_items(in, "sensitivity", kMostPlans, [&](const json& layer) {
    book.sensitivity.push_back(sensitivity_from_json(layer, book.num_layers));
  });
}

PlanBook from_json(const json& in, const std::filesystem::path& path) {
  require_format(in);
  require_object(
      in, "it",
      {"format", "version", "sender", "receiver", "num_layers", "data", "metric", "full_score",
       "full_gold_probability", "confirmed_contexts", "maps", "maps_sha256", "look_layer",
       "frontier", "heat_map", "sensitivity", "profile_seconds", "prefill_equivalents"});
  PlanBook book;
  read_pair(in, book);
  book.num_layers = read_whole(in, "num_layers", 1, kMostLayers);
  read_data(in, book);
  read_metric(in, book);
  book.full_gold_probability =
      read_optional(in, "full_gold_probability", {0, 1, "a probability, 0 to 1"});
  if (in.contains("confirmed_contexts"))
    book.num_confirming = read_whole(in, "confirmed_contexts", 0, INT32_MAX);
  if (in.contains("look_layer"))
    book.look_layer = read_whole(in, "look_layer", 0, book.num_layers - 1);
  book.profile_seconds = read_number(in, "profile_seconds", kNotNegative);
  book.prefill_equivalents = read_number(in, "prefill_equivalents", kNotNegative);
  read_maps(in, path, book);
  read_measurements(in, book);
  return book;
}

}  // namespace

const PlanEntry* PlanBook::cheapest(double floor) const {
  const PlanEntry* best = nullptr;
  for (const PlanEntry& entry : frontier) {
    if (entry.quality_index >= floor &&
        (best == nullptr || entry.relative_cost < best->relative_cost))
      best = &entry;
  }
  return best;
}

int32_t PlanBook::first_look_layer() const {
  return look_layer.value_or(default_look_layer(num_layers));
}

std::vector<int32_t> PlanBook::transition_layers() const {
  std::set<int32_t> layers;
  for (const PlanEntry& entry : frontier) {
    if (entry.plan.needs_layer_input()) layers.insert(entry.plan.b);
  }
  return {layers.begin(), layers.end()};
}

PlanBook load_plan_book(const std::filesystem::path& path) {
  // Nothing of a book is nested so deeply, and functions over values recurse.
  constexpr JsonLimits kLimits{.depth = 16, .values = size_t{1} << 23};
  try {
    std::string text = read_file(path, size_t{64} << 20);
    if (auto excess = find_json_excess(text, kLimits))
      throw Failure(ErrorCode::kDataCorrupt, "JSON " + *excess);
    json in = json::parse(text, nullptr, false);
    if (in.is_discarded()) throw Failure(ErrorCode::kDataCorrupt, "not valid JSON");
    require_fields_once(text);
    return from_json(in, path);
  } catch (const json::exception& error) {
    throw Failure(ErrorCode::kDataCorrupt,
                  fmt::format("{}: plan book: {}", path.string(), error.what()));
  } catch (const Failure& failure) {
    throw Failure(failure.code(), fmt::format("{}: plan book: {}", path.string(), failure.what()));
  }
}

void save_plan_book(const std::filesystem::path& path, const PlanBook& book) {
  write_file_atomically(path, to_json(book).dump(1) + "\n");
}

void require_own_maps(const PlanBook& book, const std::filesystem::path& path, const Digest& maps) {
  if (!book.maps_digest || *book.maps_digest == maps) return;
  throw Failure(
      ErrorCode::kInvalidArgument,
      fmt::format("{}: maps_sha256 is {}: {} is another file, {}; restore the one that the book "
                  "was measured with, or profile the pair again",
                  path.string(), book.maps_digest->hex(), book.maps_file.string(), maps.hex()));
}

}  // namespace droidspeak
