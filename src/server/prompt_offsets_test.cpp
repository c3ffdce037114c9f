#include "server/prompt_offsets.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace droidspeak {

namespace {

using testing::ElementsAre;

std::vector<size_t> offsets_in(std::string_view text, const std::vector<std::string>& tokens) {
  PromptOffsets offsets(text);
  std::vector<size_t> found;
  for (const std::string& token : tokens) found.push_back(offsets.push(token));
  return found;
}

TEST(PromptOffsets, CountCharacters) {
  EXPECT_THAT(offsets_in("z\u00e4\u20ac!", {"z", "\u00e4", "\u20ac", "!"}),
              ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(offsets_in("", {}), ElementsAre());
}

TEST(PromptOffsets, WithinACharacterAreThatCharacters) {
  EXPECT_THAT(offsets_in("Hi \U0001F600 go", {"Hi", " \xF0\x9F", "\x98", "\x80", " go"}),
              ElementsAre(0, 2, 3, 3, 4));
}

// As JSON shows them: a replacement for each byte.
TEST(PromptOffsets, CountBytesThatAreNoCharacter) {
  EXPECT_THAT(offsets_in("\x80\xF0\x9F"
                         "a",
                         {"\x80", "\xF0\x9F", "a"}),
              ElementsAre(0, 1, 3));
}

TEST(PromptOffsets, PassOverWhatTheTextDoesNotHave) {
  EXPECT_THAT(offsets_in("Hello you", {"<s>", " Hello", " you"}), ElementsAre(0, 0, 5));
  EXPECT_THAT(offsets_in("<s>a", {"<s>", "<s>", "a"}), ElementsAre(0, 3, 3)) << "one is too many";
  EXPECT_THAT(offsets_in("a<s>b", {"<s>", "a", "<s>", "b"}), ElementsAre(0, 0, 1, 4));
}

TEST(PromptOffsets, PassOverWhatNoTokenHas) {
  EXPECT_THAT(offsets_in("<end>\n\na b", {"<end>", "a", " b"}), ElementsAre(0, 7, 8));
  EXPECT_THAT(offsets_in("e\u0301x", {"\u00e9", "x"}), ElementsAre(0, 2)) << "composed";
}

}  // namespace

}  // namespace droidspeak
