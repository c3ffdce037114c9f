#pragma once
#include <type_traits>
#include "ops/cuda/device_code/vector.cuh"
namespace droidspeak::cuda {
inline void ldm(uint32_t (&out)[4], const void* row, bool trans){ uint64_t x=(uint64_t)row; auto s=emu::exchange(&x,1); int lane=threadIdx.x%32; if(((uintptr_t)row)%16) {printf("unaligned ldmatrix\n");exit(1);} for(int m=0;m<4;++m){ uint16_t v[2]; for(int e=0;e<2;++e){ int r=lane/4,c=2*(lane%4)+e; if(trans) std::swap(r,c); const uint16_t* p=(const uint16_t*)s[8*m+r][0]; v[e]=p[c]; } memcpy(&out[m],v,4);} }
inline void load_matrices(uint32_t (&out)[4], const void* row){ldm(out,row,false);} 
inline void load_matrices_transposed(uint32_t (&out)[4], const void* row){ldm(out,row,true);} 
template<class T> float el(uint64_t word,int i){ uint16_t b=(uint16_t)(word>>(16*i)); T v; memcpy(&v,&b,2); return to_float(v);} 
template <class T> void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1){ uint64_t x[6]={a[0],a[1],a[2],a[3],b0,b1}; auto s=emu::exchange(x,6); int lane=threadIdx.x%32,g=lane/4,t=lane%4; for(int i=0;i<4;++i){ int row=g+8*(i/2), col=2*t+i%2; float sum=c[i]; for(int k=0;k<16;++k){ int kk=k%8; int al=(row%8)*4+kk/2; int ar=(row/8)+2*(k/8); int bl=col*4+kk/2; sum+=el<T>(s[al][ar],kk%2)*el<T>(s[bl][4+k/8],kk%2);} c[i]=sum; } }
inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1){ for(float&v:c)v=0; multiply_add<__nv_bfloat16>(c,a,b0,b1);} 
inline void multiply_bytes(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1){ uint64_t x[6]={a[0],a[1],a[2],a[3],b0,b1}; auto s=emu::exchange(x,6); int lane=threadIdx.x%32,g=lane/4,t=lane%4; for(int i=0;i<4;++i){ int row=g+8*(i/2), col=2*t+i%2; int sum=0; for(int k=0;k<32;++k){ int kk=k%16; int al=(row%8)*4+kk/4; int ar=row/8+2*(k/16); int bl=col*4+kk/4; sum+=(int)(int8_t)(s[al][ar]>>(8*(kk%4)))*(int)(int8_t)(s[bl][4+k/16]>>(8*(kk%4))); } c[i]=sum; } }
template <class T> uint32_t pack_pair(float low,float high){ T v[2]={from_float<T>(low),from_float<T>(high)}; uint32_t r; memcpy(&r,v,4); return r; }
}
