// Who should wait for another sequence that is just reading, or storing, what it would take.
#pragma once

#include <memory>
#include <span>

#include "engine/prefill_chooser.h"
#include "engine/sequence.h"
#include "sharing/plan_books.h"

namespace droidspeak {

class ReadingOnce {
 public:
  // All references outlive this.
  ReadingOnce(const PlanBooks& books, const PrefillChooser& chooser, SharingMode sharing)
      : books_(books), chooser_(chooser), sharing_(sharing) {}

  using Sequences = std::span<const std::unique_ptr<Sequence>>;

  // A prompt that another sequence is just reading for the same variant is better loaded once it is
  // stored: always when it is computed, and when a plan is followed if this one would follow it,
  // too. `leaving`: ended, but their blocks are still being copied into the store. `num_waiting`:
  // requests behind this one.
  bool should_wait(Sequence& sequence,
                   Sequences running,
                   Sequences leaving,
                   size_t num_waiting) const;

 private:
  bool is_storing_for(const Sequence& sender, const Sequence& sequence) const;
  bool is_reading_for(const Sequence& other, Sequence& sequence, size_t num_waiting) const;
  bool is_worth_waiting(Sequence& sequence, const Sequence& reader, size_t num_waiting) const;

  const PlanBooks& books_;
  const PrefillChooser& chooser_;
  const SharingMode sharing_;
};

}  // namespace droidspeak
