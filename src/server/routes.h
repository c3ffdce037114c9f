// The table of endpoints.
#pragma once

#include <string>
#include <string_view>

#include "server/handlers.h"

namespace droidspeak {

enum class Access {
  kProbe,    // no key, and any name of the server will do
  kOpen,     // no key
  kKey,      // needs an API key when the server has any
  kAdmin,    // needs the admin key when the server has one, else any
  kMetrics,  // with --protect-metrics as kAdmin, else as kOpen
};

enum class WhileDraining { kRefused, kAnswered };

struct Route {
  std::string_view method;
  std::string_view path;  // one that ends in '/' (but "/") matches what lies below it
  Access access = Access::kKey;
  WhileDraining while_draining = WhileDraining::kRefused;
  HttpResponse (*handler)(Service&, HttpRequest&) = nullptr;
};

// What matches a request. `route` is null for unknown paths and for wrong verbs.
struct RouteMatch {
  const Route* route = nullptr;
  std::string allow;       // verbs of this path; empty: no such path
  std::string_view label;  // the path without its variable part, for metrics
};

RouteMatch match_route(std::string_view method, std::string_view path);

}  // namespace droidspeak
