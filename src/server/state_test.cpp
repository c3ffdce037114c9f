#include "server/state.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "server/test_figures.h"

namespace droidspeak {
namespace {

TEST(StateOfCaches, HasEveryFigureUnderItsName) {
  JsonWriter json;
  write_caches(json, test_figures(Tier::kRemote));
  const auto written = nlohmann::json::parse(std::move(json).take());
  EXPECT_EQ(written["tiers"][0]["name"], "host");
  EXPECT_EQ(written["tiers"][0]["links"], nlohmann::json::array());
  EXPECT_EQ(written["tiers"][1], nlohmann::json::parse(R"({
    "name": "remote", "entries": 4, "bytes": 5, "capacity_bytes": 6, "hits": 7, "misses": 8,
    "bytes_read": 9, "bytes_written": 10, "evictions": 11, "damaged": 12, "write_errors": 13,
    "dropped_writes": 14, "links": [
      {"address": "10.0.0.1:7000", "up": true, "round_trip_ms": 500, "bytes_per_second": 16.5,
       "queued_bytes": 17, "failures": 18},
      {"address": "10.0.0.2:7000", "up": false, "round_trip_ms": 0, "bytes_per_second": 0,
       "queued_bytes": 0, "failures": 0}]})"));
  EXPECT_EQ(written["tiers"].size(), 2u);
  EXPECT_EQ(written["misses"], 1);
  EXPECT_EQ(written["damaged"], 2);
  EXPECT_EQ(written["write_errors"], 3);
  EXPECT_EQ(written.size(), 4u);
}

}  // namespace
}  // namespace droidspeak
