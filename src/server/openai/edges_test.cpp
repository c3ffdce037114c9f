// The last value that each field takes and the first that it does not, and what a field's absence
// means.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/openai/embedding_request.h"
#include "server/openai/fields.h"
#include "server/openai/limits.h"
#include "server/openai/request_outcome.h"

namespace droidspeak::openai {

namespace {

using testing::ElementsAre;

struct Edge {
  const char* field;
  const char* lowest;   // taken
  const char* below;    // not; null: no such
  const char* highest;  // taken
  const char* above;    // not
  const char* kind;     // in the codes
};

TEST(Edges, OfNumbers) {
  const Edge edges[] = {
      {"temperature", "0", "-0.01", "2", "2.01", "decimal"},
      {"top_p", "0.0001", "0", "1", "1.01", "decimal"},
      {"top_k", "-1", "-2", "2147483647", "2147483648", "integer"},
      {"min_p", "0", "-0.01", "1", "1.01", "decimal"},
      {"repetition_penalty", "0.0001", "0", "2", "2.01", "decimal"},
      {"presence_penalty", "-2", "-2.01", "2", "2.01", "decimal"},
      {"frequency_penalty", "-2", "-2.01", "2", "2.01", "decimal"},
      {"n", "1", "0", "128", "129", "integer"},
      {"min_tokens", "0", "-1", "2147483647", "2147483648", "integer"},
      {"prompt_logprobs", "0", "-1", "20", "21", "integer"},
      {"priority", "-2147483647", "-2147483648", "2147483647", "2147483648", "integer"},
      {"ttft_slo_ms", "0.0001", "0", "1000000000000", "1000000000001", "decimal"},
      {"min_quality", "0", "-0.01", "1", "1.01", "decimal"},
      {"max_tokens", "1", "0", "2147483647", "2147483648", "integer"},
  };
  for (const Edge& edge : edges) {
    auto both = [&](const char* value) {
      std::string field = fmt::format(R"("{}":{})", edge.field, value);
      std::string found = outcome(read_chat(field));
      EXPECT_EQ(outcome(read_completion(field)), found) << field;
      return found;
    };
    EXPECT_EQ(both(edge.lowest), "taken") << edge.field;
    EXPECT_EQ(both(edge.highest), "taken") << edge.field;
    EXPECT_EQ(both(edge.below), fmt::format("{}: {}_below_min_value", edge.field, edge.kind));
    EXPECT_EQ(both(edge.above), fmt::format("{}: {}_above_max_value", edge.field, edge.kind));
  }
}

TEST(Edges, OfFieldsThatOneCallHas) {
  EXPECT_EQ(outcome(read_chat(R"("max_completion_tokens":2147483647)")), "taken");
  EXPECT_EQ(outcome(read_chat(R"("max_completion_tokens":2147483648)")),
            "max_completion_tokens: integer_above_max_value");
  EXPECT_EQ(outcome(read_chat(R"("logprobs":true,"top_logprobs":20)")), "taken");
  EXPECT_EQ(outcome(read_chat(R"("logprobs":true,"top_logprobs":-1)")),
            "top_logprobs: integer_below_min_value");
  EXPECT_EQ(outcome(read_chat(R"("top_logprobs":0)")), "taken");
  EXPECT_EQ(outcome(read_chat(R"("top_logprobs":1)")), "top_logprobs: invalid_value");
  EXPECT_EQ(outcome(read_completion(R"("logprobs":20)")), "taken");
  EXPECT_EQ(outcome(read_completion(R"("logprobs":21)")), "logprobs: integer_above_max_value");
  EXPECT_EQ(outcome(read_completion(R"("echo":true,"max_tokens":0)")), "taken");
  EXPECT_EQ(outcome(read_completion(R"("echo":true,"max_tokens":-1)")),
            "max_tokens: integer_below_min_value");
}

TEST(Edges, OfBiasesAndTokens) {
  EXPECT_EQ(outcome(read_chat(R"("logit_bias":{"0":-100,"2147483647":100,"7":0.5})")), "taken");
  for (const char* entry :
       {R"("-1":1)", R"("2147483648":1)", R"("1x":1)", R"("":1)", R"("1":true)", R"("1":-100.5)",
        R"("1":100.5)", R"("098":1)", R"("-0":1)", R"("00":1)", R"("98":1,"0098":1)"}) {
    EXPECT_EQ(outcome(read_chat(fmt::format(R"("logit_bias":{{{}}})", entry))),
              "logit_bias: invalid_value")
        << entry;
  }
  EXPECT_EQ(outcome(read_chat(R"("stop_token_ids":[0,2147483647])")), "taken");
  EXPECT_EQ(outcome(read_chat(R"("stop_token_ids":[2147483648])")),
            "stop_token_ids: invalid_value");
  EXPECT_EQ(outcome(read_chat(R"("stop_token_ids":["1"])")), "stop_token_ids: invalid_type");
}

TEST(Edges, SayWhatWouldBeRight) {
  auto message = [](const std::string& field) { return read_chat(field).error().message; };
  EXPECT_EQ(message(R"("top_p":0)"),
            "Invalid 'top_p': decimal below minimum value. Expected a value > 0, but got 0 "
            "instead.");
  EXPECT_EQ(message(R"("min_p":-1)"),
            "Invalid 'min_p': decimal below minimum value. Expected a value >= 0, but got -1 "
            "instead.");
  EXPECT_EQ(message(R"("n":129)"),
            "Invalid 'n': integer above maximum value. Expected a value <= 128, but got 129 "
            "instead.");
  EXPECT_EQ(message(R"("stop":{})"),
            "Invalid type for 'stop': expected a string or an array of strings, but got an object "
            "instead.");
  EXPECT_EQ(message(R"("seed":1.5)"),
            "Invalid type for 'seed': expected an integer, but got a decimal number instead.");
  EXPECT_EQ(message(R"("stream":7)"),
            "Invalid type for 'stream': expected a boolean, but got an integer instead.");
  EXPECT_EQ(message(R"("user":[])"),
            "Invalid type for 'user': expected a string, but got an array instead.");
  EXPECT_EQ(message(R"("metadata":"x")"),
            "Invalid type for 'metadata': expected an object, but got a string instead.");
  EXPECT_EQ(message(R"("temperature":true)"),
            "Invalid type for 'temperature': expected a number, but got a boolean instead.");
  EXPECT_EQ(message(R"("temperature":9,"top_p":9)").substr(0, 21), "Invalid 'temperature'");
}

TEST(Edges, OfAbbreviations) {
  EXPECT_EQ(abbreviated(std::string(64, 'a')), std::string(64, 'a'));
  EXPECT_EQ(abbreviated(std::string(65, 'a')), std::string(64, 'a') + "...");
  EXPECT_EQ(abbreviated(std::string(63, 'a') + "\xC3\xA4z"), std::string(63, 'a') + "...");
  EXPECT_EQ(abbreviated(std::string(62, 'a') + "\xC3\xA4z"), std::string(62, 'a') + "\xC3\xA4...");
  EXPECT_EQ(abbreviated(std::string(100, '\x80')), "...");
}

TEST(Labels, AreChecked) {
  EXPECT_EQ(outcome(read_chat(R"("metadata":{"a":"b","c":null})")), "taken");
  EXPECT_EQ(outcome(read_chat(R"("metadata":{"a":7})")), "metadata.a: invalid_type");
  for (const char* name : {"user", "safety_identifier", "prompt_cache_key"}) {
    auto field = [&](size_t bytes) {
      return outcome(read_chat(fmt::format(R"("{}":"{}")", name, std::string(bytes, 'x'))));
    };
    EXPECT_EQ(field(kMaxUserBytes), "taken");
    EXPECT_EQ(field(kMaxUserBytes + 1), std::string(name) + ": string_above_max_length");
  }
}

TEST(Defaults, AreThoseOfTheApis) {
  auto request = read_chat(R"("user":null)");
  ASSERT_TRUE(request);
  const GenerationFields& fields = request->generation;
  EXPECT_EQ(fields.sampling.top_k, 0);
  EXPECT_EQ(fields.sampling.min_p, 0);
  EXPECT_EQ(fields.sampling.repetition_penalty, 1);
  EXPECT_EQ(fields.sampling.presence_penalty, 0);
  EXPECT_EQ(fields.sampling.frequency_penalty, 0);
  EXPECT_TRUE(fields.sampling.logit_bias->empty());
  EXPECT_EQ(fields.min_tokens, 0);
  EXPECT_EQ(fields.priority, 0);
  EXPECT_FALSE(fields.ignores_end_tokens);
  EXPECT_TRUE(fields.skips_special_tokens);
  EXPECT_FALSE(fields.is_streamed);
  EXPECT_FALSE(fields.includes_usage);
  EXPECT_FALSE(fields.has_running_usage);
  EXPECT_FALSE(fields.prompt_logprobs);
  EXPECT_TRUE(request->prompt.adds_generation_prompt);
  EXPECT_FALSE(request->prompt.adds_special_tokens);
  EXPECT_TRUE(request->prompt.template_arguments.empty());
  auto text = read_completion(R"("user":null)");
  ASSERT_TRUE(text);
  EXPECT_FALSE(text->is_echoed);
  EXPECT_TRUE(text->adds_special_tokens);
  EXPECT_EQ(text->num_top_logprobs, -1);
  auto streamed = read_chat(R"("stream":true,"stream_options":{})");
  ASSERT_TRUE(streamed);
  EXPECT_FALSE(streamed->generation.includes_usage);
  EXPECT_FALSE(streamed->generation.has_running_usage);
}

TEST(Fields, ArriveWithTheirValues) {
  auto request = read_chat(
      R"("top_k":-1,"min_p":0.25,"presence_penalty":1.5,"frequency_penalty":-1.5,
         "repetition_penalty":1.25,"sharing":"off","add_generation_prompt":false,
         "add_special_tokens":true,"max_tokens":5,"logprobs":true,"stop":"END")");
  ASSERT_TRUE(request) << request.error().message;
  const GenerationFields& fields = request->generation;
  EXPECT_EQ(fields.sampling.top_k, 0);
  EXPECT_EQ(fields.sampling.min_p, 0.25f);
  EXPECT_EQ(fields.sampling.presence_penalty, 1.5f);
  EXPECT_EQ(fields.sampling.frequency_penalty, -1.5f);
  EXPECT_EQ(fields.sampling.repetition_penalty, 1.25f);
  EXPECT_EQ(fields.sharing.mode, SharingRequest::Mode::kOff);
  EXPECT_EQ(fields.max_tokens, 5);
  EXPECT_THAT(*fields.stop, ElementsAre("END"));
  EXPECT_EQ(request->num_top_logprobs, 0);
  EXPECT_FALSE(request->prompt.adds_generation_prompt);
  EXPECT_TRUE(request->prompt.adds_special_tokens);
  EXPECT_EQ(read_chat(R"("sharing":"auto")")->generation.sharing.mode, SharingRequest::Mode::kAuto);
  EXPECT_EQ(read_chat(R"("sharing":{"sender":"a"})")->generation.sharing.plan, "auto");
  EXPECT_EQ(read_chat(R"("max_tokens":5,"max_completion_tokens":6)")->generation.max_tokens, 6);
  auto text = read_completion(R"("echo":true,"add_special_tokens":false,"max_tokens":3)");
  ASSERT_TRUE(text);
  EXPECT_TRUE(text->is_echoed);
  EXPECT_FALSE(text->adds_special_tokens);
  EXPECT_EQ(text->generation.max_tokens, 3);
}

TEST(TemplateArguments, LeaveTheTemplatesOwnAlone) {
  for (const char* name : {"messages", "tools", "bos_token", "eos_token"})
    EXPECT_EQ(outcome(read_chat(fmt::format(R"("chat_template_kwargs":{{"{}":1}})", name))),
              "chat_template_kwargs: invalid_value");
}

TEST(OutputFormats, HaveLimits) {
  auto format = [](const std::string& kind, const std::string& value) {
    return outcome(read_chat(R"("structured_outputs":{")" + kind + "\":" + value + "}"));
  };
  auto text = [](size_t bytes) { return '"' + std::string(bytes, 'x') + '"'; };
  EXPECT_EQ(format("regex", text(kMaxRegexBytes)), "taken");
  EXPECT_EQ(format("regex", text(kMaxRegexBytes + 1)),
            "structured_outputs.regex: string_above_max_length");
  EXPECT_EQ(format("grammar", text(kMaxGrammarBytes)), "taken");
  EXPECT_EQ(format("grammar", text(kMaxGrammarBytes + 1)),
            "structured_outputs.grammar: string_above_max_length");
  EXPECT_EQ(format("choice", "[" + text(kMaxOutputChoiceBytes - 4) + "]"), "taken");
  EXPECT_EQ(format("choice", "[" + text(kMaxOutputChoiceBytes - 3) + "]"),
            "structured_outputs.choice: string_above_max_length");
  auto choices = [&](size_t count) {
    std::string list = "\"a\"";
    for (size_t i = 1; i < count; ++i) list += ",\"a\"";
    return format("choice", "[" + list + "]");
  };
  EXPECT_EQ(choices(kMaxOutputChoices), "taken");
  EXPECT_EQ(choices(kMaxOutputChoices + 1), "structured_outputs.choice: array_above_max_length");
  auto schema = [&](size_t bytes) {
    return format("json", R"({"a":")" + std::string(bytes - 8, 'x') + R"("})");
  };
  EXPECT_EQ(schema(kMaxSchemaBytes), "taken");
  EXPECT_EQ(schema(kMaxSchemaBytes + 1), "structured_outputs.json: string_above_max_length");
  EXPECT_EQ(format("json", "true"), "taken");
  EXPECT_EQ(format("json", R"("true")"), "taken");
  EXPECT_EQ(format("json", "1"), "structured_outputs.json: invalid_type");
  auto named = [](size_t bytes) {
    return outcome(
        read_chat(R"("response_format":{"type":"json_schema","json_schema":{"schema":{},)"
                  R"("name":")" +
                  std::string(bytes, 'x') + R"("}})"));
  };
  EXPECT_EQ(named(kMaxSchemaNameBytes), "taken");
  EXPECT_EQ(named(kMaxSchemaNameBytes + 1),
            "response_format.json_schema.name: string_above_max_length");
}

