// A small HTTP client for tests, on a raw socket so that it can also misbehave.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace droidspeak {

struct ClientResponse {
  int status = 0;                              // 0: the server closed without an answer
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined

  // The data of the server-sent events in the body.
  std::vector<std::string> events() const;
};

struct ClientRequest {
  std::string method = "GET";
  std::string path = "/";
  std::vector<std::string> headers;  // "Name: value"
  std::string body;
};

// One connection. Throws Failure when it cannot be made.
class ClientConnection {
 public:
  explicit ClientConnection(int port);
  ~ClientConnection();
  ClientConnection(const ClientConnection&) = delete;
  ClientConnection& operator=(const ClientConnection&) = delete;

  void send(std::string_view bytes);
  std::string read_some();  // empty at the end
  std::string read_all();

 private:
  int socket_;
};

// With "Host: localhost" and, when posting, JSON's content type unless the headers say otherwise.
std::string format_request(const ClientRequest& request);
ClientResponse parse_response(const std::string& bytes);
// Sends and reads the whole answer on a connection of its own.
ClientResponse fetch(int port, const ClientRequest& request);

}  // namespace droidspeak
