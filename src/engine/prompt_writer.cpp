#include "engine/prompt_writer.h"

namespace droidspeak {

// What is read exactly is stored for everybody, with E where plan books want it (what an activated
// LoRA reads in front of its invocation for its base, and like it), and what is answered behind it,
// for the next turn of a conversation; what is mixed for its own
// variant and plan, without the layers that are the sender's. What came from the own cache is there
// already.
void PromptWriter::start(Sequence& sequence) const {
  const PrefillChoice& choice = sequence.choice;
  if (sequence.max_tokens < kBlockTokens || !parts_.adapters.is_current(*sequence.variant)) return;
  if (sequence.request.wants_embedding) return;            // nobody goes on from there
  if (sequence.is_looking(Looking::Stage::kRead)) return;  // nothing is as others could use it
  std::vector<int32_t> captured;
  const bool has_base_blocks = is_activated(*sequence.variant);
  const Variant base = without_adapter(*sequence.variant);
  if (choice.is_exact())
    captured = parts_.books.captured_layers(has_base_blocks ? base : *sequence.variant);
  sequence.stored_keys = choice.is_exact() ? sequence.exact_keys : mixed_keys_of(sequence);
  sequence.num_stored_blocks = static_cast<int32_t>(choice.stored.own_keys.size());
  sequence.num_sent_blocks = sequence.num_stored_blocks;
  sequence.num_shared_blocks = choice.num_resident;  // they were found by their labels
  sequence.writer = std::make_unique<ContextWriter>(
      ContextWriter::Parts{parts_.ops, parts_.kv, parts_.store, parts_.write_back,
                           cache_owner(*sequence.variant), parts_.on_progress},
      std::move(captured));
  if (has_base_blocks) {
    sequence.writer->lead_with(static_cast<int32_t>(sequence.num_base_blocks()), cache_owner(base));
  }
  if (choice.is_exact()) return;
  sequence.writer->keep_layers(
      static_cast<int32_t>(choice.stored.sender_keys.size()),
      choice.stored.plan.recomputed_layer_list(parts_.kv.layout().num_layers));
}

std::vector<Digest> PromptWriter::mixed_keys_of(const Sequence& sequence) const {
  const PrefillChoice& choice = sequence.choice;
  return parts_.chooser.mixed_keys(sequence, choice.provenance, choice.stored.sender_keys.size());
}

void PromptWriter::store_blocks(Sequence& sequence) const {
  if (!sequence.writer || sequence.reuse) return;
  if (!parts_.adapters.is_current(*sequence.variant)) {
    if (!sequence.writer->has_copies()) sequence.writer.reset();
    return;
  }
  extend_keys(sequence);
  share_blocks(sequence);
  int32_t num_blocks = sequence.num_full_blocks();
  if (num_blocks > sequence.num_sent_blocks) {
    sequence.writer->store(sequence.stored_keys, sequence.blocks.blocks(), sequence.num_sent_blocks,
                           num_blocks * kBlockTokens);
    sequence.num_sent_blocks = num_blocks;
  }
  note_stored(sequence);
}

// The answer has filled another block.
void PromptWriter::extend_keys(Sequence& sequence) const {
  if (std::ssize(sequence.stored_keys) >= sequence.num_full_blocks()) return;
  if (sequence.choice.is_exact()) {
    sequence.exact_keys = parts_.chooser.exact_keys(sequence, *sequence.variant);
    sequence.stored_keys = sequence.exact_keys;
  } else {
    sequence.stored_keys = mixed_keys_of(sequence);
  }
}

// Blocks with tokens that were, or will be, looked at are the request's own.
void PromptWriter::share_blocks(Sequence& sequence) const {
  if (sequence.looking || !sequence.looked_at.empty()) return;
  std::span<const int32_t> blocks = sequence.blocks.blocks();
  auto end = static_cast<size_t>(sequence.num_full_blocks());
  for (size_t& i = sequence.num_shared_blocks; i < end; ++i)
    parts_.kv.pool().label(blocks[i], sequence.stored_keys[i]);
}

void PromptWriter::discard(Sequence& sequence) const {
  if (sequence.writer) sequence.writer->wait();
  for (const std::vector<Digest>* keys : {&sequence.exact_keys, &sequence.stored_keys}) {
    parts_.store.erase(*keys);
    parts_.kv.pool().forget(*keys);
  }
}

void PromptWriter::note_stored(Sequence& sequence) const {
  if (!sequence.writer || sequence.writer->has_copies()) return;
  sequence.num_stored_blocks = sequence.num_sent_blocks;
  if (sequence.is_looking(Looking::Stage::kRead)) sequence.writer.reset();
}

}  // namespace droidspeak
