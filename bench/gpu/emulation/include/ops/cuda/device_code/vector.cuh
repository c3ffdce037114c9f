#pragma once
#include "emu.h"
#include "base/check.h"
#include "tensor/tensor.h"
namespace droidspeak::cuda {
template <class T> inline constexpr int kPackElements = 16 / static_cast<int>(sizeof(T));
template <class T, int kSize> struct alignas(sizeof(T) * kSize) Pack { T values[kSize]; };
template <int kSize, class T> Pack<T, kSize> load_pack(const T* from) { return *reinterpret_cast<const Pack<T, kSize>*>(from); }
template <int kSize, class T> void store_pack(T* to, const Pack<T, kSize>& pack) { *reinterpret_cast<Pack<T, kSize>*>(to) = pack; }
inline uint32_t shared_address(const void* data) { return (uint32_t)((const unsigned char*)data - emu::current->block->shared); }
inline float to_float(float v){return v;} inline float to_float(__half v){return __half2float(v);} inline float to_float(__nv_bfloat16 v){return __bfloat162float(v);} inline float to_float(int8_t v){return v;}
template <class T> T from_float(float value){ if constexpr (sizeof(T)==4) return value; else if constexpr (std::is_same_v<T,__half>) return __float2half_rn(value); else return __float2bfloat16_rn(value);} 
inline float warp_sum(float v){ for(int s=16;s>0;s/=2) v+=__shfl_xor_sync(~0u,v,s); return v;} 
inline float warp_max(float v){ for(int s=16;s>0;s/=2) v=fmaxf(v,__shfl_xor_sync(~0u,v,s)); return v;} 
inline float block_sum(float value){ static float parts[32]; int lane=threadIdx.x%32; int n=emu::current->block->threads/32; __syncthreads(); value=warp_sum(value); if(lane==0) parts[threadIdx.x/32]=value; __syncthreads(); return warp_sum(lane<n?parts[lane]:0.0f);} 
inline int divide_up(int64_t a,int64_t b){return (int)((a+b-1)/b);} 
}
