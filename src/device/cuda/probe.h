// Whether this build's kernels run on the device at all.
#pragma once

namespace droidspeak::cuda {

bool has_kernels_for_device();

}  // namespace droidspeak::cuda
