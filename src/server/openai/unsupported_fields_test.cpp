// What is refused by name, and which values of it ask for nothing else than what is done.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/openai/embedding_request.h"
#include "server/openai/fields.h"
#include "server/openai/request_outcome.h"

namespace droidspeak::openai {
namespace {

// A field that this server does not know may be there when it asks for nothing.
TEST(Unsupported, FieldsMayAskForNothing) {
  for (const char* nothing : {"null", "false", "0", "0.0", R"("")", "[]", "{}"})
    EXPECT_EQ(outcome(read_chat(std::string(R"("suffix":)") + nothing)), "taken") << nothing;
  for (const char* something : {"true", "1", "0.5", R"("x")", "[0]", R"({"a":null})", "-1"})
    EXPECT_EQ(outcome(read_chat(std::string(R"("suffix":)") + something)),
              "suffix: unsupported_parameter")
        << something;
}

TEST(Unsupported, FieldsOfBothCalls) {
  for (const char* name : {"functions",
                           "function_call",
                           "suffix",
                           "use_beam_search",
                           "include_stop_str_in_output",
                           "truncate_prompt_tokens",
                           "logits_processors",
                           "continue_final_message",
                           "chat_template",
                           "documents",
                           "audio",
                           "prediction",
                           "web_search_options",
                           "return_tokens_as_token_ids",
                           "return_token_ids",
                           "no_repeat_ngram_size",
                           "stop_regex",
                           "prompt_embeds",
                           "min_new_tokens",
                           "stop_strings",
                           "reasoning",
                           "reasoning_effort",
                           "lora",
                           "lora_path",
                           "max_new_tokens",
                           "structural_tag",
                           "thinking_token_budget",
                           "bad_words",
                           "allowed_token_ids",
                           "json_schema",
                           "grammar",
                           "regex",
                           "ebnf",
                           "guided_json",
                           "guided_regex",
                           "guided_choice",
                           "guided_grammar",
                           "guided_decoding_backend",
                           "guided_whitespace_pattern",
                           "system",
                           "instructions",
                           "stop_sequences",
                           "output_config",
                           "text",
                           "max_output_tokens"}) {
    std::string expected = std::string(name) + ": unsupported_parameter";
    EXPECT_EQ(outcome(read_chat(fmt::format(R"("{}":"x")", name))), expected);
    EXPECT_EQ(outcome(read_completion(fmt::format(R"("{}":"x")", name))), expected);
  }
  EXPECT_EQ(outcome(read_chat(R"("echo":"x")")), "echo: unsupported_parameter");
  for (const char* name : {"tools", "top_logprobs", "chat_template_kwargs", "enable_thinking",
                           "max_completion_tokens"})
    EXPECT_EQ(outcome(read_completion(fmt::format(R"("{}":"x")", name))),
              std::string(name) + ": unsupported_parameter");
  for (const char* name :
       {"json_object", "structural_tag", "disable_fallback", "disable_any_whitespace",
        "disable_additional_properties", "whitespace_pattern"})
    EXPECT_EQ(
        outcome(read_chat(fmt::format(R"("structured_outputs":{{"regex":"a","{}":1}})", name))),
        fmt::format("structured_outputs.{}: unsupported_parameter", name));
  EXPECT_EQ(outcome(read_chat(R"("stream":true,"stream_options":{"include_obfuscation":true})")),
            "stream_options.include_obfuscation: unsupported_parameter");
}

// Zero tokens of thoughts, or no sampling, are no less a wish than others.
TEST(Unsupported, ValuesThatOthersSampleOtherwiseFor) {
  EXPECT_EQ(outcome(read_chat(R"("detokenize":true,"do_sample":true,"length_penalty":1.0,)"
                              R"("no_repeat_ngram_size":0,"return_token_ids":false,"typical_p":1,)"
                              R"("repeat_penalty":1.0,"include_reasoning":true,"min_new_tokens":0,)"
                              R"("spaces_between_special_tokens":true,"lora":[])")),
            "taken");
  EXPECT_EQ(outcome(read_chat(R"("spaces_between_special_tokens":false)")), "taken");
  EXPECT_EQ(
      outcome(read_chat(R"("spaces_between_special_tokens":false,"skip_special_tokens":false)")),
      "taken");
  EXPECT_EQ(
      outcome(read_chat(R"("spaces_between_special_tokens":true,"skip_special_tokens":true)")),
      "taken");
  EXPECT_EQ(
      outcome(read_chat(R"("spaces_between_special_tokens":true,"skip_special_tokens":false)")),
      "spaces_between_special_tokens: unsupported_parameter");
  EXPECT_EQ(outcome(read_chat(R"("spaces_between_special_tokens":1)")),
            "spaces_between_special_tokens: invalid_type");
  EXPECT_EQ(outcome(read_chat(R"("do_sample":false,"temperature":0)")), "taken");
  for (const char* field :
       {R"("detokenize":false)", R"("do_sample":false)", R"("length_penalty":0)",
        R"("length_penalty":1.5)", R"("repeat_penalty":1.1)", R"("typical_p":0.9)",
        R"("include_reasoning":false)", R"("thinking_token_budget":0)", R"("max_new_tokens":0)",
        R"("structural_tag":{})"}) {
    std::string name(field + 1);
    name.resize(name.find('"'));
    EXPECT_EQ(outcome(read_chat(field)), name + ": unsupported_parameter") << field;
  }
}

TEST(Unsupported, ValuesOfFieldsOfBothCalls) {
  for (const char* field :
       {R"("verbosity":"medium")", R"("truncation":"disabled")", R"("service_tier":"default")",
        R"("service_tier":"auto")", R"("thinking":{"type":"disabled"})", R"("thinking":null)",
        R"("reasoning":{})", R"("reasoning_effort":null)"}) {
    EXPECT_EQ(outcome(read_chat(field)), "taken") << field;
    EXPECT_EQ(outcome(read_completion(field)), "taken") << field;
  }
  for (const char* field : {R"("verbosity":"low")", R"("truncation":"auto")",
                            R"("service_tier":"flex")", R"("thinking":{"type":"enabled"})",
                            R"("reasoning":{"effort":"low"})", R"("reasoning_effort":"low")"}) {
    std::string name(field + 1);
    name.resize(name.find('"'));
    EXPECT_EQ(outcome(read_chat(field)), name + ": unsupported_parameter");
    EXPECT_EQ(outcome(read_completion(field)), name + ": unsupported_parameter");
  }
}

// Forms have fields for all kinds of formats, of which most are left empty.
TEST(Unsupported, EmptyTextsAreNoFormats) {
  for (const char* name : {"grammar", "regex", "ebnf", "guided_regex", "guided_grammar"}) {
    const std::string field = fmt::format(R"("{}":"")", name);
    EXPECT_EQ(outcome(read_chat(field)), "taken") << field;
    EXPECT_EQ(outcome(read_completion(field)), "taken") << field;
  }
  for (const char* name : {"json_schema", "allowed_token_ids", "guided_json", "guided_choice"}) {
    EXPECT_EQ(outcome(read_chat(fmt::format(R"("{}":"")", name))),
              std::string(name) + ": unsupported_parameter");
  }
}

TEST(Unsupported, OtherNamesOfALimitMaySayTheSame) {
  EXPECT_EQ(outcome(read_completion(R"("max_tokens":5,"max_completion_tokens":5)")), "taken");
  EXPECT_EQ(outcome(read_completion(R"("max_tokens":5,"max_new_tokens":5)")), "taken");
  EXPECT_EQ(outcome(read_chat(R"("max_tokens":5,"max_new_tokens":5)")), "taken");
  EXPECT_EQ(outcome(read_chat(R"("max_completion_tokens":5,"max_tokens":9,"max_new_tokens":5)")),
            "taken");
  for (const char* fields : {R"("max_tokens":5,"max_new_tokens":6)", R"("max_new_tokens":16)",
                             R"("max_tokens":5,"max_new_tokens":"5")"}) {
    EXPECT_EQ(outcome(read_completion(fields)), "max_new_tokens: unsupported_parameter") << fields;
    EXPECT_EQ(outcome(read_chat(fields)), "max_new_tokens: unsupported_parameter") << fields;
  }
  EXPECT_EQ(outcome(read_chat(R"("max_completion_tokens":5,"max_tokens":9,"max_new_tokens":9)")),
            "max_new_tokens: unsupported_parameter");
  EXPECT_EQ(outcome(read_completion(R"("max_tokens":5,"max_completion_tokens":6)")),
            "max_completion_tokens: unsupported_parameter");
}

constexpr const char* kNoThoughts[] = {
    R"("reasoning_effort":"none")", R"("reasoning":{"enabled":false})",
    R"("reasoning":{"effort":"none"})", R"("thinking":false)", R"("thinking":{"type":"disabled"})"};

TEST(Thoughts, MayBeAskedToStayAway) {
  for (const char* field : kNoThoughts) {
    auto chat = read_chat(field);
    ASSERT_EQ(outcome(chat), "taken") << field;
    EXPECT_EQ(chat->prompt.template_arguments, R"({"enable_thinking":false})") << field;
    EXPECT_EQ(outcome(read_completion(field)), "taken") << field;
    EXPECT_EQ(chat->prompt.without_thoughts.empty(),
              std::string(field).find("disabled") != std::string::npos)
        << field;
    EXPECT_NE(outcome(read_chat(std::string(field) + R"(,"enable_thinking":true)")), "taken");
    EXPECT_NE(outcome(read_chat(std::string(field) +
                                R"(,"chat_template_kwargs":{"enable_thinking":true})")),
              "taken");
    auto beside_null =
        read_chat(std::string(field) + R"(,"chat_template_kwargs":{"enable_thinking":null})");
    ASSERT_EQ(outcome(beside_null), "taken") << field;
    EXPECT_EQ(beside_null->prompt.template_arguments, R"({"enable_thinking":false})") << field;
  }
  EXPECT_EQ(read_chat(kNoThoughts[1])->prompt.without_thoughts, "reasoning");
  for (const char* field :
       {R"("reasoning_effort":"minimal")", R"("reasoning":{"enabled":true})",
        R"("reasoning":{"effort":"none","max_tokens":7})", R"("reasoning":{"enabled":0,"a":1})"})
    EXPECT_NE(outcome(read_chat(field)), "taken") << field;
  EXPECT_EQ(outcome(read_chat(R"("thinking":true)")), "thinking: invalid_type");
}

TEST(Thoughts, OfChatsAreToldToTheTemplate) {
  auto arguments = [](const char* fields) {
    auto chat = read_chat(fields);
    return chat ? chat->prompt.template_arguments : chat.error().param + ": " + chat.error().code;
  };
  EXPECT_EQ(arguments(R"("enable_thinking":true)"), R"({"enable_thinking":true})");
  EXPECT_EQ(arguments(R"("enable_thinking":false,"chat_template_kwargs":{})"),
            R"({"enable_thinking":false})");
  EXPECT_EQ(arguments(R"("enable_thinking":false,"chat_template_kwargs":{"a":1})"),
            R"({"a":1,"enable_thinking":false})");
  EXPECT_EQ(arguments(R"("enable_thinking":true,"chat_template_kwargs":{"enable_thinking":true})"),
            R"({"enable_thinking":true})");
  EXPECT_EQ(arguments(R"("enable_thinking":true,"chat_template_kwargs":{"enable_thinking":false})"),
            "enable_thinking: invalid_value");
  EXPECT_EQ(arguments(R"("enable_thinking":true,"chat_template_kwargs":{"enable_thinking":1})"),
            "enable_thinking: invalid_value");
  EXPECT_EQ(arguments(R"("enable_thinking":true,)"
                      R"("chat_template_kwargs":{"a":1,"enable_thinking":null,"b":"\u00e9"})"),
            "{\"a\":1,\"b\":\"\u00e9\",\"enable_thinking\":true}");
  EXPECT_EQ(arguments(R"("chat_template_kwargs":{"enable_thinking":null})"),
            R"({"enable_thinking":null})");
  EXPECT_EQ(arguments(R"("enable_thinking":"true")"), "enable_thinking: invalid_type");
  EXPECT_EQ(arguments(R"("enable_thinking":null)"), "");
  EXPECT_EQ(outcome(read_completion(R"("enable_thinking":false)")), "taken");
  EXPECT_EQ(outcome(read_completion(R"("enable_thinking":true)")),
            "enable_thinking: unsupported_parameter");
}

TEST(Unsupported, PrefixesOfAnswers) {
  auto message = [](const char* prefix) {
    return outcome(read_chat(
        fmt::format(R"("messages":[{{"role":"assistant","content":"x","prefix":{}}}])", prefix)));
  };
  EXPECT_EQ(message("false"), "taken");
  EXPECT_EQ(message("true"), "messages[0].prefix: unsupported_parameter");
}

TEST(Unsupported, MembersOfSharing) {
  EXPECT_EQ(outcome(read_chat(R"("sharing":{"sender":"a","plan":"auto","min_quality":null})")),
            "taken");
  EXPECT_EQ(outcome(read_chat(R"("sharing":{"sender":"a","min_quality":0.1})")),
            "sharing.min_quality: unsupported_parameter");
  EXPECT_EQ(read_chat(R"("sharing":{"sender":"a","Plan":"full"})").error().message,
            "Unsupported parameter: 'sharing.Plan' is not known; expected 'sender' and 'plan'.");
}

TEST(Unsupported, ValuesOfFieldsThatAreTaken) {
  EXPECT_EQ(
      outcome(read_chat(R"("modalities":["text"],"best_of":1,"verbosity":"medium","store":true)")),
      "taken");
  EXPECT_EQ(outcome(read_chat(R"("n":2,"best_of":2)")), "taken");
  EXPECT_EQ(outcome(read_chat(R"("n":2,"best_of":3)")), "best_of: unsupported_parameter");
  EXPECT_EQ(outcome(read_chat(R"("modalities":["text","audio"])")),
            "modalities: unsupported_parameter");
  EXPECT_EQ(outcome(read_chat(R"("modalities":[1])")), "modalities: unsupported_parameter");
  EXPECT_EQ(outcome(read_chat(R"("store":1)")), "store: invalid_type");
  for (const char* tier : {"auto", "default"})
    EXPECT_EQ(outcome(read_chat(fmt::format(R"("service_tier":"{}")", tier))), "taken");
  EXPECT_EQ(outcome(read_chat(R"("service_tier":"flex")")), "service_tier: unsupported_parameter");
  for (const char* value : {"in-memory", "in_memory"})
    EXPECT_EQ(outcome(read_chat(fmt::format(R"("prompt_cache_retention":"{}")", value))), "taken");
  EXPECT_EQ(outcome(read_chat(R"("prompt_cache_retention":"24h")")),
            "prompt_cache_retention: unsupported_parameter");
}

}  // namespace
}  // namespace droidspeak::openai
