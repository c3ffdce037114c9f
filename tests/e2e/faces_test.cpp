// How answers look that the tiny model would never give: reasoning, text and a call in one.
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "e2e/tiny_server.h"
#include "server/anthropic/messages_face.h"
#include "server/openai/responses_face.h"
#include "server/service.h"

namespace droidspeak {

namespace {

using Json = nlohmann::json;

constexpr const char* kAnswer =
    "<think>hm</think>Yes.<tool_call>\n{\"name\": \"look\", \"arguments\": {\"a\": 1}}\n"
    "</tool_call>";

class Faces : public testing::Test {
 protected:
  AnswerParser parser() const {
    return AnswerParser(&call_syntax(CallSyntax::Kind::kHermes), AnswerParser::Beginning::kUnknown,
                        {"look"});
  }

  // Of a prompt of three tokens, with an answer of nine.
  std::unique_ptr<Generation> generation() const {
    auto stream = std::make_shared<TokenStream>();
    PrefillReport report;
    report.cached_tokens = 1;
    stream->push(report);
    for (int i = 0; i < 9; ++i) stream->push(SampledToken{'a', -1, {}});
    stream->push(Finished{FinishReason::kStop, -1});
    auto made = std::make_unique<Generation>(
        [stream](const GenerationRequest&) -> Result<std::shared_ptr<TokenStream>> {
          return stream;
        },
        *tokenizer_, std::vector<GenerationRequest>{{.prompt = {1, 2, 3}}}, ChoiceOptions{});
    EXPECT_TRUE(made->start());
    while (!made->is_done()) (void)made->next(std::chrono::milliseconds(0));
    return made;
  }

  static Json whole(AnswerFace& face, const Generation& generation, FinishReason finish) {
    JsonWriter json;
    face.write_whole(json, generation, {{kAnswer, {}, finish, ""}});
    return Json::parse(std::move(json).take());
  }

  // The answer comes a character at a time.
  static std::vector<Json> events(AnswerFace& face,
                                  const Generation& generation,
                                  FinishReason finish) {
    std::string text;
    for (const char* c = kAnswer; *c != 0; ++c)
      text += face.piece_events(generation, {0, std::string(1, *c), {}, {}});
    text += face.piece_events(generation, {0, "", {}, finish});
    text += face.end_events(generation);
    std::istringstream lines(text);
    std::vector<Json> found;
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("data: ")) found.push_back(Json::parse(line.substr(6)));
    }
    return found;
  }

  static std::vector<Json> of_type(const std::vector<Json>& events, const std::string& type) {
    std::vector<Json> found;
    std::ranges::copy_if(events, std::back_inserter(found),
                         [&](const Json& event) { return event["type"] == type; });
    return found;
  }

  TinyServer server_;
  std::unique_ptr<Tokenizer> tokenizer_ = load_hf_tokenizer(server_.folder() / "base");
  Service service_{server_.engine(), *tokenizer_, {}};
};

TEST_F(Faces, AMessageHasABlockForEachKind) {
  auto generation = this->generation();
  auto face = anthropic::make_messages_face(service_, "base", parser());
  Json message = whole(*face, *generation, FinishReason::kStop);
  Json& content = message["content"];
  ASSERT_EQ(content.size(), 3u) << message;
  EXPECT_EQ(content[0], (Json{{"type", "thinking"}, {"thinking", "hm"}, {"signature", ""}}));
  EXPECT_EQ(content[1], (Json{{"type", "text"}, {"text", "Yes."}}));
  EXPECT_TRUE(content[2]["id"].get<std::string>().starts_with("toolu"));
  content[2].erase("id");
  EXPECT_EQ(content[2], (Json{{"type", "tool_use"}, {"name", "look"}, {"input", {{"a", 1}}}}));
  EXPECT_EQ(message["stop_reason"], "tool_use");
  EXPECT_EQ(message["usage"], (Json{{"input_tokens", 2},
                                    {"cache_creation_input_tokens", 0},
                                    {"cache_read_input_tokens", 1},
                                    {"output_tokens", 9}}));
}

