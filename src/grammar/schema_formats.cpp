#include "grammar/schema_formats.h"

#include <map>

namespace droidspeak {
namespace {

const std::map<std::string, std::string, std::less<>>& formats() {
  static const auto all = [] {
    const std::string date = "[12][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])";
    const std::string time =
        "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-"
        "9])";
    const std::string label = "[a-z]([a-z0-9]{0,30}[a-z0-9])?";
    const std::string host = label + "(\\." + label + "){1,4}";
    const std::string byte = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])";
    const std::string hex = "[0-9a-f]";
    const std::string uri =
        "https?://" + host + "(/[A-Za-z0-9._~-]{0,60}){0,8}(\\?[A-Za-z0-9._~=&-]{0,60})?";
    std::map<std::string, std::string, std::less<>> map = {
        {"date", date},
        {"time", time},
        {"date-time", date + "T" + time},
        {"duration", "P([0-9]{1,4}D|[0-9]{1,4}W|T[0-9]{1,4}[HMS])"},
        {"email", "[a-z0-9]{1,30}([._-][a-z0-9]{1,30}){0,3}@" + host},
        {"hostname", host},
        {"ipv4", byte + "(\\." + byte + "){3}"},
        {"ipv6", "(" + hex + "{1,4}:){7}" + hex + "{1,4}"},
        {"uuid", hex + "{8}-" + hex + "{4}-" + hex + "{4}-" + hex + "{4}-" + hex + "{12}"},
        {"uri", uri},
        {"uri-reference", uri},
    };
    for (auto& [name, expression] : map) expression = "^(" + expression + ")$";
    return map;
  }();
  return all;
}

}  // namespace

std::optional<std::string> find_format(std::string_view name) {
  auto found = formats().find(name);
  if (found == formats().end()) return std::nullopt;
  return found->second;
}

std::string known_formats() {
  std::string names;
  for (const auto& [name, expression] : formats()) names += (names.empty() ? "" : ", ") + name;
  return names;
}

}  // namespace droidspeak
