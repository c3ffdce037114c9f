#include "server/assets.h"
#include "server/handlers.h"

namespace droidspeak {

HttpResponse show_page(Service& /*service*/, HttpRequest& request) {
  std::string_view path = request.path == "/" ? "/index.html" : std::string_view(request.path);
  for (const Asset& asset : embedded_assets()) {
    if (asset.path != path) continue;
    HttpResponse response;
    response.content_type = asset.content_type;
    response.body = asset.content;
    response.headers.emplace_back("Cache-Control", "no-cache");
    response.headers.emplace_back("Content-Security-Policy", "frame-ancestors 'none'");
    response.headers.emplace_back("X-Frame-Options", "DENY");
    return response;
  }
  return error_response(status_error(404, "Unknown request URL: GET " + request.path + "."));
}

}  // namespace droidspeak
