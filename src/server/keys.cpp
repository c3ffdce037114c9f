#include "server/keys.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>
#include <openssl/crypto.h>

#include "base/error.h"
#include "base/file.h"

namespace droidspeak {

namespace {

constexpr size_t kMaxKeyBytes = 1024;
constexpr size_t kMaxKeyFileBytes = size_t{1} << 20;

[[noreturn]] void refuse(const std::string& source, const std::string& why) {
  throw Failure(ErrorCode::kInvalidArgument, source + ": " + why);
}

// The hash makes all keys equally long, so that comparing takes the same time whatever is given.
Digest key_digest(std::string_view key) {
  return sha256(std::as_bytes(std::span(key)));
}

bool equal_digests(const Digest& a, const Digest& b) {
  return CRYPTO_memcmp(a.bytes.data(), b.bytes.data(), a.bytes.size()) == 0;
}

bool is_visible(std::string_view text) {
  return std::ranges::all_of(text, [](unsigned char c) { return c > 0x20 && c < 0x7f; });
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

void check_key(const ApiKey& key) {
  if (key.secret.empty()) refuse(key.source, "the key is empty; give a secret text");
  if (!is_visible(key.secret)) {
    refuse(key.source,
           "the key has blanks or characters that a header cannot carry; expected letters, digits "
           "and signs of ASCII");
  }
  if (key.secret.size() > kMaxKeyBytes) {
    refuse(key.source, fmt::format("the key has {} characters; expected at most {}",
                                   key.secret.size(), kMaxKeyBytes));
  }
  if (key.name.empty()) refuse(key.source, "the key has no name");
}

std::string_view bearer_token(std::string_view header) {
  constexpr std::string_view kScheme = "bearer ";
  if (header.size() <= kScheme.size()) return {};
  bool is_bearer = std::equal(kScheme.begin(), kScheme.end(), header.begin(), [](char a, char b) {
    return a == std::tolower(static_cast<unsigned char>(b));
  });
  return is_bearer ? header.substr(kScheme.size()) : std::string_view();
}

}  // namespace

std::vector<ApiKey> read_key_file(const std::filesystem::path& path) {
  std::string text = read_file(path, kMaxKeyFileBytes);
  std::vector<ApiKey> keys;
  int number = 0;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = trimmed(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
    ++number;
    if (line.empty() || line.starts_with('#')) continue;
    ApiKey key;
    key.source = fmt::format("{}, line {}", path.string(), number);
    size_t colon = line.find(':');
    if (colon == std::string_view::npos) refuse(key.source, "expected name:key");
    key.name = trimmed(line.substr(0, colon));
    key.secret = trimmed(line.substr(colon + 1));
    check_key(key);
    keys.push_back(std::move(key));
  }
  if (keys.empty()) refuse(path.string(), "no key in it; expected a line name:key for each");
  return keys;
}

KeyRing::KeyRing(const std::vector<ApiKey>& keys) {
  std::vector<std::string> sources;
  for (const ApiKey& key : keys) {
    check_key(key);
    Holder holder{key.name, key_digest(key.secret), key.role};
    for (size_t i = 0; i < holders_.size(); ++i) {
      if (equal_digests(holders_[i].digest, holder.digest)) {
        refuse(key.source, "the same key as of " + sources[i] + "; give everybody an own one");
      }
      if (holders_[i].name == holder.name) {
        refuse(key.source, fmt::format("the name \"{}\" is taken by {}; give every key an own one",
                                       key.name, sources[i]));
      }
    }
    holders_.push_back(std::move(holder));
    sources.push_back(key.source);
  }
}

bool KeyRing::has(ApiKey::Role role) const {
  return std::ranges::any_of(holders_, [&](const Holder& holder) { return holder.role == role; });
}

const KeyRing::Holder* KeyRing::find(std::string_view authorization) const {
  std::string_view token = bearer_token(authorization);
  Digest given = key_digest(token);
  const Holder* found = nullptr;
  for (const Holder& holder : holders_) {
    if (equal_digests(holder.digest, given)) found = &holder;
  }
  return token.empty() ? nullptr : found;
}

std::string tenant_salt(std::string_view tenant, std::string_view client_salt) {
  if (tenant.empty() && client_salt.empty()) return {};
  Sha256 hash;
  hash.add_field('t', tenant);
  hash.add_field('s', client_salt);
  return hash.finish().hex();
}

}  // namespace droidspeak
