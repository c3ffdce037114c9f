#include "store/tiers/link_encoding.h"

#include "store/tiers/int8_codec.h"

namespace droidspeak {
namespace {

// Of one core: an estimate for 8 bits, measured for the codec (docs/decisions/009-kv-codec.md).
constexpr double kInt8ValuesPerSecond = 2e9;
constexpr double kCodedValuesPerSecond = 6e8;
constexpr double kCodedBytes = 0.4;  // a value

double num_values(const KvLayout& layout) {
  return 2.0 * layout.num_kv_heads * layout.head_dim * kBlockTokens;
}

double seconds_of_layer(EntryEncoding encoding, const KvLayout& layout, double rate) {
  switch (encoding) {
    case EntryEncoding::kRaw:
      break;
    case EntryEncoding::kInt8:
      return static_cast<double>(int8_bytes(layout)) / rate +
             num_values(layout) / kInt8ValuesPerSecond;
    case EntryEncoding::kCoded:
      return num_values(layout) * (kCodedBytes / rate + 1 / kCodedValuesPerSecond);
  }
  return static_cast<double>(layout.layer_bytes()) / rate;
}

bool can_encode(const KvLayout& layout) {
  return layout.num_layers > 0 && layout.dtype != DType::kI8;
}

}  // namespace

double decoded_rate(EntryEncoding encoding, const KvLayout& layout, double link_bytes_per_second) {
  if (!can_encode(layout)) return link_bytes_per_second;
  return static_cast<double>(layout.layer_bytes()) /
         seconds_of_layer(encoding, layout, link_bytes_per_second);
}

EntryEncoding fastest_encoding(const KvLayout& layout, double link_bytes_per_second) {
  EntryEncoding fastest = EntryEncoding::kRaw;
  if (!can_encode(layout)) return fastest;
  for (EntryEncoding encoding : {EntryEncoding::kInt8, EntryEncoding::kCoded}) {
    if (decoded_rate(encoding, layout, link_bytes_per_second) >
        decoded_rate(fastest, layout, link_bytes_per_second))
      fastest = encoding;
  }
  return fastest;
}

EntryEncoding encoding_over(RemoteFormat format,
                            const KvLayout& layout,
                            double link_bytes_per_second) {
  switch (format) {
    case RemoteFormat::kRaw:
      return EntryEncoding::kRaw;
    case RemoteFormat::kInt8:
      return EntryEncoding::kInt8;
    case RemoteFormat::kCoded:
      return EntryEncoding::kCoded;
    case RemoteFormat::kAuto:
      break;
  }
  return fastest_encoding(layout, link_bytes_per_second);
}

}  // namespace droidspeak
