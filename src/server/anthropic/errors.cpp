#include "server/anthropic/errors.h"

#include "server/json_writer.h"

namespace droidspeak::anthropic {

namespace {

const char* type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 408:
      return "timeout_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status < 500 ? "invalid_request_error" : "api_error";
  }
}

}  // namespace

std::string error_body(const ApiError& error) {
  JsonWriter json;
  json.begin_object().key("type").text("error");
  json.key("error").begin_object();
  json.key("type").text(type_of(error.status)).key("message").text(error.message);
  if (error.code == kNoThreads) {
    json.key("details").begin_object().key("error_code").text(kNoThreads);
    json.key("unsupported").begin_array().text("thread").end_array().end_object();
  }
  json.end_object().end_object();
  return std::move(json).take();
}

HttpResponse error_response(const ApiError& error) {
  HttpResponse response = droidspeak::error_response(error);
  response.body = anthropic::error_body(error);
  return response;
}

}  // namespace droidspeak::anthropic
