// Coded K/V decoded by the device that it is for: pieces go there as they are, a fifth of the
// values' size, and become values in the paged cache. Gives the bits that PieceDecoder gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "codec/kv_codec.h"
#include "device/device.h"
#include "ops/piece_kernel.h"

namespace droidspeak {

// A piece of one block.
struct CodedBlock {
  std::span<const std::byte> piece;  // pinned where it should go fast
  std::shared_ptr<const CodecTables> tables;
  uint32_t first_position = 0;
  int32_t block = 0;  // of the cache
};

// Thread-safe; one call works at a time. All its memory is taken at the start.
class DeviceDecoder {
 public:
  // The layout's dtype is a float's; the device outlives this.
  DeviceDecoder(Device& device, std::unique_ptr<PieceKernel> kernel, const KvLayout& layout);

  // Returns when the values of all blocks are there. Or the number of a piece that does not decode:
  // then the blocks hold anything. `kv` is the layer's.
  std::optional<size_t> decode(int32_t layer,
                               const KvLayerView& kv,
                               std::span<const CodedBlock> blocks);

 private:
  // Tables that the device has, and the turns of as many blocks as were asked for.
  struct TablesPlace {
    std::shared_ptr<const CodecTables> tables;
    Buffer memory;
    std::vector<float> first_turns;
    uint64_t last_use = 0;
  };

  TablesPlace& place_of(const std::shared_ptr<const CodecTables>& tables) REQUIRES(mutex_);
  void upload(const CodecTables& tables, Buffer& memory) REQUIRES(mutex_);
  PieceTables tables_of(const TablesPlace& place, int32_t layer) const;
  // How many leading blocks share tables and fit at a time.
  size_t count_together(std::span<const CodedBlock> blocks) const;
  std::optional<size_t> decode_together(int32_t layer,
                                        const KvLayerView& kv,
                                        std::span<const CodedBlock> blocks) REQUIRES(mutex_);
  std::optional<PieceTask> make_task(int32_t layer, const CodedBlock& block, size_t at) const;
  void put_first_turns(TablesPlace& place, const CodedBlock& block, std::span<float> turns) const;

  const KvLayout layout_;
  const size_t row_channels_;
  const std::unique_ptr<PieceKernel> kernel_;

  Mutex mutex_;
  std::unique_ptr<CopyLane> lane_ GUARDED_BY(mutex_);
  std::vector<TablesPlace> places_ GUARDED_BY(mutex_);
  Buffer pieces_ GUARDED_BY(mutex_);
  Buffer tasks_ GUARDED_BY(mutex_);         // PieceTask and first turns of each
  Buffer pinned_tasks_ GUARDED_BY(mutex_);  // the same, on the host
  Buffer is_damaged_ GUARDED_BY(mutex_);    // pinned
  uint64_t num_uses_ GUARDED_BY(mutex_) = 0;
};

// Null where the device or the layout has no need of one, or cannot.
std::shared_ptr<DeviceDecoder> make_device_decoder(Device& device, const KvLayout& layout);

}  // namespace droidspeak
