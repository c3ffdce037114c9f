#include "emu.h"
#include "ops/cuda/attention/attention_tile_kernel.cuh"
#include "ops/cuda/attention/attention_stream_kernel.cuh"
#include <map>
using namespace droidspeak; using namespace droidspeak::cuda;
template<int D> void combine_all(const TileArguments& a,int slices){ emu::grid=dim3((a.num_kv_heads*a.group+3)/4,a.largest_rows,slices); emu::block_dim=dim3(128);
 for(unsigned z=0;z<emu::grid.z;++z)for(unsigned y=0;y<emu::grid.y;++y)for(unsigned x=0;x<emu::grid.x;++x) emu::run_cluster({dim3(x,y,z)},128,64,[&]{ int slice=blockIdx.z,row=blockIdx.y,head=blockIdx.x*4+threadIdx.x/32; int rows=a.slice_rows[slice],length=a.slice_length[slice]; if(head>=a.num_kv_heads*a.group||!is_meant(a,slice)||row>=rows||length<=a.split_step) return; combine_row<D>(a,slice,row,head,length); }); }
template<class T,int D> int test(int heads,int kv,int window,float cap,bool sinks,unsigned seed,int blocks,int stages){
 std::mt19937 r(seed); int group=heads/kv; int most_rows=std::min(3,16/group);
 std::vector<std::pair<int,int>> seqs={{0,1},{63,1},{64,1},{127,1},{128,1},{129,1},{255,1},{300,most_rows},{513,1},{700,most_rows},{90,most_rows}}; 
 seqs.push_back({5,0}); // of no rows
 int n=seqs.size(); std::vector<int32_t> srow,srows,slen,rpos,tab; int total_rows=0,maxb=0,nb=0; std::vector<std::vector<int>> blk;
 for(auto[p,c]:seqs){ srow.push_back(total_rows); srows.push_back(c); int len=c?p+c:0; slen.push_back(len); for(int i=0;i<c;++i) rpos.push_back(p+i); total_rows+=c; int b=(len+63)/64; maxb=std::max(maxb,b); blk.emplace_back(); for(int i=0;i<b;++i) blk.back().push_back(nb++); }
 std::vector<int> perm(nb); for(int i=0;i<nb;++i)perm[i]=i; std::shuffle(perm.begin(),perm.end(),r); for(auto&b:blk) for(int&x:b)x=perm[x];
 for(int i=1;i<n;++i){ int sh=std::min(blk[i-1].size(),blk[i].size()); if(sh>0) --sh; for(int j=0;j<sh;++j) blk[i][j]=blk[i-1][j]; }
 tab.assign(n*maxb,0); for(int i=0;i<n;++i) for(size_t j=0;j<blk[i].size();++j) tab[i*maxb+j]=blk[i][j];
 std::normal_distribution<float> nd; size_t kvn=(size_t)nb*kv*64*D; T* k=(T*)aligned_alloc(1024,kvn*2); T* v=(T*)aligned_alloc(1024,kvn*2); for(size_t i=0;i<kvn;++i){k[i]=from_float<T>(nd(r));v[i]=from_float<T>(nd(r));}
 // spoil behind
 for(int i=0;i<n;++i) if(slen[i]){ int used=(slen[i]-1)%64+1; for(int h=0;h<kv;++h) for(int t=used;t<64;++t) for(int e=0;e<D;++e){ size_t at=(((size_t)blk[i].back()*kv+h)*64+t)*D+e; k[at]=from_float<T>(NAN); v[at]=from_float<T>(NAN);} }
 int cols=(heads+2*kv)*D; std::vector<__nv_bfloat16> qv(total_rows*cols+64), o1(total_rows*heads*D),o2; __nv_bfloat16* q=(__nv_bfloat16*)aligned_alloc(64,(total_rows*cols*2+63)/64*64); for(int i=0;i<total_rows*cols;++i) q[i]=__float2bfloat16(nd(r)); for(auto&x:o1) x=__float2bfloat16(0.5f); o2=o1;
 std::vector<float> sk(heads); for(float&x:sk) x=nd(r)*2; 
 TileArguments a; a.q=q;a.out=o1.data();a.q_stride=cols;a.out_stride=heads*D;a.k=k;a.v=v;a.blocks=tab.data();a.slice_row=srow.data();a.slice_rows=srows.data();a.slice_length=slen.data();a.row_position=rpos.data();a.max_blocks=maxb;a.num_kv_heads=kv;a.group=group;a.smallest_rows=1;a.largest_rows=most_rows;a.window=window;a.split_step=128;a.most_splits=(seed%2)?32:3;a.scale=1.4426950408889634f/sqrtf(D);a.soft_cap=cap>0?cap*sqrtf(D):0;a.sinks=sinks?sk.data():nullptr;
 int ml=*std::max_element(slen.begin(),slen.end()); a.max_splits=std::min(a.most_splits,(ml+127)/128);
 std::vector<float> sums((size_t)n*most_rows*heads*a.max_splits*D); std::vector<float2> totals((size_t)n*most_rows*heads*a.max_splits); auto clear=[&]{ for(float&x:sums)x=NAN; for(auto&x:totals)x={NAN,NAN}; }; a.sums=sums.data();a.totals=totals.data();
 // tiles
 clear(); using K=TileKernel<T,D,1,3>; emu::grid=dim3(a.max_splits,kv,n); emu::block_dim=dim3(128);
 for(int z=0;z<n;++z)for(int y=0;y<kv;++y)for(int x=0;x<a.max_splits;++x) emu::run_cluster({dim3(x,y,z)},128,sizeof(typename K::Shared),[&]{ attend_tiles<T,D,1,3>(a); });
 combine_all<D>(a,n);
 // stream, twice with the same counters
 std::vector<int32_t> counters(n*kv,0); StreamTask t{}; const void*kp=k;const void*vp=v; int64_t dim=D; memcpy(&t.k,&kp,8);memcpy((char*)&t.k+8,&dim,8);memcpy(&t.v,&vp,8);memcpy((char*)&t.v+8,&dim,8); t.tiles=a; t.tiles.out=o2.data(); t.num_slices=n;t.stages=stages;t.finished=counters.data();
 size_t bytes=StreamMemory<T,D>::bytes(t); std::vector<int> order(blocks); for(int i=0;i<blocks;++i)order[i]=i;
 for(int pass=0;pass<2;++pass){ clear(); if(pass) for(auto&x:o2)x=__float2bfloat16(0.25f); std::shuffle(order.begin(),order.end(),r); emu::grid=dim3(blocks); emu::block_dim=dim3(kStreamThreads); for(int b:order) emu::run_cluster({dim3(b)},kStreamThreads,bytes,[&]{ attend_stream<T,D>(t); }); for(int c:counters) if(c){printf("counter left\n");return 1;} }
 if(!emu::pending.empty()){printf("copies left\n");return 1;}
 int bad=0; double worst=0; for(size_t i=0;i<o1.size();++i) if(memcmp(&o1[i],&o2[i],2)) {++bad;}
 // reference
 for(int s=0;s<n;++s) for(int row=0;row<srows[s];++row) for(int h=0;h<heads;++h){ int pos=seqs[s].first+row; int first=window>0?std::max(0,pos+1-window):0; std::vector<double> w; double mx=-1e300; const __nv_bfloat16* qr=q+(size_t)(srow[s]+row)*cols+h*D; auto at=[&](int p){return (((size_t)blk[s][p/64]*kv+h/group)*64+p%64)*D;}; for(int p=first;p<=pos;++p){ double d=0; for(int e=0;e<D;++e){ float qf=to_float(qr[e]); if constexpr(std::is_same_v<T,__half>) qf=to_float(__float2half_rn(qf)); d+=(double)qf*to_float(k[at(p)+e]);} d/=sqrt((double)D); if(cap>0) d=cap*tanh(d/cap); w.push_back(d); mx=std::max(mx,d);} double tot=0; for(double&x:w){x=exp(x-mx);tot+=x;} if(sinks) tot+=exp(sk[h]-mx); double err=0,size=0; for(int e=0;e<D;++e){ double x=0; for(int p=first;p<=pos;++p) x+=w[p-first]*to_float(v[at(p)+e]); x/=tot; double y=to_float(o2[(size_t)(srow[s]+row)*heads*D+h*D+e]); err+=(x-y)*(x-y); size+=x*x; if(!(y==y)){printf("nan\n");return 1;} } worst=std::max(worst,sqrt(err/(size+1e-9))); }
 printf("%s D %d heads %d/%d window %d cap %g sinks %d blocks %d stages %d: bits differ %d, worst %.2e\n",std::is_same_v<T,__half>?"f16":"bf16",D,heads,kv,window,cap,sinks,blocks,stages,bad,worst); fflush(stdout); free(k);free(v);free(q); return bad>0||worst>1e-2; }
int main(){ int f=0;
 f+=test<__nv_bfloat16,128>(8,2,0,0,false,1,7,3);
 f+=test<__nv_bfloat16,64>(6,2,0,0,false,2,40,2);
 f+=test<__half,128>(4,1,200,0,false,3,3,6);
 f+=test<__half,64>(16,1,0,4,true,4,13,3);
 f+=test<__nv_bfloat16,128>(16,1,100,0,true,5,1,2);
 f+=test<__nv_bfloat16,64>(2,2,0,0,false,6,264,3);
 printf("failed %d\n",f); return f; }
