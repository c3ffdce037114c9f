#include <charconv>

#include "server/handlers.h"
#include "server/json_writer.h"

namespace droidspeak {

namespace {

void write_model(JsonWriter& json, const Service& service, const Service::Model& model) {
  json.begin_object();
  json.key("id").text(model.id);
  json.key("object").text("model");
  json.key("created").integer(service.start_time());
  json.key("owned_by").text("droidspeak");
  json.key("root").text(model.parent.empty() ? model.id : model.parent);
  json.key("parent").text_or_null(model.parent);
  json.key("max_model_len").integer(service.max_model_len());
  json.end_object();
}

// Clients write '/' and others in a name as "%2F".
std::string percent_decoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    uint8_t byte = 0;
    const char* digits = text.data() + i + 1;
    bool is_encoded = text[i] == '%' && i + 2 < text.size() &&
                      std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2;
    decoded += is_encoded ? static_cast<char>(byte) : text[i];
    if (is_encoded) i += 2;
  }
  return decoded;
}

}  // namespace

HttpResponse list_models(Service& service, HttpRequest& /*request*/) {
  JsonWriter json;
  json.begin_object().key("object").text("list").key("data").begin_array();
  for (const Service::Model& model : service.models()) write_model(json, service, model);
  json.end_array().end_object();
  HttpResponse response;
  response.body = std::move(json).take();
  return response;
}

HttpResponse show_version(Service& service, HttpRequest& /*request*/) {
  const BuildVersion& version = service.options().version;
  JsonWriter json;
  json.begin_object();
  json.key("version").text(version.number);
  json.key("commit").text(version.commit);
  json.key("features").begin_array();
  for (const std::string& feature : version.features) json.text(feature);
  json.end_array().end_object();
  HttpResponse response;
  response.body = std::move(json).take();
  return response;
}

HttpResponse show_model(Service& service, HttpRequest& request) {
  constexpr std::string_view kPrefix = "/v1/models/";
  std::string id = percent_decoded(std::string_view(request.path).substr(kPrefix.size()));
  std::optional<Service::Model> model = service.find_model(id);
  if (!model) return error_response(model_not_found(id));
  JsonWriter json;
  write_model(json, service, *model);
  HttpResponse response;
  response.body = std::move(json).take();
  return response;
}

}  // namespace droidspeak
