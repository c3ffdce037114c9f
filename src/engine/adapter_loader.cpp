#include "engine/adapter_loader.h"

#include <functional>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "model/adapter_opener.h"

namespace droidspeak {
namespace {

Error stopped() {
  return {ErrorCode::kUnavailable, "the engine is shutting down"};
}

AdapterFiles read_from_disk(const AdapterOpener& adapter,
                            const ModelConfig& base,
                            Precision precision) {
  return {adapter, base, precision};
}

// Its tokenizer is held to the same as at the start.
Result<std::shared_ptr<const AdapterFiles>> try_to_read(
    const AdapterPath& path,
    const std::function<AdapterFiles(const AdapterOpener&)>& read,
    BaseTokenizer& base) {
  try {
    const AdapterOpener adapter(path);
    auto files = std::make_shared<const AdapterFiles>(read(adapter));
    for (const std::string& difference : base.require_fit(adapter))
      spdlog::warn("{}: {}", path.path.string(), difference);
    return files;
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
  auto read = [base = options_.base, precision = options_.precision,
               read = options_.read ? options_.read : read_from_disk](
                  const AdapterOpener& adapter) { return read(adapter, base, precision); };
  readers_.start([slot, state = state_, path, read = std::move(read)] {
    Result<Files> files = try_to_read(path, read, state->tokenizer);
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
