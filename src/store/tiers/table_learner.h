// Remembers the first blocks that a family writes until codec tables can be learned from them. Used
// by one thread.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "codec/kv_codec.h"
#include "store/coded_model.h"
#include "store/tiers/write_queue.h"

namespace droidspeak {

class TableLearner {
 public:
  TableLearner(CodedModel model, const KvLayout& layout);

  // Whether K/V of this layout can be coded at all.
  bool can_learn() const;
  // What was not cancelled.
  void remember(std::span<const std::shared_ptr<PendingWrite>> batch);
  bool has_seen_enough() const;

  void forget() { remembered_.clear(); }

  // From what was remembered, which is forgotten: should it not do, other blocks may.
  Result<CodecTables> learn();

 private:
  struct Remembered {
    PieceLabel label;
    std::vector<std::byte> values;
  };

  void remember(const PendingWrite& write);

  const CodedModel model_;
  const KvLayout layout_;
  std::vector<Remembered> remembered_;
};

}  // namespace droidspeak
