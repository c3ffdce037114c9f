// What one engine has read, another takes from its memory, through the whole engine.
#include <thread>

#include <gtest/gtest.h>

#include "base/test_wait.h"
#include "engine/engine.h"
#include "engine/shared_family.h"
#include "redis/redis_process.h"

namespace droidspeak {
namespace {

EngineOptions peer_engine(const RedisProcess& directory) {
  EngineOptions options = tiny_options();
  options.store.peer = {.listen = "127.0.0.1:0",
                        .directory = directory.servers(),
                        .secret = std::vector<std::byte>(32, std::byte{7})};
  options.store.peer.stall = std::chrono::seconds(5);
  options.store.peer.first_pause = std::chrono::milliseconds(20);
  // Computing is dear and links are not: what is chosen does not depend on this machine's load.
  options.fixed_costs->token_seconds = 1e-1;
  return options;
}

bool knows_a_peer(const Engine& engine) {
  std::vector<LinkReport> links = engine.metrics().store.of(Tier::kPeer).links;
  return !links.empty() && links[0].is_up && links[0].bytes_per_second > 0;
}

size_t num_told(const RedisProcess& directory) {
  return directory.command({"KEYS", "droidspeak:peer:block:*"}).items.size();
}

// Returns when the directory knows of so many blocks more.
void generate_and_tell(Engine& engine, const RedisProcess& directory, GenerationRequest request) {
  size_t before = num_told(directory);
  size_t num_blocks = (request.prompt->size() - 1) / 64;
  generate(engine, std::move(request));
  wait_until([&] { return num_told(directory) >= before + num_blocks; },
             "the directory to know the blocks");
}

// By prompts of their own, until the link is known.
void meet(Engine& engine, Engine& other, const RedisProcess& directory) {
  int32_t number = 0;
  wait_until([&] {
    if (knows_a_peer(engine)) return true;
    std::vector<int32_t> prompt = question(1, 64, 10);
    prompt[0] = number % 20;
    prompt[1] = number / 20;
    ++number;
    GenerationRequest request{.model = "base", .prompt = prompt, .max_tokens = 1};
    generate_and_tell(other, directory, request);
    generate(engine, request);
    return false;
  });
}

TEST(PeerSharing, ASecondEngineTakesFromTheFirstsMemory) {
  SKIP_WITHOUT_REDIS();
  SharedFamily family;
  RedisProcess directory;
  std::vector<int32_t> prompt = question(1, 256, 10);
  Engine first(family.ops(), family.file(), peer_engine(directory));
  Engine second(family.ops(), family.file(), peer_engine(directory));
  meet(second, first, directory);
  generate_and_tell(first, directory, {.model = "base", .prompt = prompt, .max_tokens = 1});
  std::vector<int32_t> shared = generate(first, by_name("alpha", prompt, "0,2,3")).tokens;
  std::vector<int32_t> own =
      generate(first, {.model = "base", .prompt = prompt, .max_tokens = 12}).tokens;
  Outcome outcome = generate(second, by_name("alpha", prompt, "0,2,3"));
  EXPECT_EQ(outcome.report.sender, "base");
  EXPECT_EQ(outcome.report.reused_tokens, 256);
  EXPECT_EQ(outcome.report.tier, "peer");
  EXPECT_EQ(outcome.tokens, shared);
  Outcome exact = generate(second, {.model = "base", .prompt = prompt, .max_tokens = 12});
  EXPECT_EQ(exact.tokens, own);
}

TEST(PeerSharing, ANodeThatEndsCostsTimeOnly) {
  SKIP_WITHOUT_REDIS();
  SharedFamily family;
  RedisProcess directory;
  std::vector<int32_t> prompt = question(1, 256, 10);
  GenerationRequest request{.model = "base", .prompt = prompt, .max_tokens = 12};
  std::vector<int32_t> right = family.reference_greedy("base", prompt, 12);
  auto first = std::make_unique<Engine>(family.ops(), family.file(), peer_engine(directory));
  Engine second(family.ops(), family.file(), peer_engine(directory));
  meet(second, *first, directory);
  EXPECT_EQ(generate(*first, request).tokens, right);
  first.reset();
  EXPECT_EQ(generate(second, request).tokens, right);
  EXPECT_EQ(generate(second, request).tokens, right);
}

}  // namespace
}  // namespace droidspeak
