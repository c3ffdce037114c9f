#include "workspace.h"

#include <algorithm>
#include <iterator>
#include <thread>

#include <fmt/format.h>

#include "base/error.h"
#include "base/size.h"
#include "formats/gguf.h"
#include "sharing/coded_family.h"
#include "text/prompt_differences.h"
#include "text/prompt_tokens.h"

namespace droidspeak {

std::unique_ptr<Device> make_device(const std::string& name) {
  if (name == "cpu") return make_cpu_device();
  if (name == "cuda") return make_cuda_device();
  return cuda_is_available() ? make_cuda_device() : make_cpu_device();
}

std::unique_ptr<Ops> make_ops(Device& device, const CommonOptions& options) {
  return device.kind() == DeviceKind::kCuda
             ? make_cuda_ops(device, parse_precision(options.precision))
             : make_cpu_ops(device, options.threads);
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& model_path) {
  if (std::filesystem::is_directory(model_path)) return load_hf_tokenizer(model_path);
  return load_gguf_tokenizer(GgufFile(model_path));
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& model_path,
                                          const ModelConfig& config) {
  auto tokenizer = load_tokenizer(model_path);
  if (tokenizer->vocab_size() > config.vocab_size) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{}: its tokenizer has ids up to {}: the model has {} embeddings",
                              model_path.string(), tokenizer->vocab_size() - 1, config.vocab_size));
  }
  return tokenizer;
}

std::vector<std::string> differences_of(const FamilyFile::Member& variant, const Tokenizer& base) {
  try {
    return describe_prompt_differences(base,
                                       variant.adapter.empty() ? variant.path : variant.adapter);
  } catch (const Failure& failure) {
    return {fmt::format("its prompt files could not be compared: {}", failure.what())};
  }
}

std::vector<MemberCheck> check_members(const FamilyFile& file) {
  std::vector<MemberCheck> members = check_family(file);
  MemberCheck& base = members.front();
  if (!base.problem.empty()) return members;
  try {
    const auto tokenizer = load_tokenizer(file.base.path, load_config(file.base.path));
    for (size_t i = 0; i < file.variants.size(); ++i)
      std::ranges::move(differences_of(file.variants[i], *tokenizer),
                        std::back_inserter(members[i + 1].differences));
  } catch (const Failure& failure) {
    base.problem = fmt::format("its tokenizer cannot be used: {}", failure.what());
  }
  return members;
}

Precision parse_precision(const std::string& name) {
  return name == "exact" ? Precision::kExact : Precision::kFast;
}

DType parse_kv_dtype(const std::string& name, const Device& device, Precision precision) {
  if (name == "f32") return DType::kF32;
  if (name == "f16") return DType::kF16;
  if (name == "bf16") return DType::kBF16;
  if (name == "int8") return DType::kI8;
  if (precision == Precision::kExact) return DType::kF32;
  return device.kind() == DeviceKind::kCuda ? DType::kBF16 : DType::kF16;
}

uint64_t parse_kv_memory(const std::string& text) {
  return text == "auto" ? 0 : parse_size(text);
}

namespace {

RemoteOptions remote_options(const CommonOptions& options) {
  auto refuse = [](const std::string& message) {
    return Failure(ErrorCode::kInvalidArgument, message);
  };
  Result<RedisServers> servers = parse_redis_url(options.remote_cache);
  if (!servers) {
    throw refuse(
        fmt::format("--remote-cache: {}; expected redis://[user:password@]host:port[,host:port...]",
                    servers.error().message));
  }
  if (options.remote_secret_file.empty()) {
    throw refuse(
        "--remote-cache without --remote-secret-file: whoever can write to the server could change "
        "answers. Make a secret, the same for all machines: head -c 32 /dev/urandom > FILE");
  }
  if (!options.remote_ca_file.empty() && servers->transport == RedisTransport::kPlain)
    throw refuse("--remote-ca-file: --remote-cache is redis://, without TLS; use rediss://");
  servers->ca_file = options.remote_ca_file;
  RemoteOptions remote{.servers = std::move(*servers),
                       .secret = read_remote_secret(options.remote_secret_file)};
  if (options.remote_format == "raw") remote.format = RemoteFormat::kRaw;
  if (options.remote_format == "int8") remote.format = RemoteFormat::kInt8;
  if (options.remote_format == "coded") remote.format = RemoteFormat::kCoded;
  return remote;
}

}  // namespace

