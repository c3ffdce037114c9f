#include "sharing/plan_book.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
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

// A number that may be missing. Throws Failure naming the field.
std::optional<double> read_optional(const json& in, const char* name, const NumberRange& range) {
  if (!in.contains(name)) return std::nullopt;
  const json& value = in[name];
  if (value.is_number()) {
    double number = value.get<double>();
    if (std::isfinite(number) && number >= range.low && number <= range.high) return number;
  }
  throw Failure(ErrorCode::kInvalidArgument,
                fmt::format("{} is {}: expected {}", name, value.dump(), range.expected));
}

// One that may not. As above.
double read_number(const json& in, const char* name, const NumberRange& range) {
  in.at(name);  // throws when it is missing
  return *read_optional(in, name, range);
}

// Converting a number that does not fit would give another one. As above.
int32_t read_whole(const json& in, const char* name, int32_t low, int32_t high) {
  const json& value = in.at(name);
  if (value.is_number_unsigned()) {
    auto number = value.get<uint64_t>();
    if (number >= static_cast<uint64_t>(low) && number <= static_cast<uint64_t>(high))
      return static_cast<int32_t>(number);
  }
  throw Failure(ErrorCode::kInvalidArgument,
                fmt::format("{} is {}: expected {} to {}", name, value.dump(), low, high));
}

// As above.
const json& read_list(const json& in, const char* name, size_t most) {
  const json& list = in.at(name);
  if (list.is_array() && list.size() <= most) return list;
  throw Failure(
      ErrorCode::kInvalidArgument,
      fmt::format("{} is {}: expected a list of at most {}", name,
                  list.is_array() ? fmt::format("a list of {}", list.size()) : "no list", most));
}

constexpr int32_t kMostLayers = 1024;
constexpr size_t kMostPlans = 1024;  // each is weighed for every prompt
constexpr size_t kMostCells = size_t{1} << 20;
constexpr double kMost = std::numeric_limits<double>::max();
constexpr NumberRange kShare = {0, 1, "a number from 0 to 1"};
constexpr NumberRange kNotNegative = {0, kMost, "a number that is not negative"};

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

// A field that nobody reads may be one that was meant otherwise. As above.
void refuse_unknown(const json& in, const char* where, const std::set<std::string_view>& known) {
  if (!in.is_object()) return;  // what is asked of it next says so
  for (const auto& [name, value] : in.items()) {
    if (known.contains(name)) continue;
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{} has the field \"{}\", which is unknown: expected {}", where, name,
                              fmt::join(known, ", ")));
  }
}

