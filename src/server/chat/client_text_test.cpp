#include "server/chat/client_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/chat/client_turn.h"

namespace droidspeak {

namespace {

using testing::ElementsAre;

// A token for each byte, and three control tokens.
class ByteTokenizer final : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view text, SpecialTokens special) const override {
    std::vector<int32_t> ids;
    while (!text.empty()) {
      size_t length = 1;
      int32_t id = static_cast<unsigned char>(text.front());
      for (int32_t control = 256; control < vocab_size(); ++control) {
        bool is_next = text.starts_with(bytes_of(control)) && special == SpecialTokens::kParse;
        if (!is_next || bytes_of(control).size() < length) continue;
        id = control;
        length = bytes_of(control).size();
      }
      ids.push_back(id);
      text.remove_prefix(length);
    }
    return ids;
  }

  std::string_view bytes_of(int32_t id) const override {
    static const std::string controls[] = {"<e>", "<e><f>", "\xC3\xA4!"};
    return id < 256 ? std::string_view("x") : std::string_view(controls[id - 256]);
  }

  std::string decode(const std::vector<int32_t>&, SpecialTokens) const override { return ""; }

  int32_t vocab_size() const override { return 259; }

  bool is_special(int32_t id) const override { return id >= 256; }

  int32_t find(std::string_view) const override { return -1; }
};

class ClientTextTest : public testing::Test {
 protected:
  std::vector<int32_t> plain(std::string_view text) const {
    return tokenizer_.encode(text, SpecialTokens::kAsText);
  }

  const ByteTokenizer tokenizer_{};
  const ClientText text_{tokenizer_};
};

TEST_F(ClientTextTest, MarksAllPartsOfTurnsButTheSystems) {
  std::string marked = text_.mark("<e>");
  ASSERT_NE(marked, "<e>");
  for (const char* role : {"user", "tool", "assistant"}) {
    ChatTurn turn{role, "<e>", "<e>", {{"<e>", "f", R"({"a":"<e>"})"}}, "<e>"};
    mark_turn(text_, turn);
    EXPECT_EQ(turn.content, marked);
    EXPECT_EQ(turn.reasoning, marked);
    EXPECT_EQ(turn.answered_call_id, marked);
    EXPECT_EQ(turn.calls[0].id, marked);
    EXPECT_EQ(turn.calls[0].arguments, R"({"a":")" + marked + R"("})");
  }
  ChatTurn system{"system", "<e>"};
  mark_turn(text_, system);
  EXPECT_EQ(system.content, "<e>");
}

TEST_F(ClientTextTest, LeavesOrdinaryTextsAlone) {
  for (const char* text : {"", "a <b> c", "<", "\xC3\xA4"}) EXPECT_EQ(text_.mark(text), text);
}

TEST_F(ClientTextTest, KeepsControlTokensOutOfMarkedTexts) {
  for (const char* text : {"<e>", "a<e>b", "<e><e>", "<e><f>", "<<e>>", "\xC3\xA4!", "a<e"}) {
    EXPECT_EQ(text_.encode(text_.mark(text)), plain(text)) << text;
  }
}

TEST_F(ClientTextTest, LeavesTheTemplatesOwnTokens) {
  std::string prompt = "<e>" + text_.mark("a<e>") + "<e>";
  EXPECT_THAT(text_.encode(prompt), ElementsAre(256, 'a', '<', 'e', '>', 256));
  EXPECT_THAT(text_.encode("<e><f>x"), ElementsAre(257, 'x'));
}

TEST_F(ClientTextTest, StandsTemplatesThatCutTexts) {
  std::string marked = text_.mark("<e>");
  std::string head = marked.substr(0, 4);  // its first character and the mark
  std::string tail = marked.substr(1);     // from the mark on
  EXPECT_EQ(text_.encode(head), plain("<"));
  EXPECT_EQ(text_.encode(tail), plain("e>"));
  EXPECT_EQ(text_.encode(head + head + "z"), plain("<<z"));
  EXPECT_EQ(text_.encode(tail + marked), plain("e><e>"));
}

TEST_F(ClientTextTest, TakesMarksAwayFromClients) {
  EXPECT_EQ(text_.mark("a\xEF\xB7\x90z"), "a\xEF\xBF\xBDz");
}

}  // namespace

}  // namespace droidspeak