StoreOptions store_options(const CommonOptions& options, Device& device) {
  StoreOptions store;
  store.device = &device;
  store.host_bytes = parse_size(options.cache_memory);
  store.disk_folder = options.cache_dir;
  store.disk_bytes = parse_size(options.cache_disk);
  if (options.cache_format == "int8") store.disk_format = DiskFormat::kInt8;
  if (options.cache_format == "coded") store.disk_format = DiskFormat::kCoded;
  if (!options.remote_cache.empty()) store.remote = remote_options(options);
  if (!options.peer_listen.empty()) {
    store.peer = {.listen = options.peer_listen,
                  .directory = store.remote.servers,
                  .secret = store.remote.secret};
  }
  return store;
}

void wait_for_remote(const CacheStore& store) {
  constexpr std::chrono::milliseconds kLongest{1000};
  const auto until = std::chrono::steady_clock::now() + kLongest;
  auto is_looked_at = [](const LinkReport& link) { return link.is_up || link.failures > 0; };
  while (std::chrono::steady_clock::now() < until &&
         !std::ranges::all_of(store.counters().of(Tier::kRemote).links, is_looked_at))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

Workspace::Workspace(const CommonOptions& options,
                     const std::vector<std::string>& models,
                     PlanBooksAre books_are)
    : device(make_device(options.device)),
      ops(make_ops(*device, options)),
      file(read_family_file(options.family)) {
  for (const std::string& model : models) {
    bool is_known = model == file.base.name;
    for (const auto& variant : file.variants) is_known = is_known || variant.name == model;
    if (is_known) continue;
    std::string names = file.base.name;
    for (const auto& variant : file.variants) names += ", " + variant.name;
    throw Failure(ErrorCode::kNotFound, fmt::format("model \"{}\" is not in {}: there are {}",
                                                    model, file.path.string(), names));
  }
  Precision precision = parse_precision(options.precision);
  family = std::make_unique<ModelFamily>(*ops, file,
                                         FamilyOptions{precision, options.max_model_len}, models);
  tokenizer = load_tokenizer(file.base.path, family->config());
  KvLayout layout =
      family->config().kv_layout(parse_kv_dtype(options.kv_dtype, *device, precision));
  int32_t max_positions = family->base()->transformer->max_positions();
  kv = std::make_unique<KvCache>(
      *device, layout,
      kv_budget(*device, layout, max_positions, parse_kv_memory(options.kv_memory)));
  stored = store_options(options, *device);
  stored.kv_layout = layout;
  stored.input_bytes = kBlockTokens * bytes_of(ops->activation_dtype(), family->config().d_model);
  stored.coded_model = coded_model_of(*family, stored);
  store = std::make_unique<CacheStore>(stored, clock);
  wait_for_remote(*store);
  runner = std::make_unique<PromptRunner>(*ops, *kv, *store);
  if (books_are == PlanBooksAre::kRead)
    books = std::make_unique<PlanBooks>(*ops, family->config(), file);
}

std::vector<int32_t> Workspace::tokenize_raw(const std::string& text) const {
  return with_begin(*tokenizer, tokenizer->encode(text, SpecialTokens::kParse));
}

void Workspace::check_length(size_t prompt_tokens, int64_t new_tokens) const {
  int64_t limit = family->base()->transformer->max_positions();
  if (prompt_tokens == 0)
    throw Failure(ErrorCode::kInvalidArgument, "the prompt is empty: expected at least one token");
  if (static_cast<int64_t>(prompt_tokens) + new_tokens > limit) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{} prompt tokens and {} new ones: the model's context holds {}",
                              prompt_tokens, new_tokens, limit));
  }
}

}  // namespace droidspeak
