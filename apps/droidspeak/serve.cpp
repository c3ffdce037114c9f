#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <thread>

#include <fmt/format.h>
#include <malloc.h>
#include <nlohmann/json.hpp>
#include <pthread.h>
#include <unistd.h>

#include "base/error.h"
#include "base/size.h"
#include "command.h"
#include "engine/engine.h"
#include "model/adapter_opener.h"
#include "model/family_tokenizer.h"
#include "server/listener.h"
#include "server/server.h"
#include "version.h"
#include "workspace.h"

namespace droidspeak {

namespace {

// So long clients and health checks hear 503 after the engine has failed; then the port closes.
constexpr std::chrono::seconds kFailureNotice{2};

struct ServeOptions {
  CommonOptions common;
  ServerOptions server;
  std::vector<std::string> api_keys;
  std::vector<std::string> admin_keys;
  std::string api_key_file;
  bool shares_between_keys = false;
  std::string max_body = "32MiB";
  std::string sharing = "on";
  std::string speculate = "forced";
  int32_t max_queue = 256;
  int32_t max_batch = 64;
  int32_t max_adapters = 64;
  double ttft_slo_ms = 0;
  double min_quality = 0.99;
  int drain_s = 30;
  bool protects_metrics = false;
  bool logs_requests = false;
};

// An empty value would mean the same as none: a server without keys or TLS where they were asked
// for.
const CLI::Validator kNotEmpty = not_empty("a path");

void add_options(CLI::App& command, ServeOptions& options) {
  add_model_options(command, options.common);
  ServerOptions& server = options.server;
  command.add_option("--host", server.host, "Address to listen on")->capture_default_str();
  command.add_option("--port", server.port, "Port to listen on (0: a free one)")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  command
      .add_option("--socket", server.socket_path,
                  "Unix socket to listen on too; only this user may connect")
      ->check(kNotEmpty);
  command.add_option("--api-key", options.api_keys,
                     "Key that clients must send; may be repeated (and $DROIDSPEAK_API_KEY)");
  command.add_option("--api-key-file", options.api_key_file, "File of keys, a line name:key each")
      ->check(kNotEmpty);
  command.add_option("--admin-key", options.admin_keys,
                     "Key that loading and unloading adapters needs (and $DROIDSPEAK_ADMIN_KEY)");
  command.add_flag("--share-between-keys", options.shares_between_keys,
                   "Let requests with different keys use each other's caches");
  command.add_option("--served-model-name", server.served_names,
                     "Name(s) of the base model in the API");
  command
      .add_option("--adapter-root", server.adapter_root,
                  "Adapters may be loaded from below this folder (default: the family's)")
      ->check(kNotEmpty)
      ->check(CLI::ExistingDirectory);
  command.add_option("--tls-cert", server.tls_certificate, "Certificate chain (PEM): serve HTTPS")
      ->check(kNotEmpty);
  command.add_option("--tls-key", server.tls_key, "Key of the certificate (PEM)")->check(kNotEmpty);
  command.add_option("--allowed-host", server.allowed_hosts,
                     "Name that clients may use for this server; may be repeated, * for any");
  command.add_option("--cors-origin", server.cors_origins,
                     "Site whose pages may call this server; may be repeated, * for all");
  command.add_option("--max-body", options.max_body, "Largest request body")->capture_default_str();
  command.add_option("--max-connections", server.max_connections, "Clients at the same time")
      ->check(above_zero())
      ->capture_default_str();
  command.add_option("--max-queue", options.max_queue, "Waiting requests before 429")
      ->check(above_zero())
      ->capture_default_str();
  command.add_option("--max-batch", options.max_batch, "Requests computed at the same time")
      ->check(above_zero())
      ->capture_default_str();
  command.add_option("--max-adapters", options.max_adapters, "Adapters loaded at the same time")
      ->check(not_negative())
      ->capture_default_str();
  command
      .add_option("--ttft-slo-ms", options.ttft_slo_ms, "Time to first token to aim for (0: none)")
      ->check(not_negative());
  command
      .add_option("--min-quality", options.min_quality, "Quality floor of plans, 1 is full prefill")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command
      .add_option(
          "--sharing", options.sharing,
          "on, off (plans that a request asks for by name are followed all the same), or plain "
          "reuse of senders' caches")
      ->check(CLI::IsMember({"on", "off", "reuse"}))
      ->capture_default_str();
  command
      .add_option(
          "--speculate", options.speculate,
          "What is drafted ahead; the tokens stay the same. forced: what a format leaves no "
          "choice about; lookup: also what answers quote from their context")
      ->check(CLI::IsMember({"none", "forced", "lookup"}))
      ->capture_default_str();
  command
      .add_option("--drain-s", options.drain_s, "Seconds that running requests have after SIGTERM")
      ->check(not_negative())
      ->capture_default_str();
  command.add_flag("--protect-metrics", options.protects_metrics,
                   "Ask for a key on /metrics too: the admin key where there is one");
  command.add_flag("--log-requests", options.logs_requests, "One JSON line per request on stderr");
}

EngineOptions engine_options(const ServeOptions& options, Device& device) {
  EngineOptions engine;
  Precision precision = parse_precision(options.common.precision);
  engine.family = {precision, options.common.max_model_len};
  engine.kv_bytes = parse_kv_memory(options.common.kv_memory);
  engine.kv_dtype = parse_kv_dtype(options.common.kv_dtype, device, precision);
  engine.store = store_options(options.common, device);
  engine.max_queue = options.max_queue;
  engine.max_batch_sequences = options.max_batch;
  engine.max_adapters = options.max_adapters;
  engine.ttft_slo_ms = options.ttft_slo_ms;
  engine.min_quality = options.min_quality;
  if (options.sharing == "off") engine.sharing = EngineOptions::Sharing::kOff;
  if (options.sharing == "reuse") engine.sharing = EngineOptions::Sharing::kPlainReuse;
  if (options.speculate == "none") engine.speculation = Speculation::kNone;
  if (options.speculate == "lookup") engine.speculation = Speculation::kLookup;
  return engine;
}

void add_key_of_environment(const char* variable, ApiKey::Role role, std::vector<ApiKey>& keys) {
  const char* value = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe): no thread sets it
  if (value == nullptr) return;
  keys.push_back({variable, value, fmt::format("environment variable {}", variable), role});
}

// Keys of the command line are named by their place: arguments have no room for names.
// Throws for what is wrong with them, before the models are loaded.
std::vector<ApiKey> checked_api_keys(const ServeOptions& options) {
  std::vector<ApiKey> keys;
  auto add = [&](const std::vector<std::string>& secrets, std::string name, ApiKey::Role role) {
    for (size_t i = 0; i < secrets.size(); ++i) {
      keys.push_back({fmt::format("{}-{}", name, i + 1), secrets[i],
                      fmt::format("--{} (number {})", name, i + 1), role});
    }
  };
  add(options.api_keys, "api-key", ApiKey::Role::kInference);
  add(options.admin_keys, "admin-key", ApiKey::Role::kAdmin);
  add_key_of_environment("DROIDSPEAK_API_KEY", ApiKey::Role::kInference, keys);
  add_key_of_environment("DROIDSPEAK_ADMIN_KEY", ApiKey::Role::kAdmin, keys);
  if (!options.api_key_file.empty()) {
    std::vector<ApiKey> from_file = read_key_file(options.api_key_file);
    keys.insert(keys.end(), from_file.begin(), from_file.end());
  }
  KeyRing checked(keys);
  if (options.protects_metrics && keys.empty()) {
    throw Failure(ErrorCode::kInvalidArgument,
                  "--protect-metrics: there is no key to ask for; expected one from --admin-key, "
                  "--api-key, --api-key-file or the environment");
  }
  if (options.shares_between_keys && keys.empty()) {
    throw CLI::ValidationError("--share-between-keys",
                               "there are no keys; expected some from --api-key, --api-key-file "
                               "or the environment");
  }
  return keys;
}

ServerOptions server_options(const ServeOptions& options, const FamilyFile& file) {
  ServerOptions server = options.server;
  server.max_body_bytes = parse_size(options.max_body);
  if (server.max_body_bytes == 0) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("--max-body {}: no request would have room; expected a size such as "
                              "32MiB",
                              options.max_body));
  }
  if (options.shares_between_keys) {
    server.shared_between_keys = ServerOptions::BetweenKeys::kCaches;
  }
  server.min_quality = options.min_quality;
  server.version = built_version();
  if (server.adapter_root.empty())
    server.adapter_root = std::filesystem::absolute(file.path).parent_path();
  if (options.protects_metrics) server.metrics_access = ServerOptions::MetricsAccess::kKey;
  if (options.logs_requests) server.log_requests = ServerOptions::LogRequests::kYes;
  return server;
}

