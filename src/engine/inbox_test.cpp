#include "engine/inbox.h"

#include <gtest/gtest.h>

namespace droidspeak {

namespace {

std::unique_ptr<Sequence> sequence(bool continues) {
  GenerationRequest request;
  request.prompt = {1};
  request.continues = continues;
  SequenceOptions options;
  options.request = std::move(request);
  options.vocab_size = 2;
  return std::make_unique<Sequence>(std::move(options));
}

TEST(Inbox, KeepsPlacesForRequestsThatWereLetIn) {
  Inbox inbox(4);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(inbox.submit(sequence(false)));
  EXPECT_EQ(inbox.submit(sequence(false)).error().code, ErrorCode::kExhausted);
  EXPECT_TRUE(inbox.submit(sequence(true)));
  EXPECT_TRUE(inbox.submit(sequence(true)));
  EXPECT_EQ(inbox.submit(sequence(true)).error().code, ErrorCode::kExhausted);
  // What the engine has taken but not begun still waits.
  EXPECT_EQ(inbox.take(Inbox::Wait::kNo).sequences.size(), 6u);
  EXPECT_EQ(inbox.submit(sequence(true)).error().code, ErrorCode::kExhausted);
  inbox.set_waiting(4);
  EXPECT_EQ(inbox.submit(sequence(false)).error().code, ErrorCode::kExhausted);
  EXPECT_TRUE(inbox.submit(sequence(true)));
  inbox.set_waiting(2);
  EXPECT_TRUE(inbox.submit(sequence(false)));
}

}  // namespace

}  // namespace droidspeak
