#include "server/request_log.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include "base/log_sink.h"
#include "server/json_writer.h"

namespace droidspeak {

struct RequestLog::Sink {
  spdlog::logger logger{"server", make_log_sink(STDERR_FILENO)};

  void write(spdlog::level::level_enum level, const std::string& event, const Fields& fields) {
    JsonWriter json;
    json.begin_object();
    json.key("event").text(event);
    for (const auto& [name, value] : fields) json.key(name).raw(value);
    json.end_object();
    std::string text = std::move(json).take();
    logger.log(level, std::string_view(text).substr(1));  // the pattern brings the brace
  }
};

RequestLog::RequestLog(Requests requests) : sink_(std::make_unique<Sink>()) {
  sink_->logger.set_pattern(R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l",%v)");
  bool logs_requests = requests == Requests::kLogged;
  sink_->logger.set_level(logs_requests ? spdlog::level::info : spdlog::level::warn);
  sink_->logger.flush_on(spdlog::level::info);
}

RequestLog::~RequestLog() = default;

bool RequestLog::logs_requests() const {
  return sink_->logger.should_log(spdlog::level::info);
}

void RequestLog::request(const Fields& fields) {
  if (logs_requests()) sink_->write(spdlog::level::info, "request", fields);
}

void RequestLog::warning(const std::string& event, const Fields& fields) {
  sink_->write(spdlog::level::warn, event, fields);
}

}  // namespace droidspeak
