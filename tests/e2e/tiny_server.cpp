#include "e2e/tiny_server.h"

#include "sharing/plan_book.h"

namespace droidspeak {

namespace {

PlanEntry plan_entry(const ReusePlan& plan, double quality) {
  PlanEntry entry;
  entry.plan = plan;
  entry.quality_index = quality;
  entry.relative_cost = 0.25 + 0.25 * plan.recomputed_layers();
  return entry;
}

// Made up, but for the digests of the real variants.
void write_plan_book(const std::filesystem::path& path, Ops& ops, const FamilyFile& file) {
  ModelFamily family(ops, file, {});
  auto sender = family.get("base");
  auto receiver = family.get("alpha");
  PlanBook book;
  book.sender = sender->name;
  book.receiver = receiver->name;
  book.sender_model = sender->model_digest;
  book.sender_adapter = sender->adapter_digest;
  book.receiver_model = receiver->model_digest;
  book.receiver_adapter = receiver->adapter_digest;
  book.num_layers = family.config().num_layers;
  book.data_name = "none";
  book.frontier = {plan_entry(ReusePlan::reuse_all(), 0.9), plan_entry({0, 1, 3}, 0.995)};
  save_plan_book(path, book);
}

}  // namespace

TinyServer::TinyServer(TinyServerOptions options) : device_(make_cpu_device()) {
  ops_ = make_cpu_ops(*device_, 2);
  std::vector<std::string> books;
  if (options.plan_books == TinyServerOptions::PlanBooks::kBaseToAlpha) {
    write_plan_book(folder_.path() / "book.json", *ops_,
                    read_family_file(write_tiny_family(folder_.path())));
    books.emplace_back("book.json");
  }
  FamilyFile file = read_family_file(write_tiny_family(folder_.path(), {}, books));
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
