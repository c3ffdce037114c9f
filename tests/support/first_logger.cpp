// In every test binary: spdlog's registry is made before there are threads. Its library is built
// without the thread sanitizer, which does not see that whoever logs first makes the registry under
// a lock, and takes what the others then read of it for a race.
#include <spdlog/spdlog.h>

namespace droidspeak {
namespace {

[[maybe_unused]] const spdlog::logger* const first_logger = spdlog::default_logger_raw();

}  // namespace
}  // namespace droidspeak
