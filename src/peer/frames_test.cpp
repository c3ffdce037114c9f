#include "peer/frames.h"

#include <random>

#include <gtest/gtest.h>

#include "base/test_seed.h"
#include "peer/test_nodes.h"

namespace droidspeak {
namespace {

PeerNonce nonce_of(int value) {
  PeerNonce nonce;
  nonce.fill(static_cast<std::byte>(value));
  return nonce;
}

const PeerSession& session() {
  static const PeerSession kSession("secret", nonce_of(1), nonce_of(2));
  return kSession;
}

PeerRequest some_request() {
  return {.id = 5, .keys = {test_key(1), test_key(2), test_key(3)}};
}

PeerIntroduction some_introduction(uint64_t place) {
  return {.address = test_entry(1, 100), .place = place};
}

TEST(PeerFrames, ComeBackAsTheyWere) {
  EXPECT_EQ(parse_peer_hello(encode(PeerHello{nonce_of(9)}))->nonce, nonce_of(9));
  Result<PeerChallenge> challenge =
      parse_peer_challenge(encode(PeerChallenge{nonce_of(3), session().server_proof()}));
  EXPECT_EQ(challenge->nonce, nonce_of(3));
  EXPECT_EQ(challenge->proof, session().server_proof());
  Result<PeerRequest> request = parse_peer_request(encode(some_request(), session()), session());
  EXPECT_EQ(request->id, 5U);
  EXPECT_EQ(request->keys, some_request().keys);
  std::vector<std::byte> frame = encode(some_introduction(7), PeerSide::kServer, session());
  EXPECT_EQ(*parse_peer_introduction_bytes(std::span(frame).first(kPeerIntroductionHeadBytes),
                                           PeerSide::kServer),
            frame.size());
  Result<PeerIntroduction> introduction =
      parse_peer_introduction(frame, PeerSide::kServer, session());
  EXPECT_EQ(introduction->address, some_introduction(7).address);
  EXPECT_EQ(introduction->place, 7U);
}

TEST(PeerFrames, EveryFlippedBitOfAnIntroductionIsNoticed) {
  std::vector<std::byte> frame = encode(some_introduction(0), PeerSide::kClient, session());
  for (size_t bit = 0; bit < frame.size() * 8; ++bit) {
    std::vector<std::byte> flipped = frame;
    flipped[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    EXPECT_FALSE(parse_peer_introduction(flipped, PeerSide::kClient, session())) << "bit " << bit;
  }
  for (size_t bytes = 0; bytes < frame.size(); ++bytes) {
    EXPECT_FALSE(
        parse_peer_introduction(std::span(frame).first(bytes), PeerSide::kClient, session()));
  }
}

// What a client has said is not an answer to it.
TEST(PeerFrames, AnIntroductionIsOfOneSide) {
  std::vector<std::byte> frame = encode(some_introduction(0), PeerSide::kClient, session());
  EXPECT_TRUE(parse_peer_introduction(frame, PeerSide::kClient, session()));
  EXPECT_FALSE(parse_peer_introduction(frame, PeerSide::kServer, session()));
}

TEST(PeerFrames, OnlyAServerNamesAPlace) {
  std::vector<std::byte> frame = encode(some_introduction(1), PeerSide::kClient, session());
  EXPECT_FALSE(parse_peer_introduction(frame, PeerSide::kClient, session()));
}

TEST(PeerFrames, AnIntroductionIsBounded) {
  for (uint32_t bytes : {0U, static_cast<uint32_t>(kMaxWorkerAddressBytes) + 1, 0xffffffffU}) {
    std::vector<std::byte> frame = encode(some_introduction(0), PeerSide::kClient, session());
    std::memcpy(frame.data() + 4, &bytes, sizeof bytes);
    EXPECT_FALSE(parse_peer_introduction_bytes(std::span(frame).first(kPeerIntroductionHeadBytes),
                                               PeerSide::kClient))
        << bytes;
  }
}

TEST(PeerFrames, EveryFlippedBitOfARequestIsNoticed) {
  std::vector<std::byte> frame = encode(some_request(), session());
  for (size_t bit = 0; bit < frame.size() * 8; ++bit) {
    std::vector<std::byte> flipped = frame;
    flipped[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    EXPECT_FALSE(parse_peer_request(flipped, session())) << "bit " << bit;
  }
}

TEST(PeerFrames, EveryCutOfAFrameIsNoticed) {
  std::vector<std::byte> request = encode(some_request(), session());
  for (size_t bytes = 0; bytes < request.size(); ++bytes)
    EXPECT_FALSE(parse_peer_request(std::span(request).first(bytes), session()));
  std::vector<std::byte> hello = encode(PeerHello{nonce_of(1)});
  for (size_t bytes = 0; bytes < hello.size(); ++bytes)
    EXPECT_FALSE(parse_peer_hello(std::span(hello).first(bytes)));
  PeerReplyHeadBytes head = encode(PeerReplyHead{.request_id = 1, .num_keys = 1, .body_bytes = 4});
  for (size_t bytes = 0; bytes < head.size(); ++bytes)
    EXPECT_FALSE(parse_peer_reply_head(std::span(head).first(bytes)));
}

// Those who have the secret may have a bug, too.
TEST(PeerFrames, SignedRequestsWithWrongCountsAreRefused) {
  for (uint32_t count : {0U, 2U, 4U, 129U, 0xffffffffU}) {
    std::vector<std::byte> frame = encode(some_request(), session());
    frame.resize(frame.size() - sizeof(PeerRequestTag));
    std::memcpy(frame.data() + 8, &count, sizeof count);
    PeerRequestTag tag = session().request_tag(frame);
    frame.insert(frame.end(), tag.begin(), tag.end());
    EXPECT_FALSE(parse_peer_request(frame, session())) << count;
  }
}

TEST(PeerFrames, AnotherSecretOrMeetingMakesOtherTags) {
  std::vector<std::byte> frame = encode(some_request(), session());
  EXPECT_FALSE(parse_peer_request(frame, PeerSession("Secret", nonce_of(1), nonce_of(2))));
  EXPECT_FALSE(parse_peer_request(frame, PeerSession("secret", nonce_of(3), nonce_of(2))));
  EXPECT_FALSE(parse_peer_request(frame, PeerSession("secret", nonce_of(1), nonce_of(3))));
  EXPECT_NE(PeerSession("Secret", nonce_of(1), nonce_of(2)).server_proof(),
            session().server_proof());
}

TEST(PeerFrames, AVersionThatIsNotOursIsNamed) {
  std::vector<std::byte> frame = encode(PeerHello{nonce_of(1)});
  frame[4] = std::byte{9};
  Result<PeerHello> hello = parse_peer_hello(frame);
  ASSERT_FALSE(hello);
  EXPECT_NE(hello.error().message.find("version 9 there and 2 here"), std::string::npos);
}

TEST(PeerFrames, HeadsOfRepliesWithWrongCountsAreRefused) {
  auto is_good = [](uint32_t num_keys, uint32_t body_bytes) {
    PeerReplyHead head{.request_id = 1, .num_keys = num_keys, .body_bytes = body_bytes};
    return static_cast<bool>(parse_peer_reply_head(encode(head)));
  };
  EXPECT_TRUE(is_good(1, 4));
  EXPECT_TRUE(is_good(128, kMaxReplyBytes));
  EXPECT_FALSE(is_good(0, 4));
  EXPECT_FALSE(is_good(129, 4096));
  EXPECT_FALSE(is_good(2, 7));
  EXPECT_FALSE(is_good(1, kMaxReplyBytes + 1));
}

TEST(PeerFrames, ABodyComesBackAsItWasAdded) {
  std::vector<std::byte> room(kMaxReplyBytes);
  PeerReplyBody body(room, 4);
  std::vector<std::byte> entry = test_entry(1, 100);
  body.add(std::span(entry).first(10), std::span(entry).subspan(10));
  body.add_missing();
  body.add_later();
  body.add({}, {});
  Result<std::vector<PeerReplyEntry>> entries = parse_peer_reply_body(body.bytes(), 4);
  ASSERT_TRUE(entries);
  EXPECT_TRUE(std::ranges::equal((*entries)[0].bytes, entry));
  EXPECT_EQ((*entries)[1].kind, PeerReplyEntry::Kind::kMissing);
  EXPECT_EQ((*entries)[2].kind, PeerReplyEntry::Kind::kLater);
  EXPECT_EQ((*entries)[3].kind, PeerReplyEntry::Kind::kHere);
  EXPECT_FALSE(parse_peer_reply_body(body.bytes().first(body.bytes().size() - 1), 4));
  EXPECT_FALSE(parse_peer_reply_body(body.bytes(), 3));
  EXPECT_FALSE(parse_peer_reply_body(body.bytes(), 128));
}

TEST(PeerFrames, EveryFlippedBitOfAReplyIsNoticed) {
  std::vector<std::byte> room(kMaxReplyBytes);
  PeerReplyBody body(room, 1);
  body.add({}, test_entry(1, 40));
  PeerReplyHead head{
      .request_id = 8, .num_keys = 1, .body_bytes = static_cast<uint32_t>(body.bytes().size())};
  head.tag = peer_reply_tag(head, body.bytes(), session());
  std::vector<std::byte> frame;
  PeerReplyHeadBytes encoded = encode(head);
  frame.insert(frame.end(), encoded.begin(), encoded.end());
  frame.insert(frame.end(), body.bytes().begin(), body.bytes().end());
  for (size_t bit = 0; bit <= frame.size() * 8; ++bit) {
    std::vector<std::byte> flipped = frame;
    bool is_flipped = bit < frame.size() * 8;
    if (is_flipped) flipped[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    Result<PeerReplyHead> parsed =
        parse_peer_reply_head(std::span(flipped).first(kPeerReplyHeadBytes));
    bool is_good =
        parsed &&
        is_same_tag(
            parsed->tag,
            peer_reply_tag(*parsed, std::span(flipped).subspan(kPeerReplyHeadBytes), session()));
    EXPECT_EQ(is_good, !is_flipped) << "bit " << bit;
  }
}

TEST(PeerFrames, RandomBytesAreRefusedOrRead) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> bytes(random() % 200);
    for (std::byte& value : bytes) value = static_cast<std::byte>(random() % 4 == 0 ? random() : 0);
    size_t num_keys = random() % 20;
    if (Result<std::vector<PeerReplyEntry>> entries = parse_peer_reply_body(bytes, num_keys)) {
      EXPECT_EQ(entries->size(), num_keys);
    }
    EXPECT_FALSE(parse_peer_request(bytes, session()));
    EXPECT_FALSE(parse_peer_hello(bytes));
  }
}

}  // namespace
}  // namespace droidspeak
