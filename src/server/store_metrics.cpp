#include "server/store_metrics.h"

namespace droidspeak {

namespace {

using Kind = PrometheusText::Kind;

struct TierMetric {
  const char* name;
  Kind kind;
  const char* help;
  uint64_t TierReport::*value;
};

// Servers and nodes that tiers talk to.
void write_link_metrics(PrometheusText& text, const StoreCounters& store) {
  auto write = [&](const char* name, Kind kind, const char* help, auto value_of) {
    text.metric(name, kind, help);
    for (const TierReport& tier : store.tiers) {
      for (const LinkReport& link : tier.links) {
        text.sample(value_of(link),
                    {{"tier", std::string(tier_name(tier.tier))}, {"address", link.address}});
      }
    }
  };
  write("droidspeak_link_up", Kind::kGauge, "Whether the other side answers.",
        [](const LinkReport& link) { return link.is_up ? 1.0 : 0.0; });
  write("droidspeak_link_round_trip_seconds", Kind::kGauge, "Round trip of a small message.",
        [](const LinkReport& link) { return link.round_trip_seconds; });
  write("droidspeak_link_bytes_per_second", Kind::kGauge,
        "What all loads together get, in decoded bytes.",
        [](const LinkReport& link) { return link.bytes_per_second; });
  write("droidspeak_link_queued_bytes", Kind::kGauge, "Asked for and not arrived.",
        [](const LinkReport& link) { return static_cast<double>(link.queued_bytes); });
  write("droidspeak_link_failures_total", Kind::kCounter, "Times that it was lost.",
        [](const LinkReport& link) { return static_cast<double>(link.failures); });
}

}  // namespace

void write_store_metrics(PrometheusText& text, const StoreCounters& store) {
  const TierMetric metrics[] = {
      {"droidspeak_store_entries", Kind::kGauge, "Blocks held.", &TierReport::entries},
      {"droidspeak_store_bytes", Kind::kGauge, "Bytes held.", &TierReport::bytes},
      {"droidspeak_store_capacity_bytes", Kind::kGauge, "Bytes that may be held.",
       &TierReport::capacity_bytes},
      {"droidspeak_store_hits_total", Kind::kCounter, "Entries found.", &TierReport::hits},
      {"droidspeak_store_read_bytes_total", Kind::kCounter, "Bytes read.", &TierReport::bytes_read},
      {"droidspeak_store_written_bytes_total", Kind::kCounter, "Bytes written.",
       &TierReport::bytes_written},
      {"droidspeak_store_evictions_total", Kind::kCounter, "Blocks evicted.",
       &TierReport::evictions},
      {"droidspeak_store_read_misses_total", Kind::kCounter,
       "Entries that were thought to be there and were not.", &TierReport::misses},
      {"droidspeak_store_dropped_writes_total", Kind::kCounter,
       "Blocks that were not written: too far behind, or nothing to write to.",
       &TierReport::dropped_writes},
      {"droidspeak_store_tier_damaged_total", Kind::kCounter, "Entries whose check failed.",
       &TierReport::damaged},
      {"droidspeak_store_tier_write_errors_total", Kind::kCounter, "Writes that were refused.",
       &TierReport::write_errors},
  };
  for (const TierMetric& metric : metrics) {
    text.metric(metric.name, metric.kind, metric.help);
    for (const TierReport& tier : store.tiers)
      text.sample(static_cast<double>(tier.*metric.value),
                  {{"tier", std::string(tier_name(tier.tier))}});
  }
  write_link_metrics(text, store);
  text.metric("droidspeak_store_misses_total", Kind::kCounter, "Entries not found.")
      .sample(static_cast<double>(store.misses));
  text.metric("droidspeak_store_damaged_total", Kind::kCounter, "Entries whose check failed.")
      .sample(static_cast<double>(store.damaged));
  text.metric("droidspeak_store_write_errors_total", Kind::kCounter, "Writes that a tier refused.")
      .sample(static_cast<double>(store.write_errors));
}

}  // namespace droidspeak
