// Files of the web page, put into the program at build time (embed_assets.cmake).
#pragma once

#include <span>
#include <string_view>

namespace droidspeak {

struct Asset {
  std::string_view path;  // "/app.js"
  std::string_view content_type;
  std::string_view content;
  std::string_view tag;  // of the content, see entity_tag.h
};

std::span<const Asset> embedded_assets();

}  // namespace droidspeak