TEST(OtherRequests, ArriveWithTheirValues) {
  auto text = parse_tokenize_request(R"({"model":"m","prompt":"x","return_token_strs":true})");
  ASSERT_TRUE(text);
  EXPECT_EQ(text->model, "m");
  EXPECT_TRUE(text->wants_token_strings);
  EXPECT_TRUE(text->adds_special_tokens);
  EXPECT_FALSE(parse_tokenize_request(R"({"prompt":"x"})")->wants_token_strings);
  for (const char* name : {"chat_template", "continue_final_message"})
    EXPECT_EQ(outcome(parse_tokenize_request(fmt::format(
                  R"({{"messages":[{{"role":"user","content":"x"}}],"{}":"x"}})", name))),
              std::string(name) + ": unsupported_parameter");
  auto tokens = parse_detokenize_request(R"({"model":"m","tokens":[1,2]})");
  ASSERT_TRUE(tokens);
  EXPECT_EQ(tokens->model, "m");
  EXPECT_THAT(tokens->tokens, ElementsAre(1, 2));
  EXPECT_EQ(outcome(parse_detokenize_request("{}")), "tokens: missing_required_parameter");
  EXPECT_EQ(outcome(parse_detokenize_request(R"({"tokens":"x"})")), "tokens: invalid_type");
  auto load = parse_load_adapter_request(R"({"lora_name":"a","lora_path":"b"})");
  ASSERT_TRUE(load);
  EXPECT_EQ(load->name, "a");
  EXPECT_EQ(load->path, "b");
  EXPECT_EQ(load->if_taken, LoadAdapterRequest::IfTaken::kRefuse);
  EXPECT_EQ(parse_unload_adapter_request(R"({"lora_name":"a"})")->name, "a");
  EXPECT_EQ(
      outcome(parse_load_adapter_request(R"({"lora_name":"a","lora_path":"b","lora_int_id":0})")),
      "lora_int_id: unsupported_parameter");
  EXPECT_EQ(parse_unload_adapter_request(R"({"lora_name":"a","lora_int_id":1})")->name, "a");
  EXPECT_EQ(outcome(parse_unload_adapter_request(R"({"lora_name":"a","lora_int_id":"1"})")),
            "lora_int_id: invalid_type");
}

