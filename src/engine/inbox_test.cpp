#include "engine/inbox.h"

#include <future>
#include <new>

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

constexpr std::chrono::milliseconds kNow{0};

TEST(Inbox, IsEmptyWhenEveryStreamHasEnded) {
  Inbox inbox(4);
  EXPECT_TRUE(inbox.wait_until_empty(kNow));
  ASSERT_TRUE(submit(inbox, false) && submit(inbox, false));
  Inbox::Mail mail = inbox.take(Inbox::Wait::kUntilMail);
  ASSERT_EQ(mail.sequences.size(), 2u);
  EXPECT_GT(mail.sequences[0]->id, 0u) << "0 stands for none";
  EXPECT_EQ(mail.sequences[1]->id, mail.sequences[0]->id + 1);
  EXPECT_FALSE(mail.is_stopped);
  EXPECT_TRUE(inbox.take(Inbox::Wait::kNo).sequences.empty());
  inbox.note_done(0);
  inbox.note_done(1);
  EXPECT_FALSE(inbox.wait_until_empty(kNow));
  inbox.note_done(1);
  EXPECT_TRUE(inbox.wait_until_empty(kNow));
}

TEST(Inbox, TheFirstRefusalStays) {
  Inbox inbox(4);
  inbox.refuse({ErrorCode::kUnavailable, "draining"});
  inbox.refuse({ErrorCode::kInternal, "another"});
  inbox.stop();
  EXPECT_EQ(submit(inbox, false).error().message, "draining");
  EXPECT_TRUE(inbox.take(Inbox::Wait::kUntilMail).is_stopped);
  EXPECT_TRUE(inbox.take(Inbox::Wait::kUntilMail).is_stopped) << "it stays so";
  EXPECT_EQ(inbox.call([]() -> Result<void> { return {}; }).error().code, ErrorCode::kUnavailable);
}

TEST(Inbox, AStoppedOneRefuses) {
  Inbox inbox(4);
  inbox.stop();
  EXPECT_EQ(submit(inbox, false).error().code, ErrorCode::kUnavailable);
}

TEST(Inbox, WhatBreaksDownFailsWhatCameAndWhatComes) {
  Inbox inbox(4);
  inbox.refuse({ErrorCode::kUnavailable, "draining"});
  std::shared_ptr<TokenStream> stream;
  Inbox open(4);
  for (Inbox* one : {&inbox, &open}) {
    std::unique_ptr<Sequence> made = sequence(false);
    stream = made->stream;
    Result<Inbox::Place> place = one->reserve(made->request);
    if (place) {
      ASSERT_TRUE(one->submit(std::move(*place), std::move(made)));
    }
    one->break_down({ErrorCode::kInternal, "broken"});
    EXPECT_EQ(submit(*one, false).error().message, "broken");
    EXPECT_TRUE(one->wait_until_empty(kNow));
    EXPECT_FALSE(one->take(Inbox::Wait::kNo).is_stopped);
    EXPECT_EQ(one->call([]() -> Result<void> { return {}; }).error().code, ErrorCode::kUnavailable);
  }
  std::optional<StreamItem> item = stream->next(kNow);
  ASSERT_TRUE(item && std::holds_alternative<Error>(*item));
  EXPECT_EQ(std::get<Error>(*item).message, "broken");
}

TEST(Inbox, CommandsRunOnTheThreadThatTakesThem) {
  Inbox inbox(4);
  auto answer_to = [&](std::function<Result<void>()> command) {
    auto answer = std::async(std::launch::async, [&] { return inbox.call(std::move(command)); });
    Inbox::Mail mail = inbox.take(Inbox::Wait::kUntilMail);
    EXPECT_EQ(mail.commands.size(), 1u);
    for (Inbox::Command& one : mail.commands) one();
    return answer.get();
  };
  EXPECT_TRUE(answer_to([]() -> Result<void> { return {}; }));
  EXPECT_EQ(answer_to([]() -> Result<void> {
              return Error{ErrorCode::kNotFound, "no"};
            })
                .error()
                .code,
            ErrorCode::kNotFound);
  EXPECT_EQ(answer_to([]() -> Result<void> { throw Failure(ErrorCode::kDataCorrupt, "bad"); })
                .error()
                .code,
            ErrorCode::kDataCorrupt);
  EXPECT_EQ(answer_to([]() -> Result<void> { throw std::bad_alloc(); }).error().code,
            ErrorCode::kExhausted);
}

}  // namespace

}  // namespace droidspeak
