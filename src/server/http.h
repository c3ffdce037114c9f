// HTTP as plain types, so that only the transport knows how it is spoken.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace droidspeak {

// Who asks, as far as keys tell; the application fills it in.
struct Caller {
  std::string name;              // of the key; empty: none was needed
  std::string tenant;            // caches are shared only within one; empty: with all who have none
  bool sees_all_tenants = true;  // figures that count what others do
};

struct HttpRequest {
  std::string method;
  std::string path;  // as it was sent, without query
  // Names in lower case. Headers that may stand only once (host, content-type, authorization,
  // origin, ...) do; others that are repeated are joined by ", ".
  std::map<std::string, std::string> headers;
  std::string body;
  std::shared_ptr<void> body_budget;  // what the body takes of the server's budget for bodies
  std::vector<std::shared_ptr<void>> answer_budget;  // the answer's, until it is written
  std::string client;                                // address; "unix" on a unix socket
  Caller caller;
  // False once the client is gone or the server stops. Cheap; callable only while the request is
  // handled, by the thread that handles it.
  std::function<bool()> is_connected;

  // Empty when there is no such header; `name` in lower case.
  std::string_view header(const std::string& name) const {
    auto found = headers.find(name);
    return found == headers.end() ? std::string_view() : std::string_view(found->second);
  }

  // To be called once the body has been parsed: others may then be read while this is answered.
  void release_body() {
    body = std::string();
    body_budget.reset();
  }
};

// Where a streamed answer goes.
class StreamWriter {
 public:
  virtual ~StreamWriter() = default;
  // False once the client is gone: nothing more needs to be made.
  virtual bool write(std::string_view bytes) = 0;
  virtual bool is_connected() const = 0;
};

// What the request log says beside method, path and status; a streamed answer fills it while it
// runs.
struct RequestNotes {
  bool client_left = false;
  std::vector<std::pair<std::string, std::string>> fields;  // name, JSON value
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  std::string_view
      lasting_body;  // in place of `body`: outlives the answer, so that nobody copies it
  // Set: called once to write the body piece by piece; there is no other then.
  std::function<void(StreamWriter&)> stream;
  std::shared_ptr<RequestNotes> notes;  // shared by the answer and the log; may be null

  std::string_view content() const {
    return lasting_body.empty() ? std::string_view(body) : lasting_body;
  }
};

// What stands behind the transport. Called from many connection threads at once.
class HttpApplication {
 public:
  virtual ~HttpApplication() = default;
  // Sees a request before its body has been read; an answer here saves reading it.
  virtual std::optional<HttpResponse> screen(const HttpRequest& head) = 0;
  virtual HttpResponse respond(HttpRequest& request) = 0;
  // The answer to a request that cannot be read: 400, 408, 413, 414, 415, 417, 431, 503, 505.
  virtual HttpResponse refuse(const HttpRequest& head, int status, const std::string& message) = 0;
};

}  // namespace droidspeak
