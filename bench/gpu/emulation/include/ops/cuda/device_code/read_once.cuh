#pragma once
#include "ops/cuda/device_code/cache_hints.cuh"
namespace droidspeak::cuda { template<class T> void read_once(T& out,const void* from,bool is_there,uint64_t){ if(is_there) memcpy(&out,from,sizeof out); else memset(&out,0,sizeof out);} }
