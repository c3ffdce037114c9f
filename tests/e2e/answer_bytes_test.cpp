// Answers byte for byte, whole and as events, from an engine that says what the test wants. What is
// expected stands in answers/; ids show as their prefix and a number, times as 0.
#include <map>
#include <regex>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "e2e/tiny_server.h"
#include "server/anthropic/messages_face.h"
#include "server/openai/responses_face.h"
#include "server/service.h"

namespace droidspeak {

namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::Pair;

constexpr const char* kThoughtsTextAndCall =
    "<think>ab</think>\n\nHi\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
constexpr const char* kCutCall = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"";

class CollectingWriter final : public StreamWriter {
 public:
  // The client leaves after so many pieces.
  explicit CollectingWriter(int num_pieces = 1000) : num_left_(num_pieces) {}

  bool write(std::string_view bytes) override {
    text_ += bytes;
    return --num_left_ > 0;
  }

  bool is_connected() const override { return num_left_ > 0; }

  const std::string& text() const { return text_; }

 private:
  std::string text_;
  int num_left_;
};

// With "resp-0" for the first id, "msg-1" for the second: equal ones stay equal.
std::string without_chance(const std::string& text) {
  static const std::regex kChance(R"(([a-z]+)-[0-9a-f]{32}|("created(_at)?":)[0-9]+)");
  std::map<std::string, size_t> ids;
  std::string result;
  size_t end = 0;
  for (auto match = std::sregex_iterator(text.begin(), text.end(), kChance);
       match != std::sregex_iterator(); ++match) {
    auto position = static_cast<size_t>(match->position());
    result += text.substr(end, position - end);
    if ((*match)[1].matched) {
      size_t number = ids.emplace(match->str(), ids.size()).first->second;
      result += (*match)[1].str() + "-" + std::to_string(number);
    } else {
      result += (*match)[2].str() + "0";
    }
    end = position + static_cast<size_t>(match->length());
  }
  return result + text.substr(end);
}

void expect_answer(const std::string& name, const std::string& text) {
  std::string path = DROIDSPEAK_SOURCE_DIR "/tests/e2e/answers/" + name + ".txt";
  EXPECT_EQ(without_chance(text) + "\n", read_file(path)) << name;
}

PrefillReport prefill_report() {
  PrefillReport report;
  report.sender = "base";
  report.plan = "0,1,3";
  report.translated = true;
  report.reused_tokens = 2;
  report.cached_tokens = 1;
  report.recomputed_layers = 4;
  report.looked_at_tokens = 5;
  report.tier = "disk";
  report.ttft_ms = 1.23456;
  return report;
}

class AnswerBytes : public testing::Test {
 protected:
  // What the engine says: `text` in tokens of a byte each, then `end`.
  std::shared_ptr<Generation> generation(const std::string& text,
                                         const StreamItem& end,
                                         const std::vector<std::string>& stop = {}) {
    auto submit = [text, end](const GenerationRequest&) -> Result<std::shared_ptr<TokenStream>> {
      auto stream = std::make_shared<TokenStream>();
      stream->push(prefill_report());
      for (char c : text) stream->push(SampledToken{static_cast<unsigned char>(c), -1, {}});
      stream->push(end);
      return stream;
    };
    std::vector<GenerationRequest> requests(1);
    requests[0].prompt = std::vector<int32_t>{97, 98, 99};
    requests[0].num_top_logprobs = num_top_logprobs_;
    return std::make_shared<Generation>(submit, *tokenizer_, requests,
                                        ChoiceOptions{1, stop, 0, SpecialTokens::kParse});
  }

  static AnswerParser parser() {
    return {&call_syntax(CallSyntax::Kind::kHermes), AnswerParser::Beginning::kUnknown, {"f"}};
  }

  std::shared_ptr<AnswerFace> responses_face(const std::string& fields) {
    auto request = openai::parse_responses_request(R"({"model":"base","input":"x")" + fields + "}");
    EXPECT_TRUE(request);
    return openai::make_responses_face(service_, *request, parser());
  }

  std::shared_ptr<AnswerFace> messages_face() {
    return anthropic::make_messages_face(service_, "base", parser());
  }

