// How much work a profile may do, and how its contexts are dealt.
#pragma once

#include <cstdint>

namespace droidspeak {

inline constexpr int32_t kFolds = 4;
// Context work allowed, in full prefills per layer.
inline constexpr double kWorkShare = 0.6;
// Of it, in full prefills, at most for the frontier: the sender reads once more, the rest
// recomputes.
inline constexpr double kFrontierWork = 1.8;
// Translated plans are tried up to this share of recomputed layers: beyond it little is gained in
// time.
inline constexpr double kTranslatedShare = 0.34;
inline constexpr double kSaveSeconds = 120;
// Sums of wide models are gigabytes: writing them takes at most this share of the time, at the rate
// that a disk takes them.
inline constexpr double kSaveShare = 1.0 / 30;
inline constexpr double kDiskBytesPerSecond = 1e9;
inline constexpr int32_t kRecordVersion = 10;
// E maps of every layer cost memory by the square of the width.
inline constexpr int32_t kWideModel = 1024;

}  // namespace droidspeak
