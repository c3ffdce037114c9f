#pragma once
#include "ops/cuda/device_code/vector.cuh"
namespace droidspeak::cuda {
inline void sync_cluster(){ int n=0; for(auto*b:emu::cluster->blocks) n+=b->threads; emu::bar_wait(emu::cluster->bar,n);} 
inline __nv_bfloat16 read_of_block(const __nv_bfloat16* shared,int rank){ return *(const __nv_bfloat16*)(emu::cluster->blocks[(size_t)rank]->shared+shared_address(shared)); }
}
