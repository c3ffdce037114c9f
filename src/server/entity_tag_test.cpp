#include "server/entity_tag.h"

#include <gtest/gtest.h>

namespace droidspeak {

namespace {

TEST(EntityTag, FollowsTheContent) {
  EXPECT_EQ(entity_tag("abc"), "\"ba7816bf8f01cfea414140de5dae2223\"");
  EXPECT_NE(entity_tag("abc"), entity_tag("abd"));
}

TEST(EntityTag, IsFoundInAList) {
  for (const char* header :
       {"\"a\"", "W/\"a\"", "*", " \"b\" ,\t\"a\" ", ",,\"a\"", "\"b\", W/\"a\""})
    EXPECT_TRUE(names_tag(header, "\"a\"")) << header;
  for (const char* header :
       {"", ",", " ", "a", "\"A\"", "\"ab\"", "\"b\", \"c\"", "w/\"a\"", "W/ \"a\"", "\"a"})
    EXPECT_FALSE(names_tag(header, "\"a\"")) << header;
}

TEST(EntityTag, ChoosesBetweenTheTextAndNothingNew) {
  HttpRequest request;
  TaggedText text{"text/plain", "hello", "\"tag\""};
  HttpResponse first = answer_tagged(request, text);
  EXPECT_EQ(first.status, 200);
  EXPECT_EQ(first.content(), "hello");
  request.headers["if-none-match"] = "\"tag\"";
  HttpResponse second = answer_tagged(request, text);
  EXPECT_EQ(second.status, 304);
  EXPECT_EQ(second.content(), "");
  EXPECT_EQ(second.headers, first.headers);
  request.headers["if-none-match"] = "\"old\"";
  EXPECT_EQ(answer_tagged(request, text).status, 200);
}

}  // namespace

}  // namespace droidspeak
