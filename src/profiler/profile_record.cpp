#include "profiler/profile_record.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"

namespace droidspeak {
namespace {

using nlohmann::json;

json to_json(const TriedPlan& tried) {
  return {tried.plan.a, tried.plan.b, tried.plan.c, tried.plan.look_permille, tried.translated};
}

TriedPlan tried_from_json(const json& in) {
  return {{in.at(0).get<int32_t>(), in.at(1).get<int32_t>(), in.at(2).get<int32_t>(),
           in.at(3).get<int32_t>()},
          in.at(4).get<bool>()};
}

json to_json(const MapShape& shape) {
  return {{"rank", shape.rank}, {"lambda", shape.lambda}};
}

MapShape shape_from_json(const json& in) {
  return {in.at("rank").get<int32_t>(), in.at("lambda").get<double>()};
}

json to_json(const std::vector<TriedPlan>& plans) {
  json out = json::array();
  for (const TriedPlan& tried : plans) out.push_back(to_json(tried));
  return out;
}

std::vector<TriedPlan> plans_from_json(const json& in) {
  std::vector<TriedPlan> plans;
  for (const json& item : in) plans.push_back(tried_from_json(item));
  return plans;
}

json to_json(const std::vector<ReferenceAnswer>& references) {
  json out = json::array();
  for (const ReferenceAnswer& reference : references) {
    json item{{"tokens", reference.tokens}, {"rows", json::binary(reference.rows)}};
    if (reference.score) item["score"] = *reference.score;
    if (reference.gold_probability) item["gold"] = *reference.gold_probability;
    out.push_back(std::move(item));
  }
  return out;
}

std::vector<ReferenceAnswer> references_from_json(const json& in) {
  std::vector<ReferenceAnswer> references;
  for (const json& item : in) {
    const json::binary_t& rows = item.at("rows").get_binary();
    references.push_back(
        {item.at("tokens").get<std::vector<int32_t>>(), std::nullopt, {rows.begin(), rows.end()}});
    if (item.contains("score")) references.back().score = item["score"].get<double>();
    if (item.contains("gold")) references.back().gold_probability = item["gold"].get<double>();
  }
  return references;
}

json to_json(const PlanRecords& plans) {
  json out = json::array();
  for (const auto& [tried, plan] : plans) {
    out.push_back({{"plan", to_json(tried)},
                   {"kl", plan.kl},
                   {"agreement", plan.agreement},
                   {"gold", plan.gold_probability},
                   {"score", plan.score}});
  }
  return out;
}

PlanRecords records_from_json(const json& in) {
  PlanRecords plans;
  for (const json& item : in) {
    plans[tried_from_json(item.at("plan"))] = {
        item.at("kl").get<std::vector<double>>(), item.at("agreement").get<std::vector<double>>(),
        item.at("gold").get<std::vector<double>>(), item.at("score").get<std::vector<double>>()};
  }
  return plans;
}

json to_json(const ProfileRecord& record) {
  json out{{"fingerprint", record.fingerprint},
           {"confirming", record.confirming},
           {"fitted", record.num_fitted},
           {"raw", record.num_raw},
           {"translated", record.num_translated},
           {"refined", record.num_refined},
           {"looked", record.num_looked},
           {"confirmed_rows", record.num_confirmed},
           {"candidates", to_json(record.candidates)},
           {"looks", to_json(record.looks)},
           {"finalists", to_json(record.finalists)},
           {"references", to_json(record.references)},
           {"plans", to_json(record.plans)},
           {"confirming_references", to_json(record.confirming_references)},
           {"confirmed", to_json(record.confirmed)},
           {"sensitivity", record.sensitivity},
           {"layer_tokens", record.layer_tokens},
           {"fit_tokens", record.fit_tokens},
           {"gate_tokens", record.gate_tokens},
           {"confirming_tokens", record.confirming_tokens},
           {"seconds", record.seconds}};
  if (record.shapes) {
    out["shapes"] = {to_json(record.shapes->kv), to_json(record.shapes->inputs),
                     record.shapes->raw_layers};
  }
  return out;
}

ProfileRecord record_from_json(const json& in) {
  ProfileRecord record;
  record.fingerprint = in.at("fingerprint").get<std::string>();
  record.confirming = in.at("confirming").get<std::string>();
  record.num_fitted = in.at("fitted").get<int32_t>();
  record.num_raw = in.at("raw").get<int32_t>();
  record.num_translated = in.at("translated").get<int32_t>();
  record.num_refined = in.at("refined").get<int32_t>();
  record.num_looked = in.at("looked").get<int32_t>();
  record.num_confirmed = in.at("confirmed_rows").get<int32_t>();
  if (in.contains("shapes")) {
    const json& shapes = in["shapes"];
    record.shapes = {shape_from_json(shapes.at(0)), shape_from_json(shapes.at(1)),
                     shapes.at(2).get<std::set<int32_t>>()};
  }
  record.candidates = plans_from_json(in.at("candidates"));
  record.looks = plans_from_json(in.at("looks"));
  record.finalists = plans_from_json(in.at("finalists"));
  record.references = references_from_json(in.at("references"));
  record.plans = records_from_json(in.at("plans"));
  record.confirming_references = references_from_json(in.at("confirming_references"));
  record.confirmed = records_from_json(in.at("confirmed"));
  record.sensitivity = in.at("sensitivity").get<std::vector<std::vector<double>>>();
  record.layer_tokens = in.at("layer_tokens").get<int64_t>();
  record.fit_tokens = in.at("fit_tokens").get<int64_t>();
  record.gate_tokens = in.at("gate_tokens").get<int64_t>();
  record.confirming_tokens = in.at("confirming_tokens").get<int64_t>();
  record.seconds = in.at("seconds").get<double>();
  return record;
}

}  // namespace

ProfileFolder::ProfileFolder(std::filesystem::path path) : path_(std::move(path)) {}

std::filesystem::path ProfileFolder::sums_path(int32_t num_fitted) const {
  return path_ / fmt::format("sums-{}.bin", num_fitted);
}

std::optional<ProfileRecord> ProfileFolder::load(const ProfileRecord& wanted, TranslationFit* fit) {
  if (!std::filesystem::exists(record_path())) return std::nullopt;
  ProfileRecord record;
  try {
    const json saved = json::from_msgpack(read_file(record_path()));
    record.fingerprint = saved.at("fingerprint").get<std::string>();
    if (record.fingerprint == wanted.fingerprint) record = record_from_json(saved);
  } catch (const json::exception& error) {
    throw Failure(ErrorCode::kDataCorrupt,
                  fmt::format("{}: damaged ({}); remove the folder to start again",
                              record_path().string(), error.what()));
  }
  if (record.fingerprint != wanted.fingerprint) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{}: the state of a profile of other models, data or options "
                              "(--precision and the rows that --max-model-len leaves are among "
                              "them); remove it or leave out --resume",
                              path_.string()));
  }
  if (record.confirming != wanted.confirming) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{}: a profile that other rows confirm; take its --confirm-data and "
                              "--confirm-contexts, remove it or leave out --resume",
                              path_.string()));
  }
  if (fit != nullptr && record.num_fitted > 0) {
    fit->load(sums_path(record.num_fitted));
    saved_sums_ = record.num_fitted;
  }
  return record;
}

void ProfileFolder::save(const ProfileRecord& record, const TranslationFit* fit) {
  std::error_code error;
  std::filesystem::create_directories(path_, error);
  if (error) {
    throw Failure(ErrorCode::kUnavailable,
                  fmt::format("{}: cannot be made ({}); choose another --out", path_.string(),
                              error.message()));
  }
  bool has_new_sums = fit != nullptr && record.num_fitted > 0 && record.num_fitted != saved_sums_;
  if (has_new_sums) fit->save(sums_path(record.num_fitted));
  std::vector<uint8_t> bytes = json::to_msgpack(to_json(record));
  write_file_atomically(
      record_path(), std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  if (!has_new_sums) return;
  std::error_code ignored;
  std::filesystem::remove(sums_path(saved_sums_), ignored);
  saved_sums_ = record.num_fitted;
}

void ProfileFolder::remove() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
  saved_sums_ = -1;
}

}  // namespace droidspeak
