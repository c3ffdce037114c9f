#include "sharing/context_writer.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <iterator>
#include <numeric>

#include "base/check.h"
#include "base/mutex.h"

namespace droidspeak {
namespace {

// Copies under way at a time.
constexpr size_t kPuttingBytes = size_t{64} << 20;

}  // namespace

CacheIdentity exact_identity(const Variant& variant,
                             std::string salt,
                             const KvLayout& layout,
                             DType input_dtype) {
  return {.model = variant.model_digest,
          .configuration = variant.transformer->configuration(),
          .adapter = variant.adapter_digest,
          .salt = std::move(salt),
          .provenance = {},
          .layout = layout,
          .input_dtype = input_dtype,
          .input_columns = variant.transformer->config().d_model};
}

Digest cache_owner(const Variant& variant) {
  Sha256 hash;
  hash.add_field('m', std::as_bytes(std::span(variant.model_digest.bytes)));
  hash.add_field('a', std::as_bytes(std::span(variant.adapter_digest.bytes)));
  return hash.finish();
}

// How many jobs have begun and not ended.
struct ContextWriter::Progress {
  // Alive as long as a job and everything that it uses.
  class Mark {
   public:
    explicit Mark(std::shared_ptr<Progress> progress) : progress_(std::move(progress)) {
      MutexLock lock(progress_->mutex);
      ++progress_->num_jobs;
    }

    ~Mark() {
      {
        MutexLock lock(progress_->mutex);
        --progress_->num_jobs;
        progress_->changed.notify_all();
      }
      if (progress_->on_stored) progress_->on_stored();
    }

    Mark(const Mark&) = delete;
    Mark& operator=(const Mark&) = delete;

   private:
    std::shared_ptr<Progress> progress_;
  };

  explicit Progress(std::function<void()> told) : on_stored(std::move(told)) {}

  const std::function<void()> on_stored;
  Mutex mutex;
  Condition changed;
  int32_t num_jobs GUARDED_BY(mutex) = 0;
};

// Rows of E, in device memory or, when there is none to spare, on the host.
struct ContextWriter::Capture {
  int32_t layer = 0;
  int32_t begin = 0;  // positions
  int32_t end = 0;
  size_t row_bytes = 0;
  std::shared_ptr<Buffer> on_device = nullptr;
  std::vector<std::byte> on_host = {};

  // Copies the rows of `block` that are here to their place in it.
  void copy_rows(CopyLane& lane, int32_t block, std::span<std::byte> to) const {
    int32_t first = std::max(begin, block * kBlockTokens);
    int32_t last = std::min(end, (block + 1) * kBlockTokens);
    if (first >= last) return;
    std::byte* place = to.data() + static_cast<size_t>(first - block * kBlockTokens) * row_bytes;
    size_t offset = static_cast<size_t>(first - begin) * row_bytes;
    size_t bytes = static_cast<size_t>(last - first) * row_bytes;
    if (on_device) {
      lane.to_host(place, static_cast<const std::byte*>(on_device->data()) + offset, bytes);
    } else {
      std::memcpy(place, on_host.data() + offset, bytes);
    }
  }

  int32_t rows_of(int32_t block) const {
    return std::max(
        0, std::min(end, (block + 1) * kBlockTokens) - std::max(begin, block * kBlockTokens));
  }
};

// Blocks on their way. Runs on the thread of WriteBack.
struct ContextWriter::Job {
  struct Block {
    int32_t number = 0;  // place in the context
    int32_t id = 0;      // place in the K/V memory
    Digest key;
    Digest owner;
    std::vector<int32_t> layers;
  };

  const KvCache& kv;
  CacheStore& store;
  const uint64_t erase_count;  // of the store when the job began
  std::vector<Block> blocks = {};
  std::vector<std::shared_ptr<const Capture>> captures = {};

  // The captured layers of which all rows of the block are there.
  std::vector<EntrySize> complete_inputs(int32_t block) const {
    std::vector<EntrySize> inputs;
    std::vector<int32_t> rows;
    for (const auto& capture : captures) {
      EntryId id{EntryKind::kLayerInput, capture->layer};
      auto found = std::ranges::find(inputs, id, &EntrySize::id);
      if (found == inputs.end()) {
        found = inputs.insert(found, {id, kBlockTokens * capture->row_bytes});
        rows.push_back(0);
      }
      rows[static_cast<size_t>(found - inputs.begin())] += capture->rows_of(block);
    }
    std::vector<EntrySize> complete;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (rows[i] == kBlockTokens) complete.push_back(inputs[i]);
    }
    return complete;
  }

  void fill(CopyLane& lane,
            const Block& block,
            std::span<const EntrySize> entries,
            const EntryRoom& room) const {
    for (size_t i = 0; i < entries.size(); ++i) {
      std::span<std::byte> to = room.bytes(i);
      if (to.empty()) continue;
      EntryId id = entries[i].id;
      if (id.kind == EntryKind::kKeyValue) {
        kv.save(lane, id.layer, block.id, to);
        continue;
      }
      for (const auto& capture : captures) {
        if (capture->layer == id.layer) capture->copy_rows(lane, block.number, to);
      }
    }
  }

