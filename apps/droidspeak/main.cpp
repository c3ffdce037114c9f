#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log_sink.h"
#include "command.h"
#include "version.h"

namespace droidspeak {

namespace {

CLI::Validator bounded(const char* name, const char* expected, bool (*fits)(double)) {
  auto describe = [expected, fits](const std::string& text) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    const bool is_number = !text.empty() && *end == '\0' && std::isfinite(value);
    return is_number && fits(value) ? "" : fmt::format("{} is not {}", text, expected);
  };
  return {describe, name};
}

}  // namespace

CLI::Validator above_zero() {
  return bounded("POSITIVE", "a number above 0", [](double value) { return value > 0; });
}

CLI::Validator not_negative() {
  return bounded("NONNEGATIVE", "0 or a number above it", [](double value) { return value >= 0; });
}

CLI::Validator whole_seed() {
  return {[](const std::string& text) {
            uint64_t seed = 0;
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
            const bool is_whole = error == std::errc() && end == text.data() + text.size();
            return is_whole ? "" : fmt::format("{} is not 0 to 18446744073709551615", text);
          },
          "UINT64"};
}

CLI::Validator not_empty(const char* expected) {
  auto describe = [expected](const std::string& value) {
    return value.empty() ? fmt::format("an empty value; expected {}", expected) : "";
  };
  return {describe, ""};
}

void check_plan_has_sender(const std::string& plan, const std::string& sender) {
  if (!sender.empty() || plan == "auto" || plan == "full") return;
  throw CLI::ValidationError(fmt::format("--plan {}", plan),
                             "without --sender there is nothing to reuse; expected auto or full");
}

void add_output_options(CLI::App& command, CommonOptions& options) {
  command.add_flag("--json", options.wants_json, "One JSON document on stdout; logs on stderr");
  command.add_option("--threads", options.threads, "CPU threads (0: one per core)")
      ->check(CLI::Range(0, 1024));
  command.add_option("--device", options.device, "Where to compute")
      ->check(CLI::IsMember({"cpu", "cuda", "auto"}))
      ->capture_default_str();
}

namespace {

void add_remote_options(CLI::App& command, CommonOptions& options) {
  auto* remote = command
                     .add_option("--remote-cache", options.remote_cache,
                                 "Remote tier in Redis or Valkey: "
                                 "redis://[user:password@]host:port[,host:port...], or "
                                 "rediss:// with TLS (none: no remote tier)")
                     ->envname("DROIDSPEAK_REMOTE_CACHE");
  command
      .add_option(
          "--remote-secret-file", options.remote_secret_file,
          "The family's secret, 16 bytes or more: what it does not authenticate is not used")
      ->needs(remote);
  command
      .add_option("--remote-ca-file", options.remote_ca_file,
                  "Who signs the certificates of rediss:// servers (PEM; none: whom this machine "
                  "trusts)")
      ->needs(remote);
  command
      .add_option("--remote-format", options.remote_format,
                  "K/V in the remote tier: as it is, in 8 bits, coded in 3.2 bits, or whichever is "
                  "fastest over the link")
      ->check(CLI::IsMember({"auto", "raw", "int8", "coded"}))
      ->capture_default_str()
      ->needs(remote);
  command
      .add_option("--peer-listen", options.peer_listen,
                  "HOST:PORT by which other nodes of the family reach this one: they read from its "
                  "memory, and it from theirs; who has what is said in --remote-cache (none: no "
                  "peers)")
      ->needs(remote);
}

}  // namespace

void add_model_options(CLI::App& command, CommonOptions& options) {
  command.add_option("--family", options.family, "family.json, or the folder that holds it")
      ->capture_default_str();
  add_output_options(command, options);
  command
      .add_option(
          "--precision", options.precision,
          "fast: quantised weights stay quantised, and a prompt's attention may be in 16 bits; "
          "exact: 32-bit floats throughout")
      ->check(CLI::IsMember({"fast", "exact"}))
      ->capture_default_str();
  command
      .add_option("--max-model-len", options.max_model_len,
                  "Longest prompt plus answer in tokens (0: what the model allows)")
      ->check(not_negative());
  command
      .add_option("--kv-memory", options.kv_memory,
                  "Paged K/V memory (auto: 1GiB; on a GPU what its memory leaves)")
      ->capture_default_str();
  command.add_option("--cache-memory", options.cache_memory, "Host tier of the cache store")
      ->capture_default_str();
  auto* folder = command.add_option("--cache-dir", options.cache_dir,
                                    "Disk tier of the cache store (none: no disk tier)");
  command.add_option("--cache-disk", options.cache_disk, "Size of the disk tier")
      ->capture_default_str()
      ->needs(folder);
  command
      .add_option("--cache-format", options.cache_format,
                  "K/V on disk: as it is, in 8 bits (half the size), or coded (a fifth)")
      ->check(CLI::IsMember({"raw", "int8", "coded"}))
      ->capture_default_str()
      ->needs(folder);
  add_remote_options(command, options);
  command.add_option("--kv-dtype", options.kv_dtype, "Type of K/V values")
      ->check(CLI::IsMember({"auto", "f32", "f16", "bf16", "int8"}))
      ->capture_default_str();
}

void print_json(const nlohmann::json& value) {
  fmt::print("{}\n", value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

namespace {

// Names what was not understood also where something is missing.
std::string failure_message(const CLI::App* app, const CLI::Error& error) {
  std::string message = CLI::FailureMessage::simple(app, error);
  const std::vector<std::string> rest = app->remaining(true);
  if (rest.empty() || error.get_name() == "ExtrasError") return message;
  return fmt::format("\"{}\" is not known here. {}", rest.front(), message);
}

// Every comparison with it is false, so it passes all bounds.
const CLI::Validator kNotNan(
    [](const std::string& value) {
      return std::isnan(std::strtod(value.c_str(), nullptr)) ? value + " is not a number" : "";
    },
    "");

void refuse_nan(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_type_name().starts_with("FLOAT")) option->check(kNotNan);
  }
  for (CLI::App* command : app.get_subcommands({})) refuse_nan(*command);
}

int run(int argc, char** argv) {
  CLI::App app(
      "DroidSpeak serves the fine-tuned variants of one base model and lets each start from the "
      "caches of the others.");
  app.name("droidspeak");
  app.require_subcommand(1);
  app.failure_message(failure_message);
  app.set_version_flag("--version", version_text, "Version, commit and features");
  app.footer("Example: droidspeak generate --model base --prompt 'What is the capital of France?'");
  add_generate(app);
  add_score(app);
  add_tokenize(app);
  add_bench(app);
  add_profile(app);
  add_evaluate(app);
  add_serve(app);
  add_inspect(app);
  add_family(app);
  add_supported(app);
  refuse_nan(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return 0;
}

}  // namespace
}  // namespace droidspeak

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  droidspeak::log_to_stderr();
  try {
    return droidspeak::run(argc, argv);
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "droidspeak: out of memory\n");
  } catch (const std::exception& error) {
    fmt::print(stderr, "droidspeak: {}\n", error.what());
  }
  return 1;
}
