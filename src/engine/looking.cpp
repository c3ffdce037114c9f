#include "engine/looking.h"

#include "base/check.h"
#include "engine/sequence.h"

namespace droidspeak {
namespace {

void start_reading(Sequence& sequence) {
  Looking& looking = *sequence.looking;
  looking.look.reset();
  looking.stage = Looking::Stage::kRead;
  looking.positions = sequence.looked_at;
  // Blocks behind the context are the receiver's own, but were read on it as it was.
  for (int32_t i = sequence.choice.num_sender_tokens(); i < sequence.num_tokens(); ++i)
    looking.positions.push_back(i);
}

}  // namespace

void start_looking(Ops& ops, Sequence& sequence) {
  const PrefillChoice& choice = sequence.choice;
  sequence.looking.reset();
  if (choice.stored.plan.look_permille == 0) return sequence.looked_at.clear();
  sequence.looking = std::make_unique<Looking>();
  if (!sequence.looked_at.empty()) return start_reading(sequence);
  sequence.looking->look =
      std::make_unique<Look>(ops, choice.num_sender_tokens(), choice.look_layer);
}

void look_on(Sequence& sequence, const std::vector<SampledToken>& draft) {
  Looking& looking = *sequence.looking;
  check(looking.stage != Looking::Stage::kRead, "reading ends with the answer's token");
  if (looking.stage == Looking::Stage::kScout && !draft.empty()) {
    looking.draft = draft.front().token;
    looking.stage = Looking::Stage::kDraft;
    return;
  }
  int32_t context = sequence.choice.num_sender_tokens();
  sequence.looked_at = looking.look->choose(sequence.choice.stored.plan.looked_at_tokens(context));
  start_reading(sequence);
}

}  // namespace droidspeak
