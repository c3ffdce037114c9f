// K/V of one layer of one block in 8 bits: one f32 scale per channel (of a head, over the block's
// tokens), value = scale * int8. Channels of K differ by orders of magnitude, tokens hardly do, so
// scales per channel lose far less than scales per token.
//
//   stored: K scales [num_kv_heads, head_dim] f32, V scales likewise,
//           K [num_kv_heads, kBlockTokens, head_dim] int8, V likewise
#pragma once

#include <cstddef>
#include <span>

#include "kv/kv_cache.h"

namespace droidspeak {

// Whether `bytes` is K/V of one layer in this layout, of a dtype that 8 bits make smaller.
bool int8_can_hold(const KvLayout& layout, size_t bytes);
// Size of an encoded layer.
size_t int8_bytes(const KvLayout& layout);

// False when a value is not finite: then it must be stored as it is. `values` are
// layout.layer_bytes(), `stored` int8_bytes(layout).
[[nodiscard]] bool encode_int8(const KvLayout& layout,
                               std::span<const std::byte> values,
                               std::span<std::byte> stored);
void decode_int8(const KvLayout& layout,
                 std::span<const std::byte> stored,
                 std::span<std::byte> values);

}  // namespace droidspeak