TEST(EmbeddingFields, ArriveWithTheirValues) {
  auto embed = [](const std::string& fields) {
    return parse_embedding_request(R"({"model":"m","input":"a",)" + fields + "}");
  };
  auto rank = [](const std::string& fields) {
    return parse_rerank_request(R"({"model":"m","query":"q","documents":["a","b","c"],)" + fields +
                                "}");
  };
  auto embedding = embed(R"("add_special_tokens":false,"dimensions":1,"user":"u")");
  ASSERT_TRUE(embedding);
  EXPECT_EQ(embedding->model, "m");
  EXPECT_FALSE(embedding->adds_special_tokens);
  EXPECT_EQ(embedding->dimensions, 1);
  EXPECT_EQ(embedding->priority, 0);
  EXPECT_TRUE(embed(R"("priority":2147483647)")->adds_special_tokens);
  EXPECT_FALSE(embed(R"("priority":2147483647)")->dimensions);
  EXPECT_EQ(outcome(embed(R"("priority":2147483648)")), "priority: integer_above_max_value");
  EXPECT_EQ(outcome(embed(R"("priority":-2147483648)")), "priority: integer_below_min_value");
  EXPECT_EQ(embed(R"("encoding_format":"float")")->format, EmbeddingFormat::kFloat);
  auto ranked = rank(R"("top_n":2,"add_special_tokens":false,"priority":5,"user":"u")");
  ASSERT_TRUE(ranked);
  EXPECT_EQ(ranked->model, "m");
  EXPECT_EQ(ranked->query, "q");
  EXPECT_EQ(ranked->num_results, 2u);
  EXPECT_FALSE(ranked->adds_special_tokens);
  EXPECT_EQ(ranked->priority, 5);
  EXPECT_TRUE(ranked->returns_documents);
  EXPECT_EQ(rank(R"("user":null)")->num_results, 3u);
  EXPECT_TRUE(rank(R"("user":null)")->adds_special_tokens);
  EXPECT_EQ(rank(R"("top_n":2147483647)")->num_results, 3u);
  EXPECT_EQ(outcome(rank(R"("top_n":2147483648)")), "top_n: integer_above_max_value");
  const std::string user = R"("user":")" + std::string(kMaxUserBytes + 1, 'x') + "\"";
  EXPECT_EQ(outcome(embed(user)), "user: string_above_max_length");
  EXPECT_EQ(outcome(rank(user)), "user: string_above_max_length");
  EXPECT_EQ(outcome(embed(R"("normalize":true,"embed_dtype":"float32")")), "taken");
  EXPECT_EQ(outcome(embed(R"("normalize":false)")), "normalize: unsupported_parameter");
  EXPECT_EQ(outcome(embed(R"("normalize":1)")), "normalize: invalid_type");
  EXPECT_EQ(outcome(embed(R"("embed_dtype":"float16")")), "embed_dtype: unsupported_parameter");
  for (const char* name : {"truncate_prompt_tokens", "messages", "additional_data", "endianness"})
    EXPECT_EQ(outcome(embed(fmt::format(R"("{}":1)", name))),
              std::string(name) + ": unsupported_parameter");
  for (const char* name : {"truncate_prompt_tokens", "max_chunks_per_doc", "max_tokens_per_doc",
                           "rank_fields", "activation", "instruction"})
    EXPECT_EQ(outcome(rank(fmt::format(R"("{}":1)", name))),
              std::string(name) + ": unsupported_parameter");
}

