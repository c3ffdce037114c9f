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

Result<void> submit(Inbox& inbox, bool continues) {
  std::unique_ptr<Sequence> made = sequence(continues);
  Result<Inbox::Place> place = inbox.reserve(made->request);
  if (!place) return place.error();
  return inbox.submit(std::move(*place), std::move(made));
}

TEST(Inbox, KeepsPlacesForRequestsThatWereLetIn) {
  Inbox inbox(4);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(submit(inbox, false));
  EXPECT_EQ(submit(inbox, false).error().code, ErrorCode::kExhausted);
  EXPECT_TRUE(submit(inbox, true));
  EXPECT_TRUE(submit(inbox, true));
  EXPECT_EQ(submit(inbox, true).error().code, ErrorCode::kExhausted);
  // What the engine has taken but not begun still waits.
  EXPECT_EQ(inbox.take(Inbox::Wait::kNo).sequences.size(), 6u);
  EXPECT_EQ(submit(inbox, true).error().code, ErrorCode::kExhausted);
  inbox.set_waiting(4);
  EXPECT_EQ(submit(inbox, false).error().code, ErrorCode::kExhausted);
  EXPECT_TRUE(submit(inbox, true));
  inbox.set_waiting(2);
  EXPECT_TRUE(submit(inbox, false));
}

TEST(Inbox, APlaceCountsUntilItIsUsedOrGivenBack) {
  Inbox inbox(2);
  std::unique_ptr<Sequence> made = sequence(false);
  {
    Result<Inbox::Place> first = inbox.reserve(made->request);
    Result<Inbox::Place> second = inbox.reserve(made->request);
    ASSERT_TRUE(first && second);
    EXPECT_EQ(inbox.reserve(made->request).error().code, ErrorCode::kExhausted);
  }
  Result<Inbox::Place> place = inbox.reserve(made->request);
  ASSERT_TRUE(place);
  inbox.refuse({ErrorCode::kUnavailable, "closing"});
  EXPECT_EQ(inbox.submit(std::move(*place), std::move(made)).error().code, ErrorCode::kUnavailable);
  EXPECT_TRUE(inbox.take(Inbox::Wait::kNo).sequences.empty());
}

}  // namespace

}  // namespace droidspeak
