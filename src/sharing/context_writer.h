// Puts what a variant computed by itself into the store: K/V of every layer of full blocks, and E
// at the captured layers. Copies run beside compute (see WriteBack) straight into the store's
// memory; a block is in the store once all of it has been copied, not before.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kv/kv_cache.h"
#include "model/family.h"
#include "ops/ops.h"
#include "sharing/write_back.h"
#include "store/cache_store.h"

namespace droidspeak {

// Identity of exact caches that `variant` writes.
CacheIdentity exact_identity(const Variant& variant,
                             std::string salt,
                             const KvLayout& layout,
                             DType input_dtype);

// Whose caches they are, exact or mixed: see CacheStore::erase_owned_by().
Digest cache_owner(const Variant& variant);

// Collects E of full blocks while a context is read, then writes blocks with their K/V. Used by the
// thread that computes.
class ContextWriter {
 public:
  // All outlive the writer.
  struct Parts {
    Ops& ops;
    const KvCache& kv;
    CacheStore& store;
    WriteBack& write_back;
    Digest owner;
    std::function<void()> on_stored = {};  // when something has been; on any thread, may be empty
  };

  // `captured_layers`: where E is kept.
  ContextWriter(const Parts& parts, std::vector<int32_t> captured_layers);
  ~ContextWriter();  // waits for copies
  ContextWriter(const ContextWriter&) = delete;
  ContextWriter& operator=(const ContextWriter&) = delete;

  const std::vector<int32_t>& captured_layers() const { return captured_layers_; }

  // Whether capturing costs a copy and nothing else.
  bool captures_at_once() const { return parts_.write_back.is_immediate(); }

  // Of the first `num_blocks` blocks only K/V of these layers is written from now on.
  void keep_layers(int32_t num_blocks, std::vector<int32_t> layers);
  // The first `num_blocks` blocks are another owner's, and E is kept of them alone.
  void lead_with(int32_t num_blocks, const Digest& owner);
  // Input of `layer` for positions [first_position, first_position + hidden.rows).
  void capture(int32_t layer, int32_t first_position, TensorView hidden);
  // Begins to write the full blocks among [first_block, num_tokens / kBlockTokens) of `keys`, with
  // their captured rows. The blocks must stay as they are until has_copies() is false.
  void store(std::span<const Digest> keys,
             std::span<const int32_t> blocks,
             int32_t first_block,
             int32_t num_tokens);

  // Whether something that was begun is not in the store yet.
  bool has_copies() const;
  // Returns when there are no copies any more.
  void wait() const;

 private:
  struct Progress;
  struct Capture;
  struct Job;

  struct Lead {
    int32_t num_blocks = 0;
    Digest owner;
  };

  Parts parts_;
  std::vector<int32_t> captured_layers_;
  int32_t num_partial_blocks_ = 0;
  std::vector<int32_t> partial_layers_;
  std::optional<Lead> lead_;
  std::vector<std::shared_ptr<const Capture>> captures_;  // rows of blocks that are not written yet
  const std::shared_ptr<Progress> progress_;
};

}  // namespace droidspeak
