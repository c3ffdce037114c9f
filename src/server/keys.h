// API keys: where they come from, and whose key a request carries. Only digests are kept, and no
// message repeats a key.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"

namespace droidspeak {

struct ApiKey {
  std::string name;    // what the log calls its holder
  std::string secret;  // what clients send
  std::string source;  // where it was given, for error messages: "--api-key", "keys.txt, line 3"
  enum class Role { kInference, kAdmin } role = Role::kInference;
};

// One "name:key" a line; empty lines and those that begin with # are skipped. Throws Failure with
// the line's number.
std::vector<ApiKey> read_key_file(const std::filesystem::path& path);

class KeyRing {
 public:
  // Throws Failure for keys that are empty, contain blanks or other characters that a header cannot
  // carry, and for names or keys given twice.
  explicit KeyRing(const std::vector<ApiKey>& keys);

  struct Holder {
    std::string name;
    Digest digest;
    ApiKey::Role role;
  };

  bool has(ApiKey::Role role) const;
  // The holder of the key in an Authorization header ("Bearer KEY"); null for no or a wrong key.
  // Takes the same time whatever is given.
  const Holder* find(std::string_view authorization) const;

 private:
  std::vector<Holder> holders_;
};

// What separates the caches of tenants, from a key's digest (empty: no key counts) and the salt
// that the client sent: empty when there is neither, else of a fixed size.
std::string tenant_salt(std::string_view tenant, std::string_view client_salt);

}  // namespace droidspeak
