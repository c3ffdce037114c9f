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

bool lies_under(const std::filesystem::path& root, const std::filesystem::path& resolved) {
  return std::ranges::mismatch(root, resolved).in1 == root.end();
}

// A link in an adapter's folder to a file elsewhere. What is missing is named by the loader.
bool has_file_outside(const std::filesystem::path& root, const std::filesystem::path& folder) {
  auto is_outside = [&](const char* name) {
    std::error_code error;
    std::filesystem::path file = std::filesystem::canonical(folder / name, error);
    return !error && !lies_under(root, file);
  };
  return is_outside("adapter_config.json") || is_outside("adapter_model.safetensors");
}

// The folder or file with all links resolved, when it lies under the root.
ApiResult<std::filesystem::path> resolve(const Service& service, const std::string& path) {
  namespace fs = std::filesystem;
  const fs::path& adapter_root = service.options().adapter_root;
  auto refused = [](const std::string& why) {
    return bad_field("Invalid 'lora_path': " + why, "lora_path");
  };
  if (adapter_root.empty()) return refused("this server was started without --adapter-root.");
  if (path.empty() || path.find('\0') != std::string::npos) return refused("not a path.");
  std::error_code error;
  fs::path root = fs::canonical(adapter_root, error);
  if (error) return refused("--adapter-root does not exist.");
  fs::path folder = fs::canonical(root / path, error);
  // The same answer for what is missing and what is outside: paths outside are none of a client's
  // business.
  bool is_inside = !error && lies_under(root, folder) && !has_file_outside(root, folder);
  bool is_file = !error && folder.extension() == ".gguf" && fs::is_regular_file(folder, error);
  if (!is_inside || (!is_file && !fs::is_directory(folder, error))) {
    return refused("expected an adapter's folder or GGUF file under --adapter-root.");
  }
  return folder;
}

HttpResponse success(const std::string& message) {
  HttpResponse response;
  response.content_type = "text/plain";
  response.body = "Success: " + message;
  return response;
}

// Files are named as the caller named them: where the server keeps them is its own business.
std::string as_asked_for(std::string message,
                         const std::filesystem::path& folder,
                         const std::string& asked) {
  const std::string here = folder.string();
  for (size_t at = message.find(here); at != std::string::npos;
       at = message.find(here, at + asked.size()))
    message.replace(at, here.size(), asked);
  return message;
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
  ApiResult<std::filesystem::path> folder = resolve(service, wanted->path);
  if (!folder) return error_response(folder.error());
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
  if (auto loaded = service.engine().load_adapter(wanted->name, *folder, if_taken); !loaded) {
    ApiError error = to_api_error(loaded.error());
    error.message = as_asked_for(std::move(error.message), *folder, wanted->path);
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
