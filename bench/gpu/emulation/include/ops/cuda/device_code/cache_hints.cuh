#pragma once
#include "emu.h"
namespace droidspeak::cuda { inline uint64_t evict_first_policy(){return 0;} inline void prefetch_bulk(const void*p,uint32_t n){ volatile char c=((const char*)p)[0]; c=((const char*)p)[n-1]; (void)c; } }