// Blocks the signals that end the server in this thread and those it starts; wait_for_end() takes
// them.
sigset_t block_end_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

// Returns at a signal, or soon after the engine has failed.
void wait_for_end(const sigset_t& signals, const Engine& engine) {
  const timespec pause{.tv_sec = 0, .tv_nsec = 200'000'000};
  while (engine.is_healthy() && sigtimedwait(&signals, nullptr, &pause) < 0) {
  }
}

// Drains; a second signal ends the process at once.
void drain(HttpServer& server, const ServeOptions& options, const sigset_t& signals) {
  fmt::print(stderr, "draining: running requests have {} s; another signal ends at once\n",
             options.drain_s);
  std::atomic<bool> is_drained = false;
  std::thread draining([&] {
    server.drain(std::chrono::seconds(options.drain_s));
    is_drained = true;
  });
  const timespec pause{.tv_sec = 0, .tv_nsec = 20'000'000};
  while (!is_drained) {
    int signal = sigtimedwait(&signals, nullptr, &pause);
    if (signal < 0) continue;
    fmt::print(stderr, "ended by a second signal: requests may be unanswered\n");
    if (!options.server.socket_path.empty()) ::unlink(options.server.socket_path.c_str());
    std::_Exit(128 + signal);
  }
  draining.join();
}

