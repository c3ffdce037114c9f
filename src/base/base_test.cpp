#include <array>
#include <cstring>
#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>
#include <unistd.h>
#include <zlib.h>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json_fields_once.h"
#include "base/json_scan.h"
#include "base/log_sink.h"
#include "base/queue.h"
#include "base/regex.h"
#include "base/result.h"
#include "base/size.h"

namespace droidspeak {
namespace {

TEST(Size, ReadsWhatPeopleWrite) {
  EXPECT_EQ(parse_size("512MiB"), 512ull << 20);
  EXPECT_EQ(parse_size("4GiB"), 4ull << 30);
  EXPECT_EQ(parse_size("1.5K"), 1536u);
  EXPECT_EQ(parse_size("77"), 77u);
  for (const char* bad : {"", "x", "-1", "5 apples", "1e300TiB", "nan"}) {
    EXPECT_THROW(parse_size(bad), Failure) << bad;
  }
}

TEST(Hash, IsSha256) {
  EXPECT_EQ(sha256({}).hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  Digest digest = sha256({});
  EXPECT_EQ(Digest::from_hex(digest.hex()), digest);
  EXPECT_THROW(Digest::from_hex("abc"), Failure);
}

std::string gzip_of(std::string_view text) {
  TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "text.gz";
  gzFile file = ::gzopen(path.c_str(), "wb");
  ::gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  ::gzclose(file);
  return read_file(path);
}

TEST(File, ReadsEveryMemberOfAGzipFile) {
  TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "rows.jsonl.gz";
  const std::string large(300000, 'x');
  write_file_atomically(path, gzip_of("one\n") + gzip_of("") + gzip_of(large));
  EXPECT_EQ(read_text_file(path), "one\n" + large);
  EXPECT_THROW(read_text_file(path, 300003), Failure);
  EXPECT_EQ(read_text_file(path, 300004).size(), 300004u);
  for (size_t zeros : {1, 8, 100000}) {
    write_file_atomically(path, gzip_of("one\n") + gzip_of("two\n") + std::string(zeros, '\0'));
    EXPECT_EQ(read_text_file(path), "one\ntwo\n") << zeros;
  }
  write_file_atomically(path, "as it is");
  EXPECT_EQ(read_text_file(path), "as it is");
}

TEST(File, RefusesWhatIsNoGzipMember) {
  TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "rows.jsonl.gz";
  const std::string good = gzip_of("one\n");
  auto failure_of = [&](const std::string& bytes) -> std::string {
    write_file_atomically(path, bytes);
    try {
      read_text_file(path);
    } catch (const Failure& failure) {
      return failure.what();
    }
    return "none";
  };
  EXPECT_EQ(failure_of(good), "none");
  for (const std::string& behind :
       {std::string("garbage"), std::string(8, '\0') + "x", good.substr(0, good.size() - 1)}) {
    const std::string said = failure_of(good + behind);
    EXPECT_NE(said.find(path.string()), std::string::npos) << said;
    EXPECT_NE(said.find(fmt::format("begins at byte {} is no complete gzip", good.size())),
              std::string::npos)
        << said;
  }
  EXPECT_NE(failure_of(good.substr(0, 12)).find("begins at byte 0"), std::string::npos);
}

TEST(JsonFieldsOnce, NamesTheFieldThatIsThereTwice) {
  for (const char* good : {R"({"a":{"b":1},"b":[{"a":1},{"a":2}]})", "[]", "no JSON", R"({"a":)"})
    EXPECT_NO_THROW(require_fields_once(good)) << good;
  for (const char* bad : {R"({"a":1,"b":2,"a":3})", R"([{"x":{"b":0,"a":1,"\u0061":2}}])",
                          R"({"a":{"b":{}},"a":1})"}) {
    try {
      require_fields_once(bad);
      FAIL() << bad;
    } catch (const Failure& failure) {
      EXPECT_STREQ(failure.what(), "the field \"a\" is there twice: expected once");
    }
  }
}

TEST(Hash, FieldsDoNotRunTogether) {
  Sha256 one;
  one.add_field('a', "xy");
  one.add_field('a', "z");
  Sha256 two;
  two.add_field('a', "x");
  two.add_field('a', "yz");
  EXPECT_NE(one.finish(), two.finish());
}

TEST(File, WritesWholeFilesAndReadsPieces) {
  TemporaryFolder folder;
  auto path = folder.path() / "file";
  write_file_atomically(path, "hello");
  EXPECT_EQ(read_file(path), "hello");
  InputFile input(path);
  EXPECT_EQ(input.size(), 5u);
  std::array<std::byte, 3> piece{};
  input.read(2, piece);
  EXPECT_EQ(std::memcmp(piece.data(), "llo", 3), 0);
  EXPECT_THROW(InputFile(folder.path() / "missing"), Failure);
  EXPECT_THROW(InputFile(folder.path()), Failure);
  EXPECT_THROW(read_file(path, 3), Failure);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(JsonScan, FindsWhatIsOverALimit) {
  JsonLimits limits{.depth = 2, .values = 4, .keys = 2};
  auto excess = [&](const char* text) { return find_json_excess(text, limits).value_or(""); };
  EXPECT_EQ(excess(R"([[1, 2], 3])"), "");
  EXPECT_EQ(excess(R"({"[[[{{{:::,,,": "\"[[[,,,,", "b\\": {}})"), "");
  EXPECT_EQ(excess("[[[]]]"), "is nested deeper than 2 levels");
  EXPECT_EQ(excess("[1,2,3,4,5]"), "has more than 4 values");
  EXPECT_EQ(excess(R"({"a":1,"b":2,"c":3})"), "has more than 2 keys");
  using namespace std::string_literals;
  EXPECT_EQ(find_json_excess("[]\0]"s, limits), "has a zero byte");
  EXPECT_EQ(find_json_excess("\"\0\""s, limits), std::nullopt) << "parsers refuse it in texts";
}

TEST(JsonScan, ShowsKeysInTheirOrder) {
  auto keys_of = [](std::string_view text) {
    std::vector<std::string> keys;
    for_each_json_key(text, [&](int depth, const std::string& key) {
      keys.push_back(std::to_string(depth) + key);
    });
    return keys;
  };
  EXPECT_EQ(keys_of(R"({"z":[{"b":null,"a":-1.5}],"z":true,"\u0041":{"x":"y"}})"),
            (std::vector<std::string>{"1z", "3b", "3a", "1z", "1A", "2x"}));
  EXPECT_EQ(keys_of(R"({"a":1,"b" 2,"c":3})"), std::vector<std::string>({"1a", "1b"}));
}

TEST(Queue, RefusesWhenFullAndDrainsAfterClose) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.push(1));
  EXPECT_TRUE(queue.push(2));
  EXPECT_FALSE(queue.push(3));
  queue.close();
  EXPECT_FALSE(queue.push(4));
  EXPECT_EQ(queue.pop(), 1);
  EXPECT_EQ(queue.pop(), 2);
  EXPECT_EQ(queue.pop(), std::nullopt);
}

TEST(Result, HoldsValueOrError) {
  Result<int> good = 3;
  Result<int> bad = Error{ErrorCode::kNotFound, "nothing"};
  EXPECT_TRUE(good);
  EXPECT_EQ(*good, 3);
  EXPECT_FALSE(bad);
  EXPECT_EQ(bad.error().message, "nothing");
  EXPECT_THROW(std::move(bad).take_or_throw(), Failure);
}

TEST(LogSink, LosesLinesRatherThanWaitForAReader) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  spdlog::logger logger("test", make_log_sink(ends[1]));
  logger.set_pattern("%v");
  for (int i = 0; i < 100'000; ++i) logger.warn("line {}", i);  // far more than a pipe holds
  std::array<char, 16> begin{};
  ASSERT_EQ(read(ends[0], begin.data(), 14), 14);
  EXPECT_STREQ(begin.data(), "line 0\nline 1\n");
  close(ends[0]);
  logger.warn("nobody reads this, and nothing breaks");
  close(ends[1]);
}

// Some thousand ways to read it, and none that fits.
TEST(Regex, EndsWithAnErrorAfterTheStepsThatAMatchMayTake) {
  const std::string text = std::string(12, 'a') + "b";
  const std::string pattern = "(a+)+$";
  TextRange match;
  Regex patient(pattern);
  EXPECT_FALSE(Regex::Matches(patient, text).next(match));
  Regex hurried(pattern, {.match_steps = 100});
  EXPECT_THROW(Regex::Matches(hurried, text).next(match), Failure);
}

}  // namespace
}  // namespace droidspeak
