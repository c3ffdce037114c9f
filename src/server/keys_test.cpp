#include "server/keys.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"

namespace droidspeak {

namespace {

using testing::HasSubstr;
using testing::Not;

std::string complaint(const std::vector<ApiKey>& keys) {
  try {
    KeyRing ring(keys);
  } catch (const Failure& failure) {
    return failure.what();
  }
  return "";
}

std::string file_complaint(const std::string& text) {
  TemporaryFolder folder;
  write_file_atomically(folder.path() / "keys", text);
  try {
    KeyRing ring(read_key_file(folder.path() / "keys"));
  } catch (const Failure& failure) {
    return failure.what();
  }
  return "";
}

TEST(KeyRing, KnowsWhoseKeyARequestCarries) {
  KeyRing ring({{"anna", "first", "a"}, {"root", "second", "b", ApiKey::Role::kAdmin}});
  ASSERT_NE(ring.find("Bearer first"), nullptr);
  EXPECT_EQ(ring.find("Bearer first")->name, "anna");
  EXPECT_EQ(ring.find("bEARER second")->role, ApiKey::Role::kAdmin);
  EXPECT_NE(ring.find("Bearer first")->digest, ring.find("Bearer second")->digest);
  for (const char* header : {"", "Bearer", "Bearer ", "first", "Basic first", "Bearer first ",
                             "Bearer  first", "Bearer firs", "Bearer firstfirst", "Bearer a"}) {
    EXPECT_EQ(ring.find(header), nullptr) << header;
  }
}

TEST(KeyRing, KnowsWhichRolesItHas) {
  EXPECT_FALSE(KeyRing({}).has(ApiKey::Role::kInference));
  EXPECT_EQ(KeyRing({}).find("Bearer x"), nullptr);
  KeyRing only_admin({{"root", "x", "a", ApiKey::Role::kAdmin}});
  EXPECT_TRUE(only_admin.has(ApiKey::Role::kAdmin));
  EXPECT_FALSE(only_admin.has(ApiKey::Role::kInference));
}

TEST(KeyRing, RefusesKeysThatAnybodyCouldSendByName) {
  for (const char* secret : {"", " ", "\t", "\n", "a b", " a", "a ", "a\r", "\x01", "\xC3\xA4"}) {
    EXPECT_THAT(complaint({{"x", secret, "--api-key (number 2)"}}),
                HasSubstr("--api-key (number 2)"))
        << secret;
  }
  EXPECT_THAT(complaint({{"x", std::string(2000, 'k'), "here"}}), HasSubstr("2000"));
}

TEST(KeyRing, RefusesTheSameKeyOrNameTwiceWithoutShowingIt) {
  std::string same = complaint({{"a", "secret", "one"}, {"b", "secret", "two"}});
  EXPECT_THAT(same, HasSubstr("two: the same key as of one"));
  EXPECT_THAT(same, Not(HasSubstr("secret")));
  EXPECT_THAT(complaint({{"a", "s1", "one"}, {"a", "s2", "two", ApiKey::Role::kAdmin}}),
              HasSubstr("\"a\" is taken by one"));
}

TEST(KeyFile, HasANameAndAKeyALine) {
  TemporaryFolder folder;
  write_file_atomically(folder.path() / "keys", "# customers\n\nanna: s:1 \r\n  bert:s2");
  std::vector<ApiKey> keys = read_key_file(folder.path() / "keys");
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[0].name, "anna");
  EXPECT_EQ(keys[0].secret, "s:1");
  EXPECT_EQ(keys[1].name, "bert");
  EXPECT_EQ(keys[1].secret, "s2");
  EXPECT_THAT(keys[1].source, HasSubstr("line 4"));
}

TEST(KeyFile, IsRefusedWithTheLineAndWithoutTheKey) {
  EXPECT_THAT(file_complaint("a:b\nonlyasecret\n"), HasSubstr("line 2: expected name:key"));
  EXPECT_THAT(file_complaint("a:b\nonlyasecret\n"), Not(HasSubstr("onlyasecret")));
  EXPECT_THAT(file_complaint("a:b\n\nname:  \n"), HasSubstr("line 3: the key is empty"));
  EXPECT_THAT(file_complaint(":secret"), HasSubstr("line 1: the key has no name"));
  EXPECT_THAT(file_complaint("a:sec ret"), HasSubstr("line 1"));
  EXPECT_THAT(file_complaint("a:sec ret"), Not(HasSubstr("sec ret")));
  EXPECT_THAT(file_complaint("a:x\nb:x"), HasSubstr("line 2: the same key"));
  EXPECT_THAT(file_complaint("a:x\na:y"), HasSubstr("line 2: the name \"a\""));
  EXPECT_THAT(file_complaint("# nothing\n"), HasSubstr("no key"));
  EXPECT_THAT(file_complaint(""), HasSubstr("no key"));
}

TEST(TenantSalt, IsEmptyOnlyWithoutKeyAndSalt) {
  EXPECT_EQ(tenant_salt("", ""), "");
  std::set<std::string> salts = {
      tenant_salt("", ""),   tenant_salt("k", ""),  tenant_salt("", "k"), tenant_salt("k", "s"),
      tenant_salt("ks", ""), tenant_salt("", "ks"), tenant_salt("s", "k")};
  EXPECT_EQ(salts.size(), 7u);
  EXPECT_EQ(tenant_salt("k", "s"), tenant_salt("k", "s"));
  EXPECT_EQ(tenant_salt("k", std::string(256, 's')).size(), tenant_salt("k", "").size());
}

TEST(KeyRing, TakesKeysOfSoManyCharacters) {
  EXPECT_EQ(complaint({{"x", std::string(1024, 'k'), "here"}}), "");
  EXPECT_THAT(complaint({{"x", std::string(1025, 'k'), "here"}}),
              HasSubstr("here: the key has 1025 characters; expected at most 1024"));
  EXPECT_EQ(complaint({{"x", "!~", "here"}}), "");
  EXPECT_THAT(complaint({{"x", "a\x7f", "here"}}), HasSubstr("characters that a header"));
  EXPECT_THAT(complaint({{"", "a", "here"}}), HasSubstr("here: the key has no name"));
  EXPECT_NE(KeyRing({{"x", "k", "here"}}).find("Bearer k"), nullptr) << "the shortest";
}

}  // namespace

}  // namespace droidspeak
