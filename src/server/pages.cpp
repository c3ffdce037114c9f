#include "server/assets.h"
#include "server/entity_tag.h"
#include "server/handlers.h"

namespace droidspeak {

HttpResponse show_page(Service& /*service*/, HttpRequest& request) {
  std::string_view path = request.path == "/" ? "/index.html" : std::string_view(request.path);
  for (const Asset& asset : embedded_assets()) {
    if (asset.path != path) continue;
    HttpResponse response = answer_tagged(request, {asset.content_type, asset.content, asset.tag});
    response.headers.emplace_back("Content-Security-Policy", "frame-ancestors 'none'");
    response.headers.emplace_back("X-Frame-Options", "DENY");
    return response;
  }
  return error_response(status_error(404, "Unknown request URL: GET " + request.path + "."));
}

}  // namespace droidspeak
