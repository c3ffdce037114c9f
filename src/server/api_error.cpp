#include "server/api_error.h"

#include <array>

#include "server/json_writer.h"

namespace droidspeak {

namespace {

struct StatusMeaning {
  int status;
  const char* type;
  const char* code;
};

constexpr std::array kStatusMeanings = {
    StatusMeaning{400, "invalid_request_error", ""},
    StatusMeaning{401, "invalid_request_error", "invalid_api_key"},
    StatusMeaning{403, "invalid_request_error", "forbidden"},
    StatusMeaning{404, "invalid_request_error", "unknown_url"},
    StatusMeaning{405, "invalid_request_error", "method_not_supported"},
    StatusMeaning{408, "invalid_request_error", "request_timeout"},
    StatusMeaning{413, "invalid_request_error", "request_too_large"},
    StatusMeaning{415, "invalid_request_error", "unsupported_media_type"},
    StatusMeaning{421, "invalid_request_error", "misdirected_request"},
    StatusMeaning{429, "rate_limit_error", "rate_limit_exceeded"},
    StatusMeaning{499, "invalid_request_error", "cancelled"},
    StatusMeaning{500, "server_error", ""},
    StatusMeaning{503, "server_error", "unavailable"},
};

int http_status(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return 400;
    case ErrorCode::kNotFound:
      return 404;
    case ErrorCode::kExhausted:
      return 429;
    case ErrorCode::kCancelled:
      return 499;
    case ErrorCode::kUnavailable:
      return 503;
    case ErrorCode::kDataCorrupt:
    case ErrorCode::kInternal:
      return 500;
  }
  panic("unknown ErrorCode");
}

}  // namespace

ApiError bad_field(std::string message, std::string param, std::string code) {
  ApiError error;
  error.message = std::move(message);
  error.param = std::move(param);
  error.code = std::move(code);
  return error;
}

ApiError model_not_found(const std::string& model) {
  ApiError error =
      bad_field("The model `" + model + "` does not exist; GET /v1/models lists those that do.",
                "model", "model_not_found");
  error.status = 404;
  return error;
}

ApiError status_error(int status, std::string message) {
  ApiError error;
  error.status = status;
  error.message = std::move(message);
  error.type = status >= 500 ? "server_error" : "invalid_request_error";
  for (const StatusMeaning& meaning : kStatusMeanings) {
    if (meaning.status != status) continue;
    error.type = meaning.type;
    error.code = meaning.code;
  }
  if (status == 429 || status == 503) error.retry_after_s = 1;
  return error;
}

ApiError to_api_error(const Error& error) {
  ApiError result = status_error(http_status(error.code), error.message);
  if (error.code == ErrorCode::kNotFound) result.code = "not_found";
  return result;
}

std::string error_body(const ApiError& error) {
  JsonWriter json;
  json.begin_object().key("error").begin_object();
  json.key("message").text(error.message);
  json.key("type").text(error.type);
  json.key("param").text_or_null(error.param);
  json.key("code").text_or_null(error.code);
  json.end_object().end_object();
  return std::move(json).take();
}

HttpResponse error_response(const ApiError& error) {
  HttpResponse response;
  response.status = error.status;
  response.body = error_body(error);
  if (error.retry_after_s > 0) {
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  }
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

}  // namespace droidspeak