// Many threads make and free large texts: without this every one keeps a heap of its own.
void keep_memory_flat() {
  mallopt(M_ARENA_MAX, 4);
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  mallopt(M_TRIM_THRESHOLD, 4 << 20);
}

// What keeps an adapter from being read is said when it is loaded.
std::vector<std::string> tokenizer_differences(BaseTokenizer& base,
                                               const std::filesystem::path& adapter) {
  try {
    return base.compare(AdapterOpener(adapter)).differences;
  } catch (const Failure&) {
    return {};
  }
}

// Prompts of all variants must have the same tokens, so what a variant's own files say is not used.
void warn_of_differences(const FamilyFile& file, const Tokenizer& base) {
  BaseTokenizer definition(file.base.path);
  for (const FamilyFile::Member& variant : file.variants) {
    std::vector<std::string> differences = differences_of(variant, base);
    if (!variant.adapter.empty())
      std::ranges::move(tokenizer_differences(definition, variant.adapter),
                        std::back_inserter(differences));
    for (const std::string& difference : differences)
      fmt::print(stderr, "droidspeak: variant \"{}\": {}\n", variant.name, difference);
  }
}

void run_serve(const ServeOptions& options) {
  keep_memory_flat();
  raise_descriptor_limit();
  if (int most = connections_within_limit(options.server.max_connections);
      most < options.server.max_connections) {
    fmt::print(stderr, "--max-connections {}: {}, as `ulimit -Hn` allows no more files\n",
               options.server.max_connections, most);
  }
  sigset_t signals = block_end_signals();
  std::vector<ApiKey> keys = checked_api_keys(options);
  std::unique_ptr<Device> device = make_device(options.common.device);
  std::unique_ptr<Ops> ops = make_ops(*device, options.common);
  FamilyFile file = read_family_file(options.common.family);
  std::unique_ptr<Tokenizer> tokenizer =
      load_tokenizer(file.base.path, load_config(file.base.path));
  warn_of_differences(file, *tokenizer);
  Engine engine(*ops, file, engine_options(options, *device));
  ServerOptions http = server_options(options, file);
  http.api_keys = std::move(keys);
  HttpServer server(engine, *tokenizer, http);
  bool has_socket = !options.server.socket_path.empty();
  if (options.common.wants_json) {
    nlohmann::json listening = {{"listening", server.url()}};
    if (has_socket) listening["socket"] = options.server.socket_path.string();
    print_json(listening);
  } else {
    fmt::print("listening on {}\n", server.url());
    if (has_socket) fmt::print("listening on unix:{}\n", options.server.socket_path.string());
  }
  std::fflush(stdout);
  wait_for_end(signals, engine);
  if (!engine.is_healthy()) {
    std::this_thread::sleep_for(kFailureNotice);
    server.drain(std::chrono::seconds(0));
    throw Failure(ErrorCode::kUnavailable, "the engine has failed: start the server again");
  }
  drain(server, options, signals);
}

}  // namespace

void add_serve(CLI::App& app) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App* command = app.add_subcommand("serve", "Serve a family over HTTP with OpenAI's API");
  add_options(*command, *options);
  command->footer(
      "Example: droidspeak serve --family models/smollm2/family.json --port 8080 --api-key secret");
  command->callback([options] { run_serve(*options); });
}

}  // namespace droidspeak
