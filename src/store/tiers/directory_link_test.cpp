// Commands to the servers of a cluster, which say where a key is.
#include "store/tiers/directory_link.h"

#include <mutex>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "store/scripted_server.h"

namespace droidspeak {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Remembers the first words of what it was sent.
class NotingServer {
 public:
  using Answer = std::function<std::string(const std::string& command)>;

  explicit NotingServer(Answer answer) : answer_(std::move(answer)) {}

  RedisAddress address() const { return server_.address(); }

  std::vector<std::string> take_commands() {
    std::lock_guard lock(mutex_);
    return std::exchange(commands_, {});
  }

 private:
  std::string answer(const std::string& command) {
    if (command == "PING") return "+PONG\r\n";  // each connection begins so
    std::lock_guard lock(mutex_);
    commands_.push_back(command);
    return answer_(command);
  }

  std::mutex mutex_;
  std::vector<std::string> commands_;
  const Answer answer_;
  ScriptedServer server_{[this](const ScriptedServer::Words& words) { return answer(words[0]); }};
};

class DirectoryLinks : public testing::Test {
 protected:
  DirectoryLink link_to(const RedisAddress& address) {
    return {RedisServers{.addresses = {address}}, std::chrono::minutes(1)};
  }

  Result<std::vector<RedisReply>> get(DirectoryLink& link) {
    DirectoryCommand command{"a key", {}};
    append_command(command.text, {"GET", command.key});
    return link.run(std::span(&command, 1));
  }

  std::string text(DirectoryLink& link) {
    Result<std::vector<RedisReply>> replies = get(link);
    return replies && replies->size() == 1 ? replies->front().text : "";
  }

  std::string redirect(const std::string& word) const {
    return fmt::format("-{} {} {}\r\n", word, redis_slot("a key"), there_.address().text());
  }

  NotingServer there_{[](const std::string& command) {
    return std::string(command == "ASKING" ? "+OK\r\n" : "$5\r\nthere\r\n");
  }};
};

TEST_F(DirectoryLinks, GiveTheReply) {
  DirectoryLink link = link_to(there_.address());
  EXPECT_EQ(text(link), "there");
  EXPECT_THAT(there_.take_commands(), ElementsAre("GET"));
}

TEST_F(DirectoryLinks, FollowAndRememberAKeyThatHasMoved) {
  NotingServer here([&](const std::string&) { return redirect("MOVED"); });
  DirectoryLink link = link_to(here.address());
  EXPECT_EQ(text(link), "there");
  EXPECT_EQ(text(link), "there");
  EXPECT_THAT(here.take_commands(), ElementsAre("GET")) << "it knows by then";
  EXPECT_THAT(there_.take_commands(), ElementsAre("GET", "GET"));
}

TEST_F(DirectoryLinks, FollowAKeyThatIsOnItsWayOnce) {
  NotingServer here([&](const std::string&) { return redirect("ASK"); });
  DirectoryLink link = link_to(here.address());
  EXPECT_EQ(text(link), "there");
  EXPECT_EQ(text(link), "there");
  EXPECT_THAT(here.take_commands(), ElementsAre("GET", "GET"));
  EXPECT_THAT(there_.take_commands(), ElementsAre("ASKING", "GET", "ASKING", "GET"));
}

TEST_F(DirectoryLinks, GiveUpServersThatSendThemAroundForEver) {
  std::string itself;
  NotingServer here([&](const std::string&) { return itself; });
  itself = fmt::format("-MOVED {} {}\r\n", redis_slot("a key"), here.address().text());
  DirectoryLink link = link_to(here.address());
  Result<std::vector<RedisReply>> replies = get(link);
  ASSERT_TRUE(replies);
  EXPECT_TRUE(replies->front().is_error());
  EXPECT_THAT(here.take_commands(), ElementsAre("GET", "GET", "GET", "GET"));
}

TEST_F(DirectoryLinks, AnErrorIsAReplyLikeOthers) {
  NotingServer here([](const std::string&) { return "-ERR no\r\n"; });
  DirectoryLink link = link_to(here.address());
  Result<std::vector<RedisReply>> replies = get(link);
  ASSERT_TRUE(replies);
  EXPECT_TRUE(replies->front().is_error());
  EXPECT_THAT(here.take_commands(), ElementsAre("GET"));
  EXPECT_THAT(there_.take_commands(), IsEmpty());
}

TEST_F(DirectoryLinks, TryTheNextServerWhereOneIsNotThere) {
  RedisAddress gone = NotingServer([](const std::string&) { return ""; }).address();
  DirectoryLink link({.addresses = {gone, there_.address()}}, std::chrono::minutes(1));
  EXPECT_EQ(text(link), "there");
  DirectoryLink nobody = link_to(gone);
  EXPECT_FALSE(get(nobody));
  DirectoryLink nothing(RedisServers{}, std::chrono::minutes(1));
  EXPECT_FALSE(get(nothing));
}

// What was known of a cluster that does not answer may be wrong by the next time.
TEST_F(DirectoryLinks, BeginAnewAfterAServerIsLost) {
  auto other = std::make_unique<NotingServer>([](const std::string&) { return "$1\r\nx\r\n"; });
  std::string answer =
      fmt::format("-MOVED {} {}\r\n", redis_slot("a key"), other->address().text());
  NotingServer here([&](const std::string&) { return answer; });
  DirectoryLink link = link_to(here.address());
  EXPECT_EQ(text(link), "x");
  other.reset();
  EXPECT_FALSE(get(link));
  answer = redirect("MOVED");
  EXPECT_EQ(text(link), "there");
}

}  // namespace
}  // namespace droidspeak