TEST_F(Faces, AMessageIsStreamedBlockByBlock) {
  auto generation = this->generation();
  auto face = anthropic::make_messages_face(service_, "base", parser());
  std::vector<Json> all = events(*face, *generation, FinishReason::kStop);
  std::vector<Json> starts = of_type(all, "content_block_start");
  ASSERT_EQ(starts.size(), 3u);
  EXPECT_EQ(starts[0]["content_block"],
            (Json{{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}));
  EXPECT_EQ(starts[1]["content_block"], (Json{{"type", "text"}, {"text", ""}}));
  EXPECT_EQ(starts[2]["content_block"]["name"], "look");
  EXPECT_EQ(starts[2]["content_block"]["input"], Json::object());
  std::vector<std::string> texts(3);
  for (const Json& event : of_type(all, "content_block_delta")) {
    const Json& delta = event["delta"];
    for (const char* field : {"thinking", "text", "partial_json"})
      texts.at(event["index"]) += delta.value(field, "");
  }
  EXPECT_THAT(texts, testing::ElementsAre("hm", "Yes.", R"({"a": 1})"));
  EXPECT_EQ(of_type(all, "content_block_stop").size(), 3u);
  ASSERT_EQ(of_type(all, "message_start").size(), 1u);
  ASSERT_EQ(of_type(all, "message_delta").size(), 1u);
  EXPECT_EQ(of_type(all, "message_delta")[0]["delta"]["stop_reason"], "tool_use");
  EXPECT_EQ(all.back()["type"], "message_stop");
}

class ResponseFaces : public Faces {
 protected:
  std::shared_ptr<AnswerFace> face(const std::string& more = "") {
    auto request =
        openai::parse_responses_request(R"({"model": "base", "input": "x")" + more + "}");
    EXPECT_TRUE(request);
    return openai::make_responses_face(service_, std::move(*request), parser());
  }

  // Without what differs from answer to answer.
  static Json without_ids(Json response) {
    for (const char* name : {"id", "created_at"}) response.erase(name);
    for (Json& item : response["output"]) {
      item.erase("id");
      item.erase("call_id");
    }
    return response;
  }
};

TEST_F(ResponseFaces, AResponseHasAnItemForEachKind) {
  auto generation = this->generation();
  Json response = whole(*face(), *generation, FinishReason::kStop);
  const Json output = without_ids(response)["output"];
  ASSERT_EQ(output.size(), 3u) << response;
  EXPECT_EQ(output[0], (Json{{"type", "reasoning"},
                             {"status", "completed"},
                             {"summary", Json::array()},
                             {"content", {{{"type", "reasoning_text"}, {"text", "hm"}}}}}));
  EXPECT_EQ(output[1], (Json{{"type", "message"},
                             {"status", "completed"},
                             {"role", "assistant"},
                             {"content",
                              {{{"type", "output_text"},
                                {"text", "Yes."},
                                {"annotations", Json::array()},
                                {"logprobs", Json::array()}}}}}));
  EXPECT_EQ(output[2], (Json{{"type", "function_call"},
                             {"status", "completed"},
                             {"name", "look"},
                             {"arguments", R"({"a": 1})"}}));
  EXPECT_TRUE(response["output"][2]["call_id"].get<std::string>().starts_with("call"));
  EXPECT_EQ(response["status"], "completed");
  EXPECT_EQ(response["incomplete_details"], Json());
  EXPECT_EQ(response["usage"],
            (Json{{"input_tokens", 3},
                  {"input_tokens_details", {{"cached_tokens", 1}, {"cache_write_tokens", 0}}},
                  {"output_tokens", 9},
                  {"output_tokens_details", {{"reasoning_tokens", 2}}},
                  {"total_tokens", 12}}));
}

TEST_F(ResponseFaces, AResponseRepeatsWhatWasAsked) {
  auto generation = this->generation();
  Json response = whole(*face(R"(, "instructions": "be brief", "max_output_tokens": 20,
      "temperature": 0.5, "top_p": 0.25, "metadata": {"a": "b"})"),
                        *generation, FinishReason::kLength);
  EXPECT_EQ(response["object"], "response");
  EXPECT_EQ(response["model"], "base");
  EXPECT_EQ(response["status"], "incomplete");
  EXPECT_EQ(response["incomplete_details"], (Json{{"reason", "max_output_tokens"}}));
  EXPECT_EQ(response["instructions"], "be brief");
  EXPECT_EQ(response["max_output_tokens"], 20);
  EXPECT_EQ(response["temperature"], 0.5);
  EXPECT_EQ(response["top_p"], 0.25);
  EXPECT_EQ(response["metadata"], (Json{{"a", "b"}}));
  EXPECT_EQ(response["text"], (Json{{"format", {{"type", "text"}}}}));
  EXPECT_EQ(response["reasoning"], (Json{{"effort", nullptr}, {"summary", nullptr}}));
  const Json constants = {{"background", false},         {"error", nullptr},
                          {"parallel_tool_calls", true}, {"previous_response_id", nullptr},
                          {"service_tier", "default"},   {"store", false},
                          {"tool_choice", "auto"},       {"tools", Json::array()},
                          {"truncation", "disabled"}};
  for (const auto& [name, value] : constants.items()) {
    ASSERT_TRUE(response.contains(name)) << name;
    EXPECT_EQ(response[name], value) << name;
  }
}

TEST_F(ResponseFaces, RepeatTheEffortThatWasAskedFor) {
  auto generation = this->generation();
  auto effort = [&](const std::string& fields) {
    const Json response = whole(*face("," + fields), *generation, FinishReason::kStop);
    return response["reasoning"]["effort"];
  };
  for (const char* field : {R"("reasoning":{"effort":"none"})", R"("reasoning_effort":"none")",
                            R"("reasoning":{"effort":null},"reasoning_effort":"none")"})
    EXPECT_EQ(effort(field), "none") << field;
  for (const char* field : {R"("reasoning":{"effort":""})", R"("reasoning":{"enabled":false})",
                            R"("reasoning_effort":null)", R"("thinking":false)"})
    EXPECT_EQ(effort(field), Json()) << field;
}

TEST_F(ResponseFaces, AStreamEndsWithTheWholeResponse) {
  auto generation = this->generation();
  std::vector<Json> all = events(*face(), *generation, FinishReason::kStop);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i]["sequence_number"], i);
  EXPECT_EQ(all[0]["type"], "response.created");
  EXPECT_EQ(all[0]["response"]["status"], "in_progress");
  EXPECT_EQ(all[0]["response"]["usage"], Json());
  EXPECT_EQ(all[1]["type"], "response.in_progress");
  EXPECT_EQ(all.back()["type"], "response.completed");
  EXPECT_EQ(without_ids(all.back()["response"]),
            without_ids(whole(*face(), *generation, FinishReason::kStop)));
}