TEST(Lists, HaveSoManyTexts) {
  auto list = [](size_t count) {
    std::string texts = "\"a\"";
    for (size_t i = 1; i < count; ++i) texts += ",\"a\"";
    return "[" + texts + "]";
  };
  auto rank = [&](size_t count) {
    return outcome(
        parse_rerank_request(R"({"model":"m","query":"q","documents":)" + list(count) + "}"));
  };
  EXPECT_EQ(rank(kMaxPrompts - 1), "taken");
  EXPECT_EQ(rank(kMaxPrompts), "documents: array_above_max_length");
  auto embed = [&](size_t count) {
    return outcome(parse_embedding_request(R"({"model":"m","input":)" + list(count) + "}"));
  };
  EXPECT_EQ(embed(kMaxPrompts), "taken");
  EXPECT_EQ(embed(kMaxPrompts + 1), "input: array_above_max_length");
}

TEST(JsonNumbers, AtTheirEnds) {
  auto seed = [](const char* number) {
    return read_chat(std::string(R"("seed":)") + number)->generation.seed;
  };
  EXPECT_EQ(seed("9223372036854775807"), uint64_t{9223372036854775807u});
  EXPECT_EQ(seed("-1"), ~uint64_t{0});
  for (const char* beyond : {"9223372036854775808", "18446744073709551615"}) {
    auto refused = read_chat(std::string(R"("seed":)") + beyond);
    ASSERT_EQ(outcome(refused), "seed: integer_above_max_value");
    EXPECT_EQ(refused.error().message,
              std::string("Invalid 'seed': integer above maximum value. Expected a value <= "
                          "9223372036854775807, but got ") +
                  beyond + " instead.");
  }
  EXPECT_EQ(seed("-9223372036854775808"), uint64_t{1} << 63);
  EXPECT_EQ(outcome(read_chat(R"("temperature":18446744073709551615)")),
            "temperature: decimal_above_max_value");
}

}  // namespace

}  // namespace droidspeak::openai
