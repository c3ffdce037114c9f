#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "server/handlers.h"
#include "server/read_body.h"

namespace droidspeak {

namespace {

constexpr size_t kMaxNameLength = 128;

bool is_name_character(unsigned char c) {
  return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-' || c == ':' || c == '@';
}

std::optional<ApiError> check_name(const std::string& name) {
  bool is_fine = !name.empty() && name.size() <= kMaxNameLength && name != "." && name != ".." &&
                 std::ranges::all_of(name, is_name_character);
  if (is_fine) return std::nullopt;
  return bad_field(
      fmt::format("Invalid 'lora_name': expected 1 to {} letters, digits or . _ - : @.",
                  kMaxNameLength),
      "lora_name");
}

ApiResult<AdapterPath> check_path(const Service& service, const std::string& path) {
  auto refused = [](const std::string& why) {
    return bad_field("Invalid 'lora_path': " + why, "lora_path");
  };
  const std::filesystem::path& root = service.options().adapter_root;
  if (root.empty()) return refused("this server was started without --adapter-root.");
  if (path.empty() || path.find('\0') != std::string::npos) return refused("not a path.");
  return AdapterPath(root, path);
}

HttpResponse success(const std::string& message) {
  HttpResponse response;
  response.content_type = "text/plain";
  response.body = "Success: " + message;
  return response;
}

// Others may be parsed while an adapter is loaded.
template <class Wanted>
ApiResult<Wanted> parse(Service& service,
                        HttpRequest& request,
                        ApiResult<Wanted> (*parse_body)(std::string_view)) {
  auto body = read_body(service, request, parse_body);
  if (!body) return body.error();
  return std::move(body->wanted);
}

}  // namespace

HttpResponse load_adapter(Service& service, HttpRequest& request) {
  using Wanted = openai::LoadAdapterRequest::IfTaken;
  auto wanted = parse(service, request, openai::parse_load_adapter_request);
  if (!wanted) return error_response(wanted.error());
  if (auto error = check_name(wanted->name)) return error_response(*error);
  ApiResult<AdapterPath> path = check_path(service, wanted->path);
  if (!path) return error_response(path.error());
  std::optional<Service::Model> taken = service.find_model(wanted->name);
  if (taken && taken->parent.empty()) {
    return error_response(
        bad_field("Invalid 'lora_name': '" + wanted->name + "' is the base model.", "lora_name"));
  }
  if (taken && wanted->if_taken == Wanted::kRefuse) {
    return error_response(
        bad_field("The lora adapter '" + wanted->name +
                      "' has already been loaded; set load_inplace to replace it.",
                  "lora_name"));
  }
  IfTaken if_taken = wanted->if_taken == Wanted::kRefuse ? IfTaken::kRefuse : IfTaken::kReplace;
  if (auto loaded = service.engine().load_adapter(wanted->name, *path, if_taken); !loaded) {
    ApiError error = to_api_error(loaded.error());
    if (loaded.error().code == ErrorCode::kNotFound)
      error.message = "Invalid 'lora_path': " + error.message + ".";
    // What is wrong with the folder's content is the caller's fault, whatever the loader calls it.
    bool is_fault_of_ours = error.status >= 500 && loaded.error().code != ErrorCode::kDataCorrupt;
    if (!is_fault_of_ours && error.status != 429) error = bad_field(error.message, "lora_path");
    return error_response(error);
  }
  return success("LoRA adapter '" + wanted->name + "' added successfully.");
}

HttpResponse unload_adapter(Service& service, HttpRequest& request) {
  auto wanted = parse(service, request, openai::parse_unload_adapter_request);
  if (!wanted) return error_response(wanted.error());
  std::optional<Service::Model> model = service.find_model(wanted->name);
  if (model && model->parent.empty()) {
    return error_response(bad_field(
        "Invalid 'lora_name': '" + wanted->name + "' is the base model and cannot be unloaded.",
        "lora_name"));
  }
  auto unloaded = service.engine().unload_adapter(wanted->name);
  if (!unloaded) {
    ApiError error = to_api_error(unloaded.error());
    if (unloaded.error().code == ErrorCode::kNotFound) {
      error.message = "The lora adapter '" + wanted->name + "' cannot be found.";
      error.param = "lora_name";
    }
    return error_response(error);
  }
  return success("LoRA adapter '" + wanted->name + "' removed successfully.");
}

}  // namespace droidspeak
