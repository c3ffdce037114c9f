// Which pages of which sites may talk to the server. A browser lets any page send requests to a
// server on the user's machine or network; what tells them apart is the name that it was reached
// under (Host), the page's site (Origin) and, for what may be sent without asking first, the type
// of the body.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"
#include "server/http.h"

namespace droidspeak {

struct GateOptions {
  std::string host;                        // listened on
  std::vector<std::string> allowed_hosts;  // names besides; "*": any
  std::vector<std::string> cors_origins;   // sites whose pages may call; "*": all
};

class Gate {
 public:
  // Throws Failure when an origin or a host name cannot be one.
  explicit Gate(const GateOptions& options);

  // 421 for a name that is not the server's. Names: the one listened on; any loopback address and
  // "localhost" when that is loopback; any address and the machine's name when it is every address;
  // those allowed. Ports do not count. A request without Host (HTTP/1.0) passes, as browsers send
  // it always, and so does one through the unix socket, which they cannot reach.
  std::optional<ApiError> check_host(const HttpRequest& head) const;
  // 403 for a request that changes something or computes, sent by a page of a foreign site.
  std::optional<ApiError> check_origin(const HttpRequest& head) const;
  // 415 for a body that is not declared as JSON.
  static std::optional<ApiError> check_content_type(const HttpRequest& head);

  // What lets the page that sent the request read the answer; nothing for others.
  void add_cors_headers(const HttpRequest& head, HttpResponse& response) const;
  // The browser's question whether a page may send a request with these verbs.
  void answer_preflight(const HttpRequest& head,
                        const std::string& verbs,
                        HttpResponse& response) const;

 private:
  bool is_own_host(std::string_view name) const;
  bool is_allowed_origin(std::string_view origin) const;

  std::vector<std::string> hosts_;  // lower case
  std::vector<std::string> origins_;
  bool takes_any_host_ = false;
  bool takes_loopback_ = false;
  bool takes_any_address_ = false;
};

}  // namespace droidspeak
