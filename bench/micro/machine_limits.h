// What the machine can do at best, measured in the same run as the kernels.
#pragma once

namespace droidspeak::bench {

double fma_gflops(int num_threads);      // f32 fused multiply-adds in registers
double read_gigabytes(int num_threads);  // streaming reads of memory, per second

}  // namespace droidspeak::bench
