// In which form K/V is fastest over a link: what is smaller travels in less time, and takes some to
// decode.
#pragma once

#include "kv/kv_cache.h"
#include "store/cache_key.h"
#include "store/tiers/block_file.h"

namespace droidspeak {

// Bytes of K/V as it is used, by the second, of a link that carries so many bytes.
double decoded_rate(EntryEncoding encoding, const KvLayout& layout, double link_bytes_per_second);

// Without a layout: raw.
EntryEncoding fastest_encoding(const KvLayout& layout, double link_bytes_per_second);

// What a format means on such a link.
EntryEncoding encoding_over(RemoteFormat format,
                            const KvLayout& layout,
                            double link_bytes_per_second);

}  // namespace droidspeak
