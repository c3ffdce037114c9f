#include "base/json_fields_once.h"

#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace droidspeak {
namespace {

class FieldsOnce final : public nlohmann::json::json_sax_t {
 public:
  bool null() override { return true; }

  bool boolean(bool) override { return true; }

  bool number_integer(number_integer_t) override { return true; }

  bool number_unsigned(number_unsigned_t) override { return true; }

  bool number_float(number_float_t, const std::string&) override { return true; }

  bool string(std::string&) override { return true; }

  bool binary(nlohmann::json::binary_t&) override { return true; }

  bool start_object(size_t) override {
    fields_.emplace_back();
    return true;
  }

  bool end_object() override {
    fields_.pop_back();
    return true;
  }

  bool start_array(size_t) override { return true; }

  bool end_array() override { return true; }

  bool key(std::string& name) override {
    if (fields_.back().insert(name).second) return true;
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("the field \"{}\" is there twice: expected once", name));
  }

  bool parse_error(size_t, const std::string&, const nlohmann::json::exception&) override {
    return false;
  }

 private:
  std::vector<std::set<std::string>> fields_;  // of the objects that are open
};

}  // namespace

void require_fields_once(std::string_view text) {
  FieldsOnce fields;
  nlohmann::json::sax_parse(text, &fields);
}

}  // namespace droidspeak
