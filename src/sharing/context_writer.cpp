#include "sharing/context_writer.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace droidspeak {

CacheIdentity exact_identity(const Variant& variant,
                             std::string salt,
                             const KvLayout& layout,
                             DType input_dtype) {
  return {.model = variant.model_digest,
          .adapter = variant.adapter_digest,
          .salt = std::move(salt),
          .provenance = {},
          .layout = layout,
          .input_dtype = input_dtype,
          .input_columns = variant.transformer->config().d_model};
}

ContextWriter::ContextWriter(Device& device,
                             const KvCache& kv,
                             CacheStore& store,
                             std::vector<int32_t> captured_layers)
    : device_(device), kv_(kv), store_(store), captured_layers_(std::move(captured_layers)) {
  std::ranges::sort(captured_layers_);
  auto repeated = std::ranges::unique(captured_layers_);
  captured_layers_.erase(repeated.begin(), repeated.end());
}

void ContextWriter::capture(int32_t layer, int32_t first_position, TensorView hidden) {
  check(hidden.row_stride == hidden.columns, "captured rows are contiguous");
  row_bytes_ = bytes_of(hidden.dtype, hidden.columns);
  std::vector<std::byte>& rows = inputs_[layer];
  size_t begin = static_cast<size_t>(first_position) * row_bytes_;
  size_t bytes = static_cast<size_t>(hidden.rows) * row_bytes_;
  if (rows.size() < begin + bytes) rows.resize(begin + bytes);
  device_.to_host(rows.data() + begin, hidden.data, bytes);
}

void ContextWriter::keep_layers(int32_t num_blocks, std::vector<int32_t> layers) {
  num_partial_blocks_ = num_blocks;
  partial_layers_ = std::move(layers);
}

void ContextWriter::write(std::span<const Digest> keys,
                          std::span<const int32_t> blocks,
                          int32_t first_block,
                          int32_t num_tokens) {
  auto lane = device_.make_copy_lane();
  lane->wait_for_compute();
  const KvLayout& layout = kv_.layout();
  auto layers = static_cast<size_t>(layout.num_layers);
  std::vector<int32_t> all_layers(layers);
  std::iota(all_layers.begin(), all_layers.end(), 0);
  std::vector<std::byte> bytes(layers * layout.layer_bytes());
  auto last_block = std::min<size_t>(static_cast<size_t>(num_tokens / kBlockTokens), keys.size());
  for (auto block = static_cast<size_t>(first_block); block < last_block; ++block) {
    std::vector<EntryBytes> entries;
    bool is_partial = block < static_cast<size_t>(num_partial_blocks_);
    for (int32_t layer : is_partial ? partial_layers_ : all_layers) {
      std::span<std::byte> part(bytes.data() + static_cast<size_t>(layer) * layout.layer_bytes(),
                                layout.layer_bytes());
      kv_.save(*lane, layer, blocks[block], part);
      entries.push_back({{EntryKind::kKeyValue, layer}, part});
    }
    size_t begin = block * kBlockTokens * row_bytes_;
    size_t size = kBlockTokens * row_bytes_;
    for (const auto& [layer, rows] : inputs_) {
      if (rows.size() >= begin + size)
        entries.push_back({{EntryKind::kLayerInput, layer}, std::span(rows).subspan(begin, size)});
    }
    lane->synchronize();
    if (entries.empty()) continue;
    store_.put(keys[block], entries, static_cast<uint32_t>(block));
  }
}

}  // namespace droidspeak
