#include "engine/reading_once.h"

#include <algorithm>

namespace droidspeak {

bool ReadingOnce::should_wait(Sequence& sequence,
                              Sequences running,
                              Sequences leaving,
                              size_t num_waiting) const {
  if (sequence.num_shareable_blocks() == 0 || sequence.reads_every_row()) return false;
  auto is_sender = [&](const auto& other) { return is_storing_for(*other, sequence); };
  if (std::ranges::any_of(leaving, is_sender)) return true;
  const SharingRequest& sharing = sequence.request.sharing;
  if (sharing.mode == SharingRequest::Mode::kExplicit && sharing.plan != "auto") return false;
  auto is_reader = [&](const auto& other) { return is_reading_for(*other, sequence, num_waiting); };
  return std::ranges::any_of(running, is_reader) || std::ranges::any_of(leaving, is_reader);
}

bool ReadingOnce::is_reading_for(const Sequence& other,
                                 Sequence& sequence,
                                 size_t num_waiting) const {
  if (!other.writer || other.exact_keys.empty() || other.choice.refills_inputs) return false;
  if (other.exact_keys.front() != sequence.exact_keys.front()) return false;
  auto known = static_cast<size_t>(other.num_stored_blocks);
  size_t end = std::min(sequence.num_shareable_blocks(), other.exact_keys.size());
  if (known >= end || other.exact_keys[known] != sequence.exact_keys[known]) return false;
  bool is_explicit = sequence.request.sharing.mode == SharingRequest::Mode::kExplicit;
  return other.choice.is_exact() ? !is_explicit : is_worth_waiting(sequence, other, num_waiting);
}

// A sender that has just answered is still storing what the sequence would take from it. The copies
// are quicker than computing, and a receiver often comes at once.
bool ReadingOnce::is_storing_for(const Sequence& sender, const Sequence& sequence) const {
  const SharingRequest& sharing = sequence.request.sharing;
  bool is_explicit = sharing.mode == SharingRequest::Mode::kExplicit;
  if (is_explicit) {
    auto named = chooser_.named_sender(sharing);
    if (sharing.plan == "full" || !named || !is_same_model(*named, *sender.variant)) return false;
  }
  bool is_off = sharing.mode == SharingRequest::Mode::kOff || sharing_ == SharingMode::kOff;
  if ((!is_explicit && is_off) || !sender.choice.is_exact()) return false;
  auto known = static_cast<size_t>(sender.num_stored_blocks);
  if (known >= std::min(sequence.num_shareable_blocks(), sender.exact_keys.size())) return false;
  if (sender.exact_keys[known] == sequence.exact_keys[known]) return true;
  if (sender.request.cache_salt != sequence.request.cache_salt ||
      !books_.may_share(*sender.variant, *sequence.variant))
    return false;
  auto end = static_cast<std::ptrdiff_t>((known + 1) * kBlockTokens);
  return std::equal(sequence.tokens.begin(), sequence.tokens.begin() + end, sender.tokens.begin());
}

// `reader` follows a plan. What it makes serves those who would take the same blocks with the same
// plan, and have the time.
bool ReadingOnce::is_worth_waiting(Sequence& sequence,
                                   const Sequence& reader,
                                   size_t num_waiting) const {
  if (sequence.waits_for == reader.id) return true;
  const PrefillChoice& read = reader.choice;
  if (read.source() != PrefillChoice::Source::kSender || reader.num_stored_blocks > 0) return false;
  size_t wanted = std::min(sequence.num_shareable_blocks(), read.stored.num_blocks());
  if (reader.exact_keys[wanted - 1] != sequence.exact_keys[wanted - 1]) return false;
  bool adds_nothing = read.stored.plan.is_reuse_all() && wanted == sequence.num_shareable_blocks();
  if (adds_nothing) return false;
  PrefillChoice choice = chooser_.choose(sequence, num_waiting);
  bool is_same = choice.source() == PrefillChoice::Source::kSender &&
                 choice.provenance == read.provenance && choice.stored.num_blocks() == wanted;
  if (!is_same) return false;
  auto now = std::chrono::steady_clock::now();
  double left = read.predicted_seconds - seconds_between(reader.admitted, now);
  if (!chooser_.has_time(sequence, std::max(left, 0.0))) return false;
  sequence.waits_for = reader.id;
  return true;
}

}  // namespace droidspeak
