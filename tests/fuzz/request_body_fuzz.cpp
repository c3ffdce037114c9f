// Any bytes as the body of every call that takes one, on a real engine with a tiny family: each is
// answered with JSON or with an error of a documented status in the API's shape, and never with a
// fault of ours.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include "base/check.h"
#include "base/file.h"
#include "device/device.h"
#include "engine/engine.h"
#include "ops/ops.h"
#include "server/handlers.h"
#include "support/tiny_model.h"
#include "text/tokenizer.h"

using namespace droidspeak;  // NOLINT(google-build-using-namespace)

namespace {

using Clock = std::chrono::steady_clock;
using Handler = HttpResponse (*)(Service&, HttpRequest&);

// Answers that take longer are cut short as if the client had left.
constexpr std::chrono::milliseconds kPatience{30};
constexpr int32_t kMaxPositions = 192;

TinyModelOptions model_options() {
  TinyModelOptions options;
  options.num_layers = 1;
  options.d_model = 32;
  options.num_heads = 2;
  options.num_kv_heads = 1;
  options.ffn_dim = 32;
  options.max_positions = kMaxPositions;
  return options;
}

EngineOptions engine_options() {
  EngineOptions options;
  options.kv_bytes = uint64_t{4} << 20;
  options.store.host_bytes = uint64_t{4} << 20;
  return options;
}

ServiceOptions service_options(const std::filesystem::path& folder) {
  ServiceOptions options;
  options.adapter_root = folder;
  return options;
}

struct Application {
  TemporaryFolder folder;
  std::unique_ptr<Device> device = make_cpu_device();
  std::unique_ptr<Ops> ops = make_cpu_ops(*device, 1);
  FamilyFile file = read_family_file(write_tiny_family(folder.path(), model_options()));
  std::unique_ptr<Tokenizer> tokenizer = load_hf_tokenizer(file.base.path);
  Engine engine{*ops, file, engine_options()};
  Service service{engine, *tokenizer, service_options(folder.path())};

  // What one input has loaded or unloaded must not change what the next one means.
  void restore_adapters() {
    for (const Service::Model& model : service.models()) {
      bool is_own = model.id == "alpha" || model.id == "beta" || model.parent.empty();
      if (!is_own) check(static_cast<bool>(engine.unload_adapter(model.id)), "it was loaded");
    }
    for (const char* name : {"alpha", "beta"}) {
      if (service.find_model(name)) continue;
      auto loaded = engine.load_adapter(name, folder.path() / "adapters" / name);
      check(static_cast<bool>(loaded), "the family's own adapters can be loaded");
    }
  }
};

class EventCollector final : public StreamWriter {
 public:
  explicit EventCollector(Clock::time_point deadline) : deadline_(deadline) {}

  bool write(std::string_view bytes) override {
    text_ += bytes;
    return is_connected();
  }

  bool is_connected() const override { return Clock::now() < deadline_; }

  const std::string& text() const { return text_; }

 private:
  const Clock::time_point deadline_;
  std::string text_;
};

void check_anthropic_error(const nlohmann::json& body) {
  check(body.size() == 2 && body.at("type") == "error", "an error says that it is one");
  const nlohmann::json& error = body.at("error");
  check(error.size() == 2, "an error has two fields");
  check(!error.at("message").get<std::string>().empty(), "an error has a message");
  check(!error.at("type").get<std::string>().empty(), "an error has a type");
}

void check_error_body(const HttpResponse& response) {
  static constexpr int kDocumented[] = {400, 404, 413, 429, 499};
  bool is_documented = false;
  for (int status : kDocumented) is_documented = is_documented || response.status == status;
  check(is_documented, "an error has a status that the documentation lists");
  nlohmann::json body = nlohmann::json::parse(response.body);
  if (body.contains("type")) return check_anthropic_error(body);
  const nlohmann::json& error = body.at("error");
  check(error.size() == 4, "an error has four fields");
  check(!error.at("message").get<std::string>().empty(), "an error has a message");
  check(!error.at("type").get<std::string>().empty(), "an error has a type");
  for (const char* name : {"param", "code"}) {
    const nlohmann::json& value = error.at(name);
    check(value.is_null() || !value.get<std::string>().empty(), "param and code are texts or null");
  }
}

void check_events(const std::string& events) {
  for (size_t begin = 0; begin < events.size();) {
    size_t end = events.find("\n\n", begin);
    check(end != std::string::npos, "every event ends with an empty line");
    std::string event = events.substr(begin, end - begin);
    if (event.starts_with("event: ")) event.erase(0, event.find('\n') + 1);
    check(event.starts_with("data: "), "every event has data");
    if (event != "data: [DONE]") {
      check(nlohmann::json::parse(event.substr(6)).is_object(), "every event is an object");
    }
    begin = end + 2;
  }
}

void check_answer(Service& service, Handler handler, std::string_view body) {
  Clock::time_point deadline = Clock::now() + kPatience;
  HttpRequest request;
  request.method = "POST";
  request.body = body;
  request.is_connected = [deadline] { return Clock::now() < deadline; };
  HttpResponse response = handler(service, request);
  if (response.status != 200) return check_error_body(response);
  if (response.stream) {
    EventCollector collector(deadline);
    response.stream(collector);
    return check_events(collector.text());
  }
  bool is_text = response.content_type == "text/plain";
  check(is_text || nlohmann::json::accept(response.body), "an answer is JSON");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  spdlog::set_level(spdlog::level::err);
  static Application application;
  std::string_view body(reinterpret_cast<const char*>(data), size);
  for (Handler handler : {chat_completions, completions, responses, messages, count_message_tokens,
                          tokenize, detokenize, load_adapter, unload_adapter}) {
    check_answer(application.service, handler, body);
  }
  application.restore_adapters();
  return 0;
}