  static openai::GenerationFields fields(bool is_streamed) {
    openai::GenerationFields fields;
    fields.model = "base";
    fields.is_streamed = is_streamed;
    return fields;
  }

  // Both ways of an answer, after a line that says which.
  template <class MakeFace>
  std::string both(MakeFace make_face,
                   const std::string& text,
                   const StreamItem& end,
                   const std::vector<std::string>& stop = {}) {
    HttpRequest request;
    request.is_connected = [] { return true; };
    HttpResponse whole =
        answer_request(request, {fields(false), generation(text, end, stop), make_face()});
    HttpResponse streamed =
        answer_request(request, {fields(true), generation(text, end, stop), make_face()});
    CollectingWriter writer;
    streamed.stream(writer);
    EXPECT_EQ(streamed.content_type, "text/event-stream");
    EXPECT_THAT(streamed.headers, ElementsAre(Pair("Cache-Control", "no-cache")));
    return "whole " + std::to_string(whole.status) + "\n" + whole.body + "\nstreamed\n" +
           writer.text();
  }

  int32_t num_top_logprobs_ = -1;
  TinyServer server_;
  const std::unique_ptr<Tokenizer> tokenizer_ = load_hf_tokenizer(server_.folder() / "base");
  Service service_{server_.engine(), *tokenizer_, {}};
};

const StreamItem kStopped = Finished{FinishReason::kStop, -1};
const StreamItem kCutOff = Finished{FinishReason::kLength, -1};

TEST_F(AnswerBytes, OfResponses) {
  auto plain = [&] { return responses_face(""); };
  auto full = [&] {
    return responses_face(
        R"(,"instructions":"Be kind.","metadata":{"a":"b"},"max_output_tokens":7,"temperature":0.5,
           "top_p":0.25,"parallel_tool_calls":false,"text":{"format":{"type":"json_object"}},
           "tools":[{"type":"function","name":"f","description":"d","strict":true,"parameters":{}}],
           "tool_choice":"required")");
  };
  expect_answer("responses_call", both(plain, kThoughtsTextAndCall, kStopped));
  expect_answer("responses_fields", both(full, "", kStopped));
  expect_answer("responses_cut_text", both(plain, "Hi", kCutOff));
  expect_answer("responses_cut_call", both(plain, kCutCall, kStopped));
  expect_answer("responses_failed", both(plain, "Hi", Error{ErrorCode::kInternal, "it broke"}) +
                                        both(plain, "", Error{ErrorCode::kExhausted, "no room"}));
}

TEST_F(AnswerBytes, OfMessages) {
  auto face = [&] { return messages_face(); };
  expect_answer("messages_call", both(face, kThoughtsTextAndCall, kStopped));
  expect_answer("messages_text", both(face, "Hi", kStopped));
  expect_answer("messages_cut_text", both(face, "Hi", kCutOff));
  expect_answer("messages_cut_call", both(face, kCutCall, kStopped));
  expect_answer("messages_stop", both(face, "Hi!", kStopped, {"!"}));
  expect_answer("messages_failed", both(face, "Hi", Error{ErrorCode::kExhausted, "no room"}));
}

TEST(Report, SaysWhereAnAnswerWentOnOtherwise) {
  PrefillReport report = prefill_report();
  report.fallback = "the cache of /somewhere is gone";
  report.fallback_reason = "no_cache";
  report.fallback_after_tokens = 7;
  EXPECT_THAT(droidspeak_json(report),
              EndsWith(R"("ttft_ms":1.235,"fallback":{"reason":"no_cache","after_tokens":7}})"));
}

TEST_F(AnswerBytes, AreNotedForTheLog) {
  HttpRequest request;
  request.is_connected = [] { return true; };
  auto noted = ElementsAre(
      Pair("model", "\"base\""), Pair("prompt_tokens", "3"), Pair("cached_tokens", "1"),
      Pair("completion_tokens", "2"),
      Pair(
          "droidspeak",
          R"({"sender":"base","plan":"0,1,3","translated":true,"reused_tokens":2,)"
          R"("recomputed_layers":4,"looked_at_tokens":5,"tier":"disk","ttft_ms":1.235,"fallback":null})"));
  HttpResponse whole =
      answer_request(request, {fields(false), generation("Hi", kStopped), messages_face()});
  EXPECT_THAT(whole.notes->fields, noted);
  EXPECT_FALSE(whole.notes->client_left);
  HttpResponse streamed =
      answer_request(request, {fields(true), generation("Hi", kStopped), messages_face()});
  CollectingWriter writer;
  streamed.stream(writer);
  EXPECT_THAT(streamed.notes->fields, noted);
  EXPECT_FALSE(streamed.notes->client_left);
}

TEST_F(AnswerBytes, EndWhenTheClientLeaves) {
  HttpRequest request;
  request.is_connected = [] { return false; };
  HttpResponse whole =
      answer_request(request, {fields(false), generation("Hi", kStopped), messages_face()});
  EXPECT_EQ(whole.status, 499);
  EXPECT_TRUE(whole.notes->client_left);
  for (int pieces : {0, 1}) {
    HttpResponse streamed =
        answer_request(request, {fields(true), generation("Hi", kStopped), messages_face()});
    CollectingWriter writer(pieces);
    streamed.stream(writer);
    EXPECT_TRUE(streamed.notes->client_left);
    EXPECT_EQ(writer.text().empty(), pieces == 0);
    EXPECT_EQ(writer.text().find("message_stop"), std::string::npos);
  }
}

// With long answers of its own.
class LongFace final : public AnswerFace {
 public:
  static constexpr size_t kNumTexts = 10000;

