// Structured log on stderr: one JSON object a line. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace droidspeak {

class RequestLog {
 public:
  enum class Requests { kNotLogged, kLogged };

  explicit RequestLog(Requests requests);
  ~RequestLog();

  using Fields = std::vector<std::pair<std::string, std::string>>;  // name, JSON value

  bool logs_requests() const;
  // At info level, when requests are logged.
  void request(const Fields& fields);
  void warning(const std::string& event, const Fields& fields);

 private:
  struct Sink;
  std::unique_ptr<Sink> sink_;
};

}  // namespace droidspeak
