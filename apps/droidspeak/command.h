// What the subcommands share: common flags, output, and how a command joins the program.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>

namespace droidspeak {

enum class OutputStyle { kText, kJson };

struct CommonOptions {
  std::string family = "models/smollm2/family.json";
  int threads = 0;  // 0: one per core
  std::string device = "auto";
  bool wants_json = false;
  std::string precision = "fast";
  int32_t max_model_len = 0;
  std::string kv_memory = "auto";
  std::string cache_memory = "2GiB";
  std::string cache_dir;
  std::string cache_disk = "8GiB";
  std::string cache_format = "raw";
  std::string remote_cache;  // with its password: never printed
  std::string remote_secret_file;
  std::string remote_ca_file;
  std::string remote_format = "auto";
  std::string peer_listen;
  std::string kv_dtype = "auto";
};

// Bounds of options; those of CLI11 tell the largest double, digit by digit.
CLI::Validator above_zero();
CLI::Validator not_negative();
// CLI11 takes what is out of range for the nearest number that is not.
CLI::Validator whole_seed();
// `expected`: "a path".
CLI::Validator not_empty(const char* expected);

// Throws for a plan that takes something from a sender where none is named.
void check_plan_has_sender(const std::string& plan, const std::string& sender);

// Flags of every command that runs a model.
void add_model_options(CLI::App& command, CommonOptions& options);
// Flags of every command.
void add_output_options(CLI::App& command, CommonOptions& options);

// Prints one JSON document on stdout.
void print_json(const nlohmann::json& value);

// Each adds its subcommand; the callback runs it. Failures are thrown.
void add_generate(CLI::App& app);
void add_score(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_bench(CLI::App& app);
void add_inspect(CLI::App& app);
void add_family(CLI::App& app);
void add_supported(CLI::App& app);
void add_profile(CLI::App& app);
void add_evaluate(CLI::App& app);
void add_serve(CLI::App& app);

// Parts of `bench`.
void add_bench_prefill(CLI::App& bench);
void add_bench_decode(CLI::App& bench);
void add_bench_reuse(CLI::App& bench);
void add_bench_serve(CLI::App& bench);

}  // namespace droidspeak
