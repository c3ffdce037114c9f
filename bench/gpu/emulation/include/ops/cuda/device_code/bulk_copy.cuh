#pragma once
#include "ops/cuda/device_code/vector.cuh"
namespace droidspeak::cuda {
class CopyBarrier { public:
 void init(uint32_t arrivals=1){count=(uint8_t)arrivals;pending=(int16_t)arrivals;phase=0;tx=0;}
 void arrive(){ if(pending<=0){printf("too many arrivals\n");exit(1);} --pending; settle();}
 void arrive_after_copies(){ arrive(); }
 void expect(uint32_t bytes){ tx+=(int)bytes; arrive(); }
 void wait(uint32_t parity){ while((phase&1u)==parity) emu::yield(); }
 void copy(void* shared,const void* global,uint32_t bytes,uint64_t){ if(((uintptr_t)shared|(uintptr_t)global|bytes)%16){printf("unaligned bulk copy\n");exit(1);} memset(shared,0xff,bytes); std::vector<char> now; emu::pending.push_back({[=,this]{ memcpy(shared,global,bytes); tx-=(int)bytes; settle(); }}); }
 void copy_panel(const CUtensorMap& map,void* shared,int32_t column,int32_t row){ if(shared_address(shared)%1024){printf("panel is not aligned\n");exit(1);} const unsigned char* base; int64_t dim; memcpy(&base,&map,8); memcpy(&dim,(const char*)&map+8,8); memset(shared,0xff,8192); auto*to=(unsigned char*)shared; emu::pending.push_back({[=,this]{ for(int r=0;r<64;++r) for(int c=0;c<8;++c) memcpy(to+r*128+((c^(r%8))*16), base+((int64_t)(row+r)*dim+column+c*8)*2,16); tx-=8192; settle(); }}); }
 private: void settle(){ if(pending==0&&tx==0){ pending=count; ++phase; } }
 int16_t pending; uint8_t count; uint8_t phase; int32_t tx; };
static_assert(sizeof(CopyBarrier)==8);
inline void fence_before_copies(){}
}
