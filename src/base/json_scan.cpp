#include "base/json_scan.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace droidspeak {
namespace {

class KeyReader final : public nlohmann::json::json_sax_t {
 public:
  explicit KeyReader(const std::function<void(int, const std::string&)>& see) : see_(see) {}

  bool null() override { return true; }

  bool boolean(bool) override { return true; }

  bool number_integer(number_integer_t) override { return true; }

  bool number_unsigned(number_unsigned_t) override { return true; }

  bool number_float(number_float_t, const std::string&) override { return true; }

  bool string(std::string&) override { return true; }

  bool binary(nlohmann::json::binary_t&) override { return true; }

  bool start_object(size_t) override { return begin(); }

  bool end_object() override { return end(); }

  bool start_array(size_t) override { return begin(); }

  bool end_array() override { return end(); }

  bool key(std::string& name) override {
    see_(depth_, name);
    return true;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::json::exception&) override {
    return false;
  }

 private:
  bool begin() {
    ++depth_;
    return true;
  }

  bool end() {
    --depth_;
    return true;
  }

  const std::function<void(int, const std::string&)>& see_;
  int depth_ = 0;
};

}  // namespace

std::optional<std::string> find_json_excess(std::string_view text, const JsonLimits& limits) {
  int depth = 0;
  size_t values = 0;
  size_t keys = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
      continue;
    }
    if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      ++values;
      if (++depth > limits.depth)
        return fmt::format("is nested deeper than {} levels", limits.depth);
    } else if (c == ']' || c == '}') {
      --depth;
    } else if (c == '\0') {
      return "has a zero byte";  // where nlohmann's parser ends, whatever follows
    } else if (c == ',') {
      ++values;
    } else if (c == ':' && ++keys > limits.keys) {
      return fmt::format("has more than {} keys", limits.keys);
    }
    if (values > limits.values) return fmt::format("has more than {} values", limits.values);
  }
  return std::nullopt;
}

void for_each_json_key(std::string_view text,
                       const std::function<void(int depth, const std::string& key)>& see) {
  KeyReader reader(see);
  nlohmann::json::sax_parse(text, &reader);
}

}  // namespace droidspeak
