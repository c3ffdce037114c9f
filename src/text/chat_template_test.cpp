#include "text/chat_template.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"

namespace droidspeak {

namespace {

using Json = nlohmann::ordered_json;

const std::filesystem::path kFolder =
    std::filesystem::path(DROIDSPEAK_SOURCE_DIR) / "tests" / "data" / "chat_templates";

Json read_json(const std::filesystem::path& path) {
  return Json::parse(read_file(path));
}

// The moment the goldens were made at: 2024-11-05 14:07:09.
std::chrono::system_clock::time_point golden_time() {
  setenv("TZ", "UTC", 1);
  tzset();
  return std::chrono::system_clock::from_time_t(1730815629);
}

ChatMessage to_message(const Json& json) {
  ChatMessage message{json.at("role"), ""};
  Json extra = json;
  extra.erase("role");
  if (json.at("content").is_string()) {
    message.content = json.at("content");
    extra.erase("content");
  }
  if (!extra.empty()) message.extra_json = extra.dump();
  return message;
}

ChatTemplateInput to_input(const Json& conversation) {
  ChatTemplateInput input;
  for (const Json& message : conversation.at("messages"))
    input.messages.push_back(to_message(message));
  input.add_generation_prompt = conversation.at("add_generation_prompt");
  input.bos_token = "<s>";
  input.eos_token = "</s>";
  if (conversation.contains("variables")) input.extra_json = conversation.at("variables").dump();
  input.now = golden_time();
  return input;
}

// The rendered text, or nothing when the template refuses.
std::optional<std::string> render(const std::string& source, const ChatTemplateInput& input) {
  try {
    return ChatTemplate(source).render(input);
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code(), ErrorCode::kInvalidArgument);
    return std::nullopt;
  }
}

std::string failure_of(const std::string& source, const ChatTemplateInput& input = {}) {
  try {
    ChatTemplate(source).render(input);
  } catch (const Failure& failure) {
    return failure.what();
  }
  return "rendered";
}

std::vector<std::string> template_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() == ".jinja") names.push_back(entry.path().stem());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class ModelTemplate : public testing::TestWithParam<std::string> {};

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
  return name;
}

}  // namespace

TEST_P(ModelTemplate, RendersAsJinja2) {
  std::string source = read_file(kFolder / (GetParam() + ".jinja"));
  Json conversations = read_json(kFolder / "conversations.json");
  Json goldens = read_json(kFolder / "goldens" / (GetParam() + ".json"));
  ASSERT_EQ(goldens.size(), conversations.size());
  for (size_t i = 0; i < goldens.size(); ++i) {
    ASSERT_EQ(goldens[i].at("case"), conversations[i].at("name"));
    SCOPED_TRACE(goldens[i].at("case").get<std::string>());
    std::optional<std::string> output = render(source, to_input(conversations[i]));
    if (goldens[i].contains("error")) {
      EXPECT_FALSE(output) << "should fail with " << goldens[i].at("error") << ", gave " << *output;
    } else {
      ASSERT_TRUE(output) << failure_of(source, to_input(conversations[i]));
      EXPECT_EQ(*output, goldens[i].at("output").get<std::string>());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ModelTemplate, testing::ValuesIn(template_names()), test_name);

TEST(ChatTemplate, RefusesWithTheMessageOfRaiseException) {
  EXPECT_EQ(failure_of("a\nb{{ raise_exception('roles must alternate') }}"),
            "chat template, line 2: roles must alternate");
}

TEST(ChatTemplate, NamesTheLineOfASyntaxError) {
  EXPECT_EQ(failure_of("a\n\n{% if x %}"), "chat template, line 3: missing {% endif %}");
  EXPECT_THAT(failure_of("{{ 1 + }}"),
              testing::HasSubstr("line 1: expected an expression, found '}}'"));
}

TEST(ChatTemplate, NamesTheUndefinedVariable) {
  EXPECT_EQ(failure_of("{{ user.name }}"), "chat template, line 1: 'user' is undefined");
}

TEST(ChatTemplate, GivesFieldsOfAMessageBeyondRoleAndContent) {
  ChatTemplateInput input;
  input.messages = {{"assistant", "", R"({"content": null, "tool_calls": [{"id": 7}]})"}};
  EXPECT_EQ(ChatTemplate("{{ messages[0].content is none }} {{ messages[0].tool_calls[0].id }}")
                .render(input),
            "True 7");
}

TEST(ChatTemplate, NamesTheInputThatIsNotJson) {
  ChatTemplateInput input;
  input.extra_json = "[1]";
  EXPECT_EQ(failure_of("x", input), "chat template input, extra_json: must be a JSON object");
  input.extra_json = "{";
  EXPECT_THAT(failure_of("x", input),
              testing::StartsWith("chat template input, extra_json: the input is not JSON"));
}

TEST(ChatTemplate, KeepsTheOrderOfJsonAndTheLastOfEqualKeys) {
  ChatTemplateInput input;
  input.extra_json =
      R"({"x": {"z": 1, "a": [true, null, -2, 1.5, "t"], "m": {}, "z": 18446744073709551615}})";
  EXPECT_EQ(ChatTemplate("{{ x|tojson }}").render(input),
            R"({"z": 1.8446744073709552e+19, "a": [true, null, -2, 1.5, "t"], "m": {}})");
}

TEST(ChatTemplate, ReadsManyArguments) {
  ChatTemplateInput input;
  std::string& json = input.extra_json = "{";
  for (int i = 0; i < 60000; ++i) json += "\"key" + std::to_string(i) + "\": 1, ";
  json += "\"last\": 2}";
  EXPECT_EQ(ChatTemplate("{{ last }}").render(input), "2");
  EXPECT_EQ(ChatTemplate("{% for i in range(99999) %}{{ last }}{% endfor %}").render(input),
            std::string(99999, '2'));
}

TEST(ChatTemplate, RendersLongConversationsWithinItsAllowance) {
  ChatTemplateInput input;
  for (int i = 0; i < 2000; ++i) {
    input.messages.push_back({"user", std::string(2000, 'u')});
    input.messages.push_back({"assistant", std::string(2000, 'a')});
  }
  input.messages.push_back({"user", "last"});
  for (const std::string name : {"qwen3", "llama-3.1", "mistral-nemo", "smollm2"}) {
    std::string text = ChatTemplate(read_file(kFolder / (name + ".jinja"))).render(input);
    EXPECT_GT(text.size(), size_t{8'000'000}) << name;
  }
}

TEST(ChatTemplate, CanBeRenderedAgainAndMoved) {
  ChatTemplate original("{{ messages|length }}");
  ChatTemplateInput input;
  input.messages = {{"user", "x"}};
  EXPECT_EQ(original.render(input), "1");
  ChatTemplate moved = std::move(original);
  EXPECT_EQ(moved.render(input), "1");
}

}  // namespace droidspeak
