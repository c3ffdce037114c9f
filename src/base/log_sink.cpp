#include "base/log_sink.h"

#include <algorithm>
#include <mutex>
#include <string_view>

#include <limits.h>
#include <poll.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

namespace droidspeak {
namespace {

class LogSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit LogSink(int descriptor) : descriptor_(descriptor) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    std::string_view rest(line.data(), line.size());
    while (!rest.empty() && is_writable()) {
      // A pipe that is writable takes this much without waiting.
      const ssize_t written =
          write(descriptor_, rest.data(), std::min<size_t>(rest.size(), PIPE_BUF));
      if (written <= 0) return;
      rest.remove_prefix(static_cast<size_t>(written));
    }
  }

  void flush_() override {}

  bool is_writable() const {
    pollfd request{.fd = descriptor_, .events = POLLOUT, .revents = 0};
    return poll(&request, 1, 0) == 1 && request.revents == POLLOUT;  // no error, and a reader
  }

  int descriptor_;
};

}  // namespace

std::shared_ptr<spdlog::sinks::sink> make_log_sink(int descriptor) {
  return std::make_shared<LogSink>(descriptor);
}

void log_to_stderr() {
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("droidspeak", make_log_sink(STDERR_FILENO)));
}

}  // namespace droidspeak
