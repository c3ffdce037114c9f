#include "server/routes.h"

#include <algorithm>

#include "server/assets.h"

namespace droidspeak {

namespace {

constexpr Route kRoutes[] = {
    {"POST", "/v1/chat/completions", Access::kKey, WhileDraining::kRefused, chat_completions},
    {"POST", "/v1/completions", Access::kKey, WhileDraining::kRefused, completions},
    {"POST", "/v1/responses", Access::kKey, WhileDraining::kRefused, responses},
    {"POST", "/v1/messages", Access::kKey, WhileDraining::kRefused, messages},
    {"POST", "/v1/messages/count_tokens", Access::kKey, WhileDraining::kRefused,
     count_message_tokens},
    {"POST", "/v1/embeddings", Access::kKey, WhileDraining::kRefused, embeddings},
    {"POST", "/v1/rerank", Access::kKey, WhileDraining::kRefused, rerank},
    {"POST", "/rerank", Access::kKey, WhileDraining::kRefused, rerank},
    {"GET", "/v1/models", Access::kKey, WhileDraining::kRefused, list_models},
    {"GET", "/v1/models/", Access::kKey, WhileDraining::kRefused, show_model},
    {"POST", "/tokenize", Access::kKey, WhileDraining::kRefused, tokenize},
    {"POST", "/detokenize", Access::kKey, WhileDraining::kRefused, detokenize},
    {"GET", "/tokenizer_info", Access::kKey, WhileDraining::kRefused, tokenizer_info},
    {"POST", "/v1/load_lora_adapter", Access::kAdmin, WhileDraining::kRefused, load_adapter},
    {"POST", "/v1/unload_lora_adapter", Access::kAdmin, WhileDraining::kRefused, unload_adapter},
    {"GET", "/v1/droidspeak/state", Access::kKey, WhileDraining::kAnswered, show_state},
    {"GET", "/v1/droidspeak/plan_books", Access::kKey, WhileDraining::kAnswered, show_plan_books},
    {"GET", "/version", Access::kKey, WhileDraining::kAnswered, show_version},
    {"GET", "/health", Access::kProbe, WhileDraining::kRefused, health},
    {"GET", "/metrics", Access::kMetrics, WhileDraining::kAnswered, metrics},
    {"GET", "/", Access::kOpen, WhileDraining::kAnswered, show_page},
};

// Stands for every file of the web page.
constexpr Route kAssetRoute = {"GET", "/*", Access::kOpen, WhileDraining::kAnswered, show_page};

bool is_asset(std::string_view path) {
  return std::ranges::any_of(embedded_assets(),
                             [&](const Asset& asset) { return asset.path == path; });
}

bool matches(const Route& route, std::string_view path) {
  if (route.path == path) return route.path == "/" || !route.path.ends_with('/');
  return route.path.size() > 1 && route.path.ends_with('/') && path.starts_with(route.path);
}

}  // namespace

RouteMatch match_route(std::string_view method, std::string_view path) {
  RouteMatch match;
  auto add = [&](const Route& route) {
    match.label = route.path;
    bool is_get = route.method == "GET";
    if (route.method == method || (is_get && method == "HEAD")) match.route = &route;
    if (!match.allow.empty()) match.allow += ", ";
    match.allow += is_get ? "GET, HEAD" : std::string(route.method);
  };
  for (const Route& route : kRoutes) {
    if (matches(route, path)) add(route);
  }
  if (match.allow.empty() && is_asset(path)) add(kAssetRoute);
  if (!match.allow.empty()) match.allow += ", OPTIONS";
  return match;
}

}  // namespace droidspeak
