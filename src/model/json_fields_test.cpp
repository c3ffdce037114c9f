// What the fields of config.json and family.json may be, and what is said of those that may not.
#include "model/json_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace droidspeak {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class FieldsOf {
 public:
  explicit FieldsOf(std::string_view text) : fields_("c.json", text, {.depth = 8, .values = 100}) {}

  const JsonFields* operator->() const { return &fields_; }

  // What is said when the value is not taken.
  template <class Read>
  std::string refusal(const Read& read) const {
    try {
      read(fields_);
    } catch (const Failure& failure) {
      return failure.what();
    }
    return "";
  }

 private:
  JsonFields fields_;
};

TEST(JsonFields, AreAnObject) {
  for (const char* text : {"", "[]", "3", "{\"a\": 1", "null"})
    EXPECT_THROW(FieldsOf{text}, Failure) << text;
  EXPECT_THAT(FieldsOf("{\"a\": 1, \"b\": null}")->keys(), ElementsAre("a", "b"));
}

TEST(JsonFields, NullIsAsGoodAsMissing) {
  FieldsOf fields(R"({"null": null, "zero": 0})");
  EXPECT_FALSE(fields->has("null"));
  EXPECT_FALSE(fields->has("nothing"));
  EXPECT_TRUE(fields->has("zero"));
  EXPECT_EQ(fields->get_int_or("null", 7, 0, 9), 7);
  EXPECT_EQ(fields->get_double_or("null", 1.5), 1.5);
  EXPECT_TRUE(fields->get_bool_or("null", true));
  EXPECT_EQ(fields->get_string_or("null", "x"), "x");
  EXPECT_FALSE(fields->find_object("null"));
  EXPECT_EQ(fields.refusal([](const JsonFields& f) { f.get_int("null", 0, 9); }),
            "c.json: field \"null\" is null: expected an integer from 0 to 9");
  EXPECT_EQ(fields.refusal([](const JsonFields& f) { f.get_int("nothing", 0, 9); }),
            "c.json: field \"nothing\" is missing: expected an integer from 0 to 9");
}

TEST(JsonFields, IntegersLieInTheirRange) {
  FieldsOf fields(R"({"a": -3, "b": 5, "half": 1.5, "text": "1", "huge": 18446744073709551615,
                      "list": [1, 5], "mixed": [1, 6]})");
  EXPECT_EQ(fields->get_int("a", -3, 5), -3);
  EXPECT_EQ(fields->get_int("b", -3, 5), 5);
  EXPECT_EQ(fields->get_int_or("b", 1, -3, 5), 5);
  EXPECT_THAT(fields->get_ints("b", 0, 5), ElementsAre(5));
  EXPECT_THAT(fields->get_ints("list", 1, 5), ElementsAre(1, 5));
  for (const char* name : {"half", "text", "huge", "list"})
    EXPECT_THROW(fields->get_int(name, INT64_MIN, INT64_MAX), Failure) << name;
  EXPECT_THROW(fields->get_int("a", -2, 5), Failure);
  EXPECT_THROW(fields->get_int("b", -3, 4), Failure);
  EXPECT_EQ(fields.refusal([](const JsonFields& f) { f.get_ints("mixed", 1, 5); }),
            "c.json: field \"mixed[1]\" is 6: expected an integer from 1 to 5");
}

TEST(JsonFields, HaveTheirKind) {
  FieldsOf fields(R"({"yes": true, "number": 2.5, "text": "t", "numbers": [1, 2.5],
                      "texts": ["a", "b"], "object": {"x": {"y": 1}}, "objects": [{"z": 1}, {}]})");
  EXPECT_TRUE(fields->get_bool_or("yes", false));
  EXPECT_EQ(fields->get_double("number"), 2.5);
  EXPECT_EQ(fields->get_double_or("number", 1), 2.5);
  EXPECT_EQ(fields->get_string("text"), "t");
  EXPECT_EQ(fields->get_string_or("text", "x"), "t");
  EXPECT_THAT(fields->get_floats("numbers"), ElementsAre(1.0f, 2.5f));
  EXPECT_THAT(fields->get_strings("texts"), ElementsAre("a", "b"));
  EXPECT_TRUE(fields->is_text("text") && !fields->is_text("number") && !fields->is_text("none"));
  EXPECT_TRUE(fields->is_list("texts") && !fields->is_list("text") && !fields->is_list("none"));
  EXPECT_EQ(fields->get_objects("objects").size(), 2u);
  EXPECT_THROW(fields->get_bool_or("number", true), Failure);
  EXPECT_THROW(fields->get_double("text"), Failure);
  EXPECT_THROW(fields->get_string("number"), Failure);
  EXPECT_THROW(fields->get_floats("number"), Failure);
  EXPECT_THROW(fields->get_floats("texts"), Failure);
  EXPECT_THROW(fields->get_strings("text"), Failure);
  EXPECT_THROW(fields->get_strings("numbers"), Failure);
  EXPECT_THROW(fields->find_object("texts"), Failure);
  EXPECT_THROW(fields->get_objects("object"), Failure);
  EXPECT_THROW(fields->get_objects("texts"), Failure);
}

TEST(JsonFields, AreNamedWithWhatTheyLieIn) {
  FieldsOf fields(R"({"object": {"x": {"y": "1"}}, "objects": [{}, {"z": "1"}]})");
  EXPECT_THAT(fields.refusal([](const JsonFields& f) {
    f.find_object("object")->find_object("x")->get_int("y", 0, 9);
  }),
              HasSubstr("field \"object.x.y\" is \"1\""));
  EXPECT_THAT(
      fields.refusal([](const JsonFields& f) { f.get_objects("objects")[1].get_int("z", 0, 9); }),
      HasSubstr("field \"objects[1].z\" is \"1\""));
}

TEST(JsonFields, LongValuesAreShownCut) {
  for (size_t size : {58u, 59u}) {
    FieldsOf fields("{\"a\": \"" + std::string(size, 'x') + "\"}");
    std::string shown = fields.refusal([](const JsonFields& f) { f.get_double("a"); });
    EXPECT_EQ(shown.find("...") != std::string::npos, size == 59u) << shown;
  }
}

TEST(JsonFields, AreBlankWhenTheySayNothing) {
  FieldsOf fields(R"({"a": null, "b": false, "c": 0, "d": "", "e": [], "f": {},
                      "B": true, "C": 0.5, "D": "x", "E": [0], "F": {"x": 0}})");
  for (const char* name : {"a", "b", "c", "d", "e", "f", "missing"})
    EXPECT_TRUE(fields->is_blank(name)) << name;
  for (const char* name : {"B", "C", "D", "E", "F"}) EXPECT_FALSE(fields->is_blank(name)) << name;
}

TEST(JsonFields, ThatNobodyReadsAreNamed) {
  FieldsOf fields(R"({"a": 1, "b": 2})");
  EXPECT_EQ(fields.refusal([](const JsonFields& f) { f.accept_only({"a", "b", "c"}); }), "");
  EXPECT_EQ(fields.refusal([](const JsonFields& f) {
    f.accept_only({"a", "c"});
  }),
            "c.json: field \"b\" is 2: expected no such field, but a, c");
}

TEST(JsonFields, AreShownUpToSixtyCharacters) {
  FieldsOf fields("{\"a\": \"" + std::string(100, 'x') + "\"}");
  EXPECT_THAT(fields.refusal([](const JsonFields& f) { f.get_double("a"); }),
              HasSubstr(" is \"" + std::string(59, 'x') + "...:"));
}

}  // namespace
}  // namespace droidspeak
