#include "server/http.h"

namespace droidspeak {

std::string_view HttpRequest::header(const std::string& name) const {
  auto found = headers.find(name);
  return found == headers.end() ? std::string_view() : std::string_view(found->second);
}

}  // namespace droidspeak