PlanEntry entry_from_json(const json& in, int32_t num_layers) {
  refuse_unknown(
      in, "frontier",
      {"plan", "translated", "recomputed_layers", "relative_cost", "quality_index", "kl", "kl_ci95",
       "agreement", "score", "score_difference_ci95", "gold_lost", "gold_lost_se"});
  PlanEntry entry;
  entry.plan = parse_plan(in.at("plan").get<std::string>(), num_layers);
  entry.translated = in.at("translated").get<bool>();
  if (entry.plan.is_full(num_layers)) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("frontier: plan {} recomputes every layer: expected plans that "
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
  q.kl_low = in.at("kl_ci95").at(0).get<double>();
  q.kl_high = in.at("kl_ci95").at(1).get<double>();
  q.agreement = read_number(in, "agreement", kShare);
  q.score = read_optional(in, "score", kShare);
  if (in.contains("score_difference_ci95")) {
    q.score_low = in["score_difference_ci95"].at(0).get<double>();
    q.score_high = in["score_difference_ci95"].at(1).get<double>();
  }
  read_gold(in, q);
  return entry;
}

json digests(const Digest& model, const Digest& adapter, const std::optional<Digest>& formula) {
  json out{{"model", model.hex()}, {"adapter", adapter == Digest{} ? "" : adapter.hex()}};
  if (formula) out["formula"] = formula->hex();
  return out;
}

void read_digests(const json& in, Digest& model, Digest& adapter) {
  model = Digest::from_hex(in.at("model").get<std::string>());
  std::string text = in.at("adapter").get<std::string>();
  adapter = text.empty() ? Digest{} : Digest::from_hex(text);
}

std::optional<Digest> read_digest(const json& in, const char* name) {
  if (!in.contains(name)) return std::nullopt;
  const json& digest = in[name];
  if (digest.is_string()) return Digest::from_hex(digest.get<std::string>());
  throw Failure(ErrorCode::kInvalidArgument,
                fmt::format("{} is {}: expected 64 lower-case hex digits", name, digest.dump()));
}

void refuse_unknown_fields(const json& in) {
  refuse_unknown(
      in, "it",
      {"format", "version", "sender", "receiver", "num_layers", "data", "metric", "full_score",
       "full_gold_probability", "confirmed_contexts", "maps", "maps_sha256", "look_layer",
       "frontier", "heat_map", "sensitivity", "profile_seconds", "prefill_equivalents"});
  for (const char* side : {"sender", "receiver"}) {
    refuse_unknown(in.at(side), side, {"name", "digests"});
    refuse_unknown(in.at(side).at("digests"), "digests", {"model", "adapter", "formula"});
  }
  refuse_unknown(in.at("data"), "data", {"name", "sha256", "contexts", "context_tokens_median"});
}

void read_maps(const json& in, const std::filesystem::path& path, PlanBook& book) {
  std::filesystem::path maps = in.at("maps").get<std::string>();
  if (maps != maps.filename())
    throw Failure(
        ErrorCode::kInvalidArgument,
        fmt::format("maps is \"{}\": expected a file name beside the plan book", maps.string()));
  book.maps_digest = read_digest(in, "maps_sha256");
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
      {"full_score", book.full_score},
      {"maps", book.maps_file.filename().string()},
      {"profile_seconds", book.profile_seconds},
      {"prefill_equivalents", book.prefill_equivalents},
      {"frontier", json::array()},
      {"heat_map", json::array()},
      {"sensitivity", json::array()}};
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

PlanBook from_json(const json& in, const std::filesystem::path& path) {
  if (in.at("format") != "droidspeak plan book" || in.at("version") != kVersion) {
    throw Failure(
        ErrorCode::kInvalidArgument,
        fmt::format("format is {} version {}: expected \"droidspeak plan book\" version {}",
                    in.at("format").dump(), in.at("version").dump(), kVersion));
  }
  refuse_unknown_fields(in);
  PlanBook book;
  book.sender = in.at("sender").at("name").get<std::string>();
  book.receiver = in.at("receiver").at("name").get<std::string>();
  read_digests(in.at("sender").at("digests"), book.sender_model, book.sender_adapter);
  read_digests(in.at("receiver").at("digests"), book.receiver_model, book.receiver_adapter);
  book.sender_formula = read_digest(in.at("sender").at("digests"), "formula");
  book.receiver_formula = read_digest(in.at("receiver").at("digests"), "formula");
  book.num_layers = read_whole(in, "num_layers", 1, kMostLayers);
  const json& data = in.at("data");
  book.data_name = data.at("name").get<std::string>();
  book.data_digest = Digest::from_hex(data.at("sha256").get<std::string>());
  book.num_contexts = read_whole(data, "contexts", 0, INT32_MAX);
  book.context_tokens_median = read_whole(data, "context_tokens_median", 0, INT32_MAX);
  book.metric = in.at("metric").get<std::string>();
  book.full_score = in.at("full_score").get<double>();
  book.full_gold_probability =
      read_optional(in, "full_gold_probability", {0, 1, "a probability, 0 to 1"});
  if (in.contains("confirmed_contexts"))
    book.num_confirming = read_whole(in, "confirmed_contexts", 0, INT32_MAX);
  if (in.contains("look_layer"))
    book.look_layer = read_whole(in, "look_layer", 0, book.num_layers - 1);
  book.profile_seconds = in.at("profile_seconds").get<double>();
  book.prefill_equivalents = in.at("prefill_equivalents").get<double>();
  read_maps(in, path, book);
  for (const json& entry : read_list(in, "frontier", kMostPlans))
    book.frontier.push_back(entry_from_json(entry, book.num_layers));
  const auto translated = std::ranges::find(book.frontier, true, &PlanEntry::translated);
  if (translated != book.frontier.end() && book.maps_file.empty()) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("frontier: plan \"{}\" is translated, and maps is empty: expected "
                              "the name of the maps' file",
                              translated->plan.to_string(book.num_layers)));
  }
  for (const json& cell : read_list(in, "heat_map", kMostCells)) {
    refuse_unknown(cell, "heat_map", {"b", "c", "translated", "kl", "agreement"});
    book.heat_map.push_back(
        {read_whole(cell, "b", 0, book.num_layers), read_whole(cell, "c", 0, book.num_layers),
         cell.at("translated").get<bool>(), read_number(cell, "kl", kNotNegative),
         read_number(cell, "agreement", kShare)});
  }
  for (const json& layer : read_list(in, "sensitivity", kMostPlans)) {
    refuse_unknown(layer, "sensitivity", {"layer", "kl", "spread"});
    book.sensitivity.push_back({read_whole(layer, "layer", 0, book.num_layers - 1),
                                layer.at("kl").get<double>(), layer.at("spread").get<double>()});
  }
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