  void write_whole(JsonWriter& json,
                   const Generation& /*generation*/,
                   const std::vector<WholeChoice>& /*choices*/) override {
    json.begin_array();
    for (num_made = 0; num_made < kNumTexts; ++num_made) json.text(std::string(100, 'x'));
    json.end_array();
  }

  std::string piece_events(const Generation&, const ChoicePiece&) override { return ""; }

  std::string end_events(const Generation&) override { return ""; }

  std::string error_events(const ApiError&) override { return ""; }

  HttpResponse refusal(const ApiError& error) const override { return error_response(error); }

  size_t num_made = 0;
};

TEST_F(AnswerBytes, ThatAreWrittenInPiecesEndWhenTheClientLeaves) {
  num_top_logprobs_ = 0;
  HttpRequest request;
  request.is_connected = [] { return true; };
  auto face = std::make_shared<LongFace>();
  HttpResponse whole =
      answer_request(request, {fields(false), generation(std::string(5000, 'a'), kStopped), face});
  ASSERT_TRUE(whole.stream) << "too many logprobs for one piece";
  CollectingWriter patient;
  whole.stream(patient);
  EXPECT_EQ(face->num_made, LongFace::kNumTexts);
  EXPECT_FALSE(whole.notes->client_left);
  CollectingWriter leaving(2);
  whole.stream(leaving);
  EXPECT_LT(leaving.text().size(), 3 * JsonWriter::kPieceBytes);
  EXPECT_LT(face->num_made, LongFace::kNumTexts / 4);
  EXPECT_TRUE(whole.notes->client_left) << "the log says 499";
}

// What an engine's error names depends on what was asked for.
TEST_F(AnswerBytes, OfErrorsNameTheirField) {
  HttpRequest request;
  request.is_connected = [] { return true; };
  auto error_of = [&](ErrorCode code, const openai::GenerationFields& wanted) {
    auto face = responses_face("");
    return answer_request(request, {wanted, generation("", Error{code, "m"}), face}).body;
  };
  auto body = [](const char* param, const char* code) {
    return fmt::format(
        R"({{"error":{{"message":"m","type":"invalid_request_error","param":{},"code":"{}"}}}})",
        param, code);
  };
  openai::GenerationFields shared = fields(false);
  shared.sharing.mode = SharingRequest::Mode::kExplicit;
  EXPECT_EQ(error_of(ErrorCode::kInvalidArgument, fields(false)), body("null", "invalid_value"));
  EXPECT_EQ(error_of(ErrorCode::kInvalidArgument, shared), body("\"sharing\"", "invalid_value"));
  EXPECT_EQ(error_of(ErrorCode::kNotFound, shared), body("\"model\"", "model_not_found"));
}

}  // namespace

}  // namespace droidspeak
