#include "server/openai/json_document.h"

#include <gtest/gtest.h>

namespace droidspeak::openai {

namespace {

std::string again(std::string_view text) {
  auto document = JsonDocument::parse(text);
  return document ? document->root().text() : document.error().message;
}

TEST(JsonDocument, KeepsOrderAndNumbers) {
  EXPECT_EQ(again(R"( {"z": [1, -2, 1.50, 1e3, 18446744073709551615], "a": {"y":null,"b":true}} )"),
            R"({"z":[1,-2,1.50,1e3,18446744073709551615],"a":{"y":null,"b":true}})");
  EXPECT_EQ(again(R"("\u0041\"\n")"), R"("A\"\n")");
}

TEST(JsonDocument, LetsTheLastOfDuplicateKeysCountAtTheFirstPlace) {
  EXPECT_EQ(again(R"({"a":1,"b":2,"a":{"c":3,"c":4},"b":5})"), R"({"a":{"c":4},"b":5})");
}

TEST(JsonDocument, FindsKeys) {
  auto document = JsonDocument::parse(R"({"b":1,"a":2,"":3,"c":{"d":[[]]}})");
  ASSERT_TRUE(document);
  JsonValue root = document->root();
  EXPECT_EQ(root.find("a")->integer(), 2);
  EXPECT_EQ(root.find("")->integer(), 3);
  EXPECT_FALSE(root.find("d"));
  EXPECT_EQ(root.size(), 4u);
  EXPECT_EQ(root.depth(), 4);
  EXPECT_EQ(root.members().front().first, "b");
}

TEST(JsonDocument, SaturatesIntegersAndReadsDecimals) {
  auto document = JsonDocument::parse("[18446744073709551615, 2.5, 1e2, -7]");
  ASSERT_TRUE(document);
  JsonValue root = document->root();
  EXPECT_EQ(root.at(0).integer(), INT64_MAX);
  EXPECT_EQ(root.at(0).kind(), JsonKind::kInteger);
  EXPECT_EQ(root.at(1).number(), 2.5);
  EXPECT_EQ(root.at(2).kind(), JsonKind::kDecimal);
  EXPECT_EQ(root.at(3).number(), -7);
}

TEST(JsonDocument, RefusesWhatIsNotJson) {
  for (const char* text : {"", "{", "[1,]", "{\"a\":1e999}", "\"\xFF\"", "{} {}", "nul"}) {
    auto document = JsonDocument::parse(text);
    ASSERT_FALSE(document) << text;
    EXPECT_EQ(document.error().status, 400);
    EXPECT_TRUE(document.error().message.starts_with("We could not parse the JSON body"));
  }
  using namespace std::string_literals;
  EXPECT_FALSE(JsonDocument::parse("{}\0"s)) << "nor is anything behind it read";
}

}  // namespace

}  // namespace droidspeak::openai