TEST_F(ResponseFaces, AStreamBringsEachItemInPieces) {
  auto generation = this->generation();
  std::vector<Json> all = events(*face(), *generation, FinishReason::kStop);
  const Json output = all.back()["response"]["output"];
  std::vector<Json> added = of_type(all, "response.output_item.added");
  std::vector<Json> done = of_type(all, "response.output_item.done");
  ASSERT_EQ(added.size(), 3u);
  ASSERT_EQ(done.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(added[i]["output_index"], i);
    EXPECT_EQ(added[i]["item"]["id"], output[i]["id"]);
    EXPECT_EQ(added[i]["item"]["status"], "in_progress");
    EXPECT_EQ(done[i]["output_index"], i);
    EXPECT_EQ(done[i]["item"], output[i]);
  }

  struct Piecewise {
    std::string type;
    std::string end_field;
    std::string text;
  };

  const std::vector<Piecewise> kinds = {
      {"response.reasoning_text", "text", "hm"},
      {"response.output_text", "text", "Yes."},
      {"response.function_call_arguments", "arguments", R"({"a": 1})"}};
  for (size_t i = 0; i < kinds.size(); ++i) {
    std::string text;
    for (const Json& event : of_type(all, kinds[i].type + ".delta")) {
      EXPECT_EQ(event["item_id"], output[i]["id"]);
      text += event["delta"];
    }
    EXPECT_EQ(text, kinds[i].text);
    std::vector<Json> ends = of_type(all, kinds[i].type + ".done");
    ASSERT_EQ(ends.size(), 1u) << kinds[i].type;
    EXPECT_EQ(ends[0]["item_id"], output[i]["id"]);
    EXPECT_EQ(ends[0][kinds[i].end_field], kinds[i].text);
  }
  std::vector<Json> parts = of_type(all, "response.content_part.done");
  ASSERT_EQ(of_type(all, "response.content_part.added").size(), 2u);
  ASSERT_EQ(parts.size(), 2u);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(parts[i]["part"], output[i]["content"][0]);
}

TEST_F(ResponseFaces, AFailureEndsTheStream) {
  std::string text = face()->error_events(status_error(429, "full"));
  Json failed = Json::parse(text.substr(text.rfind("data: ") + 6));
  EXPECT_EQ(failed["type"], "response.failed");
  EXPECT_EQ(failed["sequence_number"], 2);
  EXPECT_EQ(failed["response"]["status"], "failed");
  EXPECT_EQ(failed["response"]["error"],
            (Json{{"code", "rate_limit_exceeded"}, {"message", "full"}}));
  EXPECT_EQ(failed["response"]["usage"], Json());
}

// What the engine refuses once it answers is the format, which takes too long to follow; without
// one it is the sharing that was asked for.
TEST_F(Faces, NameTheFieldThatTheEngineRefuses) {
  HttpRequest request;
  request.is_connected = [] { return true; };
  auto refusal = [&](std::shared_ptr<const CompiledGrammar> grammar) {
    auto stream = std::make_shared<TokenStream>();
    stream->push(Error{ErrorCode::kInvalidArgument, "no"});
    Answer answer;
    answer.fields.output_param = "text.format";
    answer.fields.sharing.mode = SharingRequest::Mode::kExplicit;
    answer.face = openai::make_responses_face(service_, {}, parser());
    answer.generation = std::make_shared<Generation>(
        [stream](const GenerationRequest&) -> Result<std::shared_ptr<TokenStream>> {
          return stream;
        },
        *tokenizer_,
        std::vector<GenerationRequest>{{.prompt = {1, 2, 3}, .grammar = std::move(grammar)}},
        ChoiceOptions{});
    return Json::parse(answer_request(request, std::move(answer)).body)["error"]["param"];
  };
  auto grammar = service_.compile({OutputFormat::Kind::kRegex, "a+"}, "text.format", request);
  ASSERT_TRUE(grammar);
  EXPECT_EQ(refusal(*grammar), "text.format");
  EXPECT_EQ(refusal(nullptr), "sharing");
}

}  // namespace

}  // namespace droidspeak
