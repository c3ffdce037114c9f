#pragma once
#include <ucontext.h>
#include <cstdint>
#include <cstring>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>
#include <random>
#include <algorithm>
#include <cuda.h>
#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#undef __shared__
#define __shared__ static
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__
#undef __global__
#define __global__
#undef __forceinline__
#define __forceinline__ inline
#define __CUDA_ARCH__ 900
#define __align__(n) __attribute__((aligned(n)))
using std::min; using std::max;

namespace emu {
struct Block;
struct Fiber { ucontext_t context; std::vector<char> stack; Block* block; int thread; bool done=false; };
struct Warp { int arrived=0; int generation=0; uint64_t slots[2][32][8]; };
struct Bar { int arrived=0; int generation=0; };
struct Block { dim3 index; int threads; std::vector<std::unique_ptr<Fiber>> fibers; std::vector<Warp> warps; Bar bars[16]; unsigned char* shared; int live; };
struct Cluster { std::vector<Block*> blocks; Bar bar; };
inline ucontext_t main_context; inline Fiber* current=nullptr; inline Cluster* cluster=nullptr;
inline dim3 grid, block_dim; inline std::mt19937 random{5};
struct Pending { std::function<void()> run; };
inline std::vector<Pending> pending;
inline void yield(){ Fiber* me=current; swapcontext(&me->context,&main_context); }
inline void run_pending(bool all){ while(!pending.empty()){ size_t i=random()%pending.size(); auto p=pending[i]; pending.erase(pending.begin()+i); p.run(); if(!all) return; } }
inline void bar_wait(Bar& bar,int count){ int gen=bar.generation; if(++bar.arrived==count){bar.arrived=0;++bar.generation;} else while(bar.generation==gen) yield(); }
inline std::function<void()> entry;
inline void trampoline(){ entry(); current->done=true; --current->block->live; Fiber* me=current; swapcontext(&me->context,&main_context); }
inline uint64_t (*exchange(uint64_t* mine,int words))[8] { Block* b=current->block; Warp& w=b->warps[current->thread/32]; int gen=w.generation; for(int i=0;i<words;++i) w.slots[gen&1][current->thread%32][i]=mine[i]; if(++w.arrived==32){w.arrived=0;++w.generation;} else while(w.generation==gen) yield(); return w.slots[gen&1]; }
// runs blocks of one cluster
inline void run_cluster(const std::vector<dim3>& indices,int threads,size_t shared_bytes,const std::function<void()>& body){
  entry=body; Cluster c; cluster=&c; std::vector<std::unique_ptr<Block>> blocks; pending.clear();
  for(auto i:indices){ auto b=std::make_unique<Block>(); b->index=i;b->threads=threads;b->warps.resize(threads/32); b->live=threads; b->shared=(unsigned char*)aligned_alloc(1024,(shared_bytes+1023)/1024*1024+4096); memset(b->shared,0xff,shared_bytes+4096);
    for(int t=0;t<threads;++t){ auto f=std::make_unique<Fiber>(); f->stack.resize(96<<10); f->block=b.get(); f->thread=t; getcontext(&f->context); f->context.uc_stack.ss_sp=f->stack.data(); f->context.uc_stack.ss_size=f->stack.size(); f->context.uc_link=nullptr; makecontext(&f->context,trampoline,0); b->fibers.push_back(std::move(f)); }
    c.blocks.push_back(b.get()); blocks.push_back(std::move(b)); }
  long idle=0; while(true){ bool any=false; for(auto&b:blocks){ int nw=threads/32; std::vector<int> order(nw); for(int i=0;i<nw;++i)order[i]=i; std::shuffle(order.begin(),order.end(),random); for(int w:order) for(int l=0;l<32;++l){ auto&f=b->fibers[w*32+l]; if(f->done) continue; any=true; current=f.get(); swapcontext(&main_context,&f->context);} if(random()%3==0) run_pending(false);} if(!any) break; if(++idle>20000000){ printf("hang\n"); exit(1);} if(idle%64==0) run_pending(false); }
  for(auto&b:blocks){ for(size_t i=shared_bytes;i<shared_bytes+4096;++i) if(b->shared[i]!=0xff){printf("wrote behind shared memory\n");exit(1);} free(b->shared);} }
inline uint3 thread_index(){ return {(unsigned)current->thread,0,0}; }
}
#define threadIdx (emu::thread_index())
#define blockIdx (emu::current->block->index)
#define gridDim (emu::grid)
#define blockDim (emu::block_dim)
inline void __syncthreads(){ emu::bar_wait(emu::current->block->bars[0],emu::current->block->threads);} 
inline void __syncwarp(){ uint64_t x=0; emu::exchange(&x,1);} 
template<class T> T shfl_any(T v,int src){ uint64_t x=0; memcpy(&x,&v,sizeof v); auto s=emu::exchange(&x,1); T r; memcpy(&r,&s[src][0],sizeof r); return r; }
template<class T> T __shfl_xor_sync(unsigned,T v,int m){ return shfl_any(v,(emu::current->thread%32)^m);} 
template<class T> T __shfl_sync(unsigned,T v,int s){ return shfl_any(v,s%32);} 
template<class T> T __shfl_up_sync(unsigned,T v,unsigned d){ int l=emu::current->thread%32; return shfl_any(v,l>=(int)d?l-(int)d:l);} 
inline void __threadfence(){}
template<class T> T atomicAdd(T*p,T v){T o=*p;*p+=v;return o;}
template<class T> T __ldcg(const T*p){return *p;}
inline float __int_as_float(int x){float f;memcpy(&f,&x,4);return f;} inline int __float_as_int(float x){int f;memcpy(&f,&x,4);return f;} inline float __uint_as_float(uint32_t x){float f;memcpy(&f,&x,4);return f;} inline uint32_t __float_as_uint(float x){uint32_t f;memcpy(&f,&x,4);return f;}
inline uint32_t __byte_perm(uint32_t a,uint32_t b,uint32_t s){ uint64_t v=((uint64_t)b<<32)|a; uint32_t r=0; for(int i=0;i<4;++i) r|=(uint32_t)((v>>(8*((s>>(4*i))&7)))&0xff)<<(8*i); return r; }
using std::isnan; using std::isfinite;
inline float __fdividef(float a,float b){return a/b;}
inline float __expf(float a){return expf(a);} 
inline __nv_bfloat162 __hfma2(__nv_bfloat162 a,__nv_bfloat162 b,__nv_bfloat162 c){ return __floats2bfloat162_rn(fmaf(__bfloat162float(a.x),__bfloat162float(b.x),__bfloat162float(c.x)),fmaf(__bfloat162float(a.y),__bfloat162float(b.y),__bfloat162float(c.y))); }
