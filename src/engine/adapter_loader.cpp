#include "engine/adapter_loader.h"

#include <optional>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

namespace droidspeak {
namespace {

Error stopped() {
  return {ErrorCode::kUnavailable, "the engine is shutting down"};
}

AdapterFiles read_from_disk(const AdapterPath& path, const ModelConfig& base, Precision precision) {
  return {path, base, precision};
}

Result<std::shared_ptr<const AdapterFiles>> try_to_read(const ReadAdapter& read,
                                                        const AdapterPath& path,
                                                        const ModelConfig& base,
                                                        Precision precision) {
  try {
    return std::make_shared<const AdapterFiles>(read(path, base, precision));
  } catch (const Failure& failure) {
    return failure.error();
  } catch (const std::exception& exception) {
    return Error{ErrorCode::kInternal, fmt::format("{}: {}", path.path.string(), exception.what())};
  }
}

// Held to the same as at the start.
Result<void> check_tokenizer(BaseTokenizer& base, const AdapterPath& path) {
  try {
    for (const std::string& difference : base.require_fit(path))
      spdlog::warn("{}: {}", path.path.string(), difference);
    return {};
  } catch (const Failure& failure) {
    return failure.error();
  } catch (const std::exception& exception) {
    return Error{ErrorCode::kInternal, fmt::format("{}: {}", path.path.string(), exception.what())};
  }
}

}  // namespace

AdapterLoader::AdapterLoader(Options options)
    : options_(std::move(options)),
      state_(std::make_shared<State>(options_.registry.base_path())),
      readers_(options_.patience) {}

AdapterLoader::~AdapterLoader() {
  MutexLock lock(state_->mutex);
  while (state_->num_loads > 0) state_->changed.wait(state_->mutex);
}

Result<void> AdapterLoader::load(const std::string& name,
                                 const AdapterPath& path,
                                 IfTaken if_taken) {
  AdapterRegistry& registry = options_.registry;
  if (Result<void> allowed = registry.may_add(name, if_taken); !allowed) return allowed;
  if (Result<void> begun = begin(); !begun) return begun;

  struct Ending {
    ~Ending() { loader.end(); }

    AdapterLoader& loader;
  } ending{*this};

  Result<Files> files = read(path);
  if (!files) return files.error();
  auto adapter = std::make_shared<Adapter>((*files)->begin_adapter());
  if (Result<void> packed = pack(**files, *adapter); !packed) return packed;
  return options_.inbox.call(
      [&] { return registry.add(name, (*files)->path(), std::move(adapter), if_taken); });
}

void AdapterLoader::stop() {
  MutexLock lock(state_->mutex);
  state_->is_stopped = true;
  state_->changed.notify_all();
}

Result<void> AdapterLoader::begin() {
  MutexLock lock(state_->mutex);
  if (state_->is_stopped) return stopped();
  if (state_->num_loads >= kMaxLoads) {
    return Error{ErrorCode::kExhausted,
                 fmt::format("{} adapters are being loaded already: try again later", kMaxLoads)};
  }
  ++state_->num_loads;
  return {};
}

void AdapterLoader::end() {
  MutexLock lock(state_->mutex);
  --state_->num_loads;
  state_->changed.notify_all();
}

Result<AdapterLoader::Files> AdapterLoader::read(const AdapterPath& path) {
  struct Slot {
    std::optional<Result<Files>> files;  // guarded by the state's mutex
  };

  auto slot = std::make_shared<Slot>();
  readers_.start([slot, state = state_, path, base = options_.base, precision = options_.precision,
                  read = options_.read ? options_.read : read_from_disk] {
    Result<Files> files = try_to_read(read, path, base, precision);
    if (files) {
      if (Result<void> fits = check_tokenizer(state->tokenizer, path); !fits) files = fits.error();
    }
    MutexLock lock(state->mutex);
    slot->files = std::move(files);
    state->changed.notify_all();
  });
  MutexLock lock(state_->mutex);
  while (!slot->files && !state_->is_stopped) state_->changed.wait(state_->mutex);
  return slot->files ? std::move(*slot->files) : stopped();
}

Result<void> AdapterLoader::pack(const AdapterFiles& files, Adapter& adapter) {
  for (int32_t layer = 0; layer < files.num_layers(); ++layer) {
    Result<void> packed = options_.inbox.call([&]() -> Result<void> {
      adapter.layers.push_back(files.pack_layer(options_.ops, layer));
      return {};
    });
    if (!packed) return packed;
  }
  return {};
}

}  // namespace droidspeak
