#include "e2e/http_client.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <sstream>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"

namespace droidspeak {

namespace {

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::string join_chunks(const std::string& body) {
  std::string joined;
  size_t position = 0;
  while (position < body.size()) {
    size_t line_end = body.find("\r\n", position);
    if (line_end == std::string::npos) break;
    size_t size = std::stoul(body.substr(position, line_end - position), nullptr, 16);
    if (size == 0) break;
    joined += body.substr(line_end + 2, size);
    position = line_end + 2 + size + 2;
  }
  return joined;
}

}  // namespace

std::vector<std::string> ClientResponse::events() const {
  std::vector<std::string> events;
  std::istringstream lines(body);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("data: ")) events.push_back(line.substr(6));
  }
  return events;
}

ClientConnection::ClientConnection(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    ::close(socket_);
    throw Failure(ErrorCode::kUnavailable, "cannot connect to port " + std::to_string(port));
  }
}

ClientConnection::~ClientConnection() {
  ::close(socket_);
}

void ClientConnection::send(std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t count = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
}

std::string ClientConnection::read_some() {
  char piece[16384];
  ssize_t count = ::recv(socket_, piece, sizeof piece, 0);
  return count > 0 ? std::string(piece, static_cast<size_t>(count)) : std::string();
}

std::string ClientConnection::read_all() {
  std::string all;
  for (std::string piece = read_some(); !piece.empty(); piece = read_some()) all += piece;
  return all;
}

std::string format_request(const ClientRequest& request) {
  std::string text = request.method + " " + request.path + " HTTP/1.1\r\nConnection: close\r\n";
  std::string given;
  for (const std::string& header : request.headers) given += header + "\r\n";
  if (given.find("Host: ") == std::string::npos) text += "Host: localhost\r\n";
  bool is_typed = given.find("Content-Type: ") != std::string::npos;
  if (request.method == "POST" && !is_typed) text += "Content-Type: application/json\r\n";
  text += given;
  if (!request.body.empty())
    text += "Content-Length: " + std::to_string(request.body.size()) + "\r\n";
  return text + "\r\n" + request.body;
}

ClientResponse parse_response(const std::string& bytes) {
  ClientResponse response;
  size_t head_end = bytes.find("\r\n\r\n");
  if (head_end == std::string::npos || !bytes.starts_with("HTTP/1.1 ")) return response;
  response.status = std::stoi(bytes.substr(9, 3));
  std::istringstream lines(bytes.substr(0, head_end));
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    std::string value = line.substr(colon + 2);
    if (value.ends_with('\r')) value.pop_back();
    response.headers[lower(line.substr(0, colon))] = value;
  }
  response.body = bytes.substr(head_end + 4);
  if (response.headers["transfer-encoding"] == "chunked")
    response.body = join_chunks(response.body);
  return response;
}

ClientResponse fetch(int port, const ClientRequest& request) {
  ClientConnection connection(port);
  connection.send(format_request(request));
  return parse_response(connection.read_all());
}

}  // namespace droidspeak
