#include "server/store_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/test_figures.h"

namespace droidspeak {
namespace {

using testing::HasSubstr;

TEST(StoreMetrics, HaveEveryFigureUnderItsName) {
  PrometheusText text({});
  write_store_metrics(text, test_figures(Tier::kPeer));
  const std::string written = std::move(text).take();
  for (const char* line : {
           "droidspeak_store_misses_total{} 1\n",
           "droidspeak_store_damaged_total{} 2\n",
           "droidspeak_store_write_errors_total{} 3\n",
           "droidspeak_store_entries{tier=\"host\"} 0\n",
           "droidspeak_store_entries{tier=\"peer\"} 4\n",
           "droidspeak_store_bytes{tier=\"peer\"} 5\n",
           "droidspeak_store_capacity_bytes{tier=\"peer\"} 6\n",
           "droidspeak_store_hits_total{tier=\"peer\"} 7\n",
           "droidspeak_store_read_misses_total{tier=\"peer\"} 8\n",
           "droidspeak_store_read_bytes_total{tier=\"peer\"} 9\n",
           "droidspeak_store_written_bytes_total{tier=\"peer\"} 10\n",
           "droidspeak_store_evictions_total{tier=\"peer\"} 11\n",
           "droidspeak_store_tier_damaged_total{tier=\"peer\"} 12\n",
           "droidspeak_store_tier_write_errors_total{tier=\"peer\"} 13\n",
           "droidspeak_store_dropped_writes_total{tier=\"peer\"} 14\n",
           "droidspeak_link_up{tier=\"peer\",address=\"10.0.0.1:7000\"} 1\n",
           "droidspeak_link_up{tier=\"peer\",address=\"10.0.0.2:7000\"} 0\n",
           "droidspeak_link_round_trip_seconds{tier=\"peer\",address=\"10.0.0.1:7000\"} 0.5\n",
           "droidspeak_link_bytes_per_second{tier=\"peer\",address=\"10.0.0.1:7000\"} 16.5\n",
           "droidspeak_link_queued_bytes{tier=\"peer\",address=\"10.0.0.1:7000\"} 17\n",
           "droidspeak_link_failures_total{tier=\"peer\",address=\"10.0.0.1:7000\"} 18\n",
       }) {
    EXPECT_THAT(written, HasSubstr(line));
  }
}

}  // namespace
}  // namespace droidspeak