  void run(CopyLane& lane) const {
    std::vector<EntryRoom> rooms;
    try {
      copy_blocks(lane, rooms);
    } catch (...) {
      wait_quietly(lane);  // copies go into the rooms
      throw;
    }
  }

  void copy_blocks(CopyLane& lane, std::vector<EntryRoom>& rooms) const {
    size_t bytes = 0;
    auto put_all = [&] {
      lane.synchronize();
      for (EntryRoom& room : rooms) store.put(std::move(room));
      rooms.clear();
      bytes = 0;
    };
    for (const Block& block : blocks) {
      std::vector<EntrySize> entries;
      for (int32_t layer : block.layers)
        entries.push_back({{EntryKind::kKeyValue, layer}, kv.layout().layer_bytes()});
      std::ranges::copy(complete_inputs(block.number), std::back_inserter(entries));
      if (entries.empty()) continue;
      auto room = store.reserve({block.key, block.owner, static_cast<uint32_t>(block.number)},
                                entries, erase_count);
      if (!room) continue;
      fill(lane, block, entries, rooms.emplace_back(std::move(*room)));
      for (const EntrySize& entry : entries) bytes += entry.bytes;
      if (bytes >= kPuttingBytes) put_all();
    }
    put_all();
  }

  static void wait_quietly(CopyLane& lane) {
    try {
      lane.synchronize();
    } catch (const std::exception&) {
      // A broken device copies nothing any more.
    }
  }
};

ContextWriter::ContextWriter(const Parts& parts, std::vector<int32_t> captured_layers)
    : parts_(parts),
      captured_layers_(std::move(captured_layers)),
      progress_(std::make_shared<Progress>(parts.on_stored)) {
  std::ranges::sort(captured_layers_);
  auto repeated = std::unique(captured_layers_.begin(), captured_layers_.end());
  captured_layers_.erase(repeated, captured_layers_.end());
}

ContextWriter::~ContextWriter() {
  wait();
}

// The rows change with the next layer, so they are set aside in order with the computation.
void ContextWriter::capture(int32_t layer, int32_t first_position, TensorView hidden) {
  check(hidden.row_stride == hidden.columns, "captured rows are contiguous");
  if (lead_) {
    int64_t wanted = int64_t{lead_->num_blocks} * kBlockTokens - first_position;
    if (wanted <= 0) return;
    hidden = hidden.row_range(0, std::min(hidden.rows, wanted));
  }
  auto capture = std::make_shared<Capture>();
  capture->layer = layer;
  capture->begin = first_position;
  capture->end = first_position + static_cast<int32_t>(hidden.rows);
  capture->row_bytes = bytes_of(hidden.dtype, hidden.columns);
  size_t bytes = static_cast<size_t>(hidden.rows) * capture->row_bytes;
  if (!parts_.write_back.is_immediate()) capture->on_device = parts_.write_back.take_buffer(bytes);
  if (capture->on_device) {
    TensorView aside = hidden;
    aside.data = capture->on_device->data();
    parts_.ops.copy(hidden, aside);
  } else {
    capture->on_host.resize(bytes);
    parts_.write_back.device().to_host(capture->on_host.data(), hidden.data, bytes);
  }
  captures_.push_back(std::move(capture));
}

void ContextWriter::keep_layers(int32_t num_blocks, std::vector<int32_t> layers) {
  num_partial_blocks_ = num_blocks;
  partial_layers_ = std::move(layers);
}

void ContextWriter::lead_with(int32_t num_blocks, const Digest& owner) {
  lead_ = Lead{num_blocks, owner};
}

void ContextWriter::store(std::span<const Digest> keys,
                          std::span<const int32_t> blocks,
                          int32_t first_block,
                          int32_t num_tokens) {
  std::vector<int32_t> all_layers(static_cast<size_t>(parts_.kv.layout().num_layers));
  std::iota(all_layers.begin(), all_layers.end(), 0);
  Job job{.kv = parts_.kv, .store = parts_.store, .erase_count = parts_.store.erase_count()};
  auto last_block = std::min(num_tokens / kBlockTokens, static_cast<int32_t>(keys.size()));
  for (int32_t block = first_block; block < last_block; ++block) {
    auto index = static_cast<size_t>(block);
    const std::vector<int32_t>& layers = block < num_partial_blocks_ ? partial_layers_ : all_layers;
    const Digest& owner = lead_ && block < lead_->num_blocks ? lead_->owner : parts_.owner;
    if (!layers.empty()) job.blocks.push_back({block, blocks[index], keys[index], owner, layers});
  }
  if (job.blocks.empty()) return;
  job.captures = captures_;
  // A block that is not full yet needs its rows again.
  std::erase_if(captures_, [&](const auto& c) { return c->end <= last_block * kBlockTokens; });
  parts_.write_back.submit([mark = std::make_shared<const Progress::Mark>(progress_),
                            job = std::move(job)](CopyLane& lane) { job.run(lane); });
}

bool ContextWriter::has_copies() const {
  MutexLock lock(progress_->mutex);
  return progress_->num_jobs > 0;
}

void ContextWriter::wait() const {
  MutexLock lock(progress_->mutex);
  while (progress_->num_jobs > 0) progress_->changed.wait(progress_->mutex);
}

}  // namespace droidspeak
