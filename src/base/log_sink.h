// Where log lines go: a file descriptor, in one piece each. A reader that does not keep up costs
// lines, never time: threads that compute or answer must not wait for it.
#pragma once

#include <memory>

namespace spdlog::sinks {
class sink;
}

namespace droidspeak {

std::shared_ptr<spdlog::sinks::sink> make_log_sink(int descriptor);

// Lines of spdlog's own functions go to stderr as well.
void log_to_stderr();

}  // namespace droidspeak
