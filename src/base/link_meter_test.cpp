#include "base/link_meter.h"

#include <gtest/gtest.h>

namespace droidspeak {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

TEST(LinkMeter, MeasuresAllLoadsTogether) {
  LinkMeter meter;
  LinkMeter::Time now{};
  meter.note_round_trip(1e-3);
  meter.note_first_look(5e6, 1e6);
  EXPECT_NEAR(meter.bytes_per_second(), 5e6, 1);
  EXPECT_NEAR(meter.carried_per_second(), 1e6, 1);
  // Two loads of 100 MB/s each, at the same time: the link carries 200 MB/s.
  const uint64_t piece = uint64_t{1} << 20;
  meter.begin(100 * piece, now);
  meter.begin(100 * piece, now);
  EXPECT_EQ(meter.queued_bytes(), 200 * piece);
  for (int i = 0; i < 100; ++i) {
    now += std::chrono::nanoseconds(static_cast<int64_t>(piece * 2 / 200e6 * 1e9));
    meter.arrive(piece, piece / 4, now);
    meter.arrive(piece, piece / 4, now);
  }
  EXPECT_EQ(meter.queued_bytes(), 0u);
  EXPECT_NEAR(meter.bytes_per_second() / 200e6, 1, 0.1);
  EXPECT_NEAR(meter.carried_per_second() / 50e6, 1, 0.1) << "they came in a quarter of their size";
  // Nothing is on its way: this time does not count.
  now += std::chrono::seconds(100);
  meter.begin(10 * piece, now);
  for (int i = 0; i < 10; ++i) {
    now += milliseconds(5);
    meter.arrive(piece, piece / 4, now);
  }
  EXPECT_NEAR(meter.bytes_per_second() / 205e6, 1, 0.15);
  meter.begin(7, now);
  meter.give_up(7);
  EXPECT_EQ(meter.queued_bytes(), 0u);
}

TEST(LinkMeter, TheLeastRoundTripCounts) {
  LinkMeter meter;
  meter.note_round_trip(2e-3);
  meter.note_round_trip(1e-3);
  EXPECT_NEAR(meter.round_trip_seconds(), 1e-3, 1e-9);
  meter.note_round_trip(11e-3);
  EXPECT_NEAR(meter.round_trip_seconds(), 2e-3, 1e-9) << "slowly, if it stays so";
}

// Whoever looks finds at once what has come since the last look: that is no rate.
TEST(LinkMeter, WhatIsFoundTogetherCameOneAfterTheOther) {
  LinkMeter meter;
  LinkMeter::Time now{};
  meter.note_round_trip(1e-6);
  const uint64_t piece = uint64_t{4} << 20;
  for (int load = 0; load < 5; ++load) {
    meter.begin(4 * piece, now);
    for (int look = 0; look < 2; ++look) {
      now += milliseconds(80);
      meter.arrive(piece, piece, now);
      now += microseconds(10);
      meter.arrive(piece, piece, now);
    }
    now += milliseconds(500);
  }
  EXPECT_NEAR(meter.bytes_per_second() / (2.0 * piece / 80e-3), 1, 0.55);
  EXPECT_LT(meter.bytes_per_second(), 2.1 * piece / 80e-3);
}

// Probes that do not overlap, each shorter than a sample: the best of them, until there is one.
TEST(LinkMeter, SmallRepliesOneByOneGiveARate) {
  LinkMeter meter;
  LinkMeter::Time now{};
  meter.note_round_trip(1e-3);
  const uint64_t probe = uint64_t{64} << 10;
  for (int took_ms : {3, 2, 4}) {
    meter.begin(probe, now);
    now += milliseconds(took_ms);
    meter.arrive(probe, probe, now);
    now += milliseconds(100);
  }
  EXPECT_NEAR(meter.bytes_per_second(), static_cast<double>(probe) / 2e-3, 1);
  meter.begin(100 * probe, now);
  now += milliseconds(101);
  meter.arrive(100 * probe, 100 * probe, now);
  EXPECT_NEAR(meter.bytes_per_second(), 100.0 * static_cast<double>(probe) / 100e-3, 1e3)
      << "a load is believed";
}

// The round trip lies in front of the first bytes, not between those that follow one another.
TEST(LinkMeter, ALongRoundTripIsNoRate) {
  LinkMeter meter;
  LinkMeter::Time now{};
  meter.note_round_trip(40e-3);
  const uint64_t piece = uint64_t{1} << 20;
  meter.begin(100 * piece, now);
  now += milliseconds(40);
  for (int i = 0; i < 100; ++i) {
    now += milliseconds(10);
    meter.arrive(piece, piece, now);
  }
  EXPECT_NEAR(meter.bytes_per_second() / (piece / 10e-3), 1, 0.1);
}

}  // namespace
}  // namespace droidspeak
