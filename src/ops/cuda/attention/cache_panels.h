// How the cache is described to the device's copy engine: a copy brings 64 columns of one head of a
// block, a panel. Its rows of 128 bytes lie one after the other; chunk c (16 bytes) of row r is
// where c ^ r % 8 would be, so that eight rows of a column lie in other banks.
#pragma once

#include <cuda.h>

#include "kv/kv_view.h"

namespace droidspeak::cuda {

inline constexpr int kPanelColumns = 64;

// Whether the driver can describe it.
bool has_panels();

// k or v of a layer of 16-bit elements. head_dim is a multiple of kPanelColumns.
CUtensorMap panels_of(const void* cache, DType dtype, int32_t head_dim);

}  // namespace droidspeak::cuda
