#include "e2e/tiny_server.h"

#include "e2e/tiny_plan_book.h"

namespace droidspeak {

TinyServer::TinyServer(TinyServerOptions options) : own_device_(make_cpu_device()) {
  ops_ = make_cpu_ops(options.device != nullptr ? *options.device : *own_device_, 2);
  std::vector<std::string> books;
  if (options.plan_books == TinyServerOptions::PlanBooks::kBaseToAlpha) {
    write_tiny_plan_book(folder_.path() / "book.json", *ops_,
                         read_family_file(write_tiny_family(folder_.path())), "alpha");
    books.emplace_back("book.json");
  }
  FamilyFile file = read_family_file(write_tiny_family(folder_.path(), {}, books));
  file.base.pooling = options.base_pooling;
  tokenizer_ = load_hf_tokenizer(file.base.path);
  options.engine.kv_bytes = uint64_t{32} << 20;
  options.engine.store.host_bytes = uint64_t{32} << 20;
  engine_ = std::make_unique<Engine>(*ops_, file, options.engine);
  options.server.port = 0;
  if (options.server.adapter_root.empty()) options.server.adapter_root = folder_.path();
  server_ = std::make_unique<HttpServer>(*engine_, *tokenizer_, options.server);
}

ClientResponse TinyServer::get(const std::string& path, std::vector<std::string> headers) {
  return fetch(port(), {"GET", path, std::move(headers), ""});
}

ClientResponse TinyServer::post(const std::string& path,
                                const std::string& body,
                                std::vector<std::string> headers) {
  return fetch(port(), {"POST", path, std::move(headers), body});
}

}  // namespace droidspeak
