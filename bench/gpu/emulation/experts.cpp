#include "emu.h"
#include "expert_part.cuh"
#include "ops/cuda/quantized/strip_packer.h"
#include "ops/cpu/reference.h"
#include "tensor/half.h"
using namespace droidspeak; using namespace droidspeak::cuda;
using cpu::Floats;
struct Mat { StripShape shape; unsigned char* strips; Floats values; };
Mat make(std::mt19937& r, DType d, int rows,int cols){ Mat m; m.shape={.dtype=d,.rows=rows,.columns=cols}; auto bytes=cpu::random_matrix(r,d,rows,cols); m.values=cpu::dequantized(d,bytes,(int64_t)rows*cols); size_t n=m.shape.bytes(); m.strips=(unsigned char*)aligned_alloc(256,(n+255)/256*256); memset(m.strips,0,n); for(int i=0;i<rows;++i) pack_strip_row(m.shape,bytes.data()+bytes_of(d,(int64_t)i*cols),i%8,(std::byte*)m.strips+(i/8)*m.shape.strip_bytes()); return m; }
float bf(float x){return to_float(__float2bfloat16_rn(x));}
template<DType D> int test(int dim,int ffn,int experts,int per_row,bool norm,bool routes,bool sums,int split1,int split2,int grid1,int grid2,size_t room,unsigned seed){
 std::mt19937 r(seed); std::normal_distribution<float> nd; std::vector<Mat> gu,dn; for(int e=0;e<experts;++e){gu.push_back(make(r,D,2*ffn,dim));dn.push_back(make(r,D,dim,ffn));}
 auto al=[&](size_t n){return (char*)aligned_alloc(256,(n+255)/256*256);} ; auto* router=(__nv_bfloat16*)al(experts*dim*2); for(int i=0;i<experts*dim;++i)router[i]=__float2bfloat16(nd(r)*.1f);
 auto*x=(__nv_bfloat16*)al(dim*2); auto*normed=(__nv_bfloat16*)al(dim*2); auto*nw=(float*)al(dim*4); auto*hidden=(__nv_bfloat16*)al(dim*2); for(int i=0;i<dim;++i){x[i]=__float2bfloat16(nd(r));nw[i]=1+.1f*nd(r);hidden[i]=__float2bfloat16(nd(r));normed[i]=__float2bfloat16(NAN);} auto*act=(__nv_bfloat16*)al(per_row*ffn*2); auto*ans=(__nv_bfloat16*)al(per_row*dim*2);
 int32_t count=0; std::vector<ExpertItem> items(per_row); std::vector<int32_t> rows(per_row,-7),places(per_row,-7); std::vector<float> weights(per_row,NAN);
 ExpertItems it; it.count=&count; it.items=items.data(); it.rows=rows.data(); it.places=places.data();
 // reference
 std::vector<float> h(dim); double sq=0; for(int i=0;i<dim;++i) sq+=(double)to_float(x[i])*to_float(x[i]); for(int i=0;i<dim;++i) h[i]=norm?bf((float)(to_float(x[i])/sqrt(sq/dim+1e-5)*nw[i])):to_float(x[i]);
 std::vector<double> lg(experts); for(int e=0;e<experts;++e){double s=0;for(int i=0;i<dim;++i)s+=(double)to_float(router[e*dim+i])*h[i];lg[e]=s;} std::vector<int> ch; std::vector<double> w; double tot=0; for(int j=0;j<per_row;++j){int b=-1;for(int e=0;e<experts;++e) if(std::find(ch.begin(),ch.end(),e)==ch.end()&&(b<0||lg[e]>lg[b])) b=e; ch.push_back(b);} for(int e:ch){w.push_back(exp(lg[e]-lg[ch[0]]));tot+=w.back();} for(double&v:w)v/=tot;
 std::vector<double> want(dim); for(int i=0;i<dim;++i)want[i]=to_float(hidden[i]); for(int j=0;j<per_row;++j){ int e=ch[j]; std::vector<float> a(ffn); for(int f=0;f<ffn;++f){double g=0,u=0; for(int i=0;i<dim;++i){g+=(double)gu[e].values[(size_t)f*dim+i]*h[i];u+=(double)gu[e].values[(size_t)(ffn+f)*dim+i]*h[i];} a[f]=bf((float)(g/(1+exp(-g))*u));} for(int o=0;o<dim;++o){double s=0;for(int f=0;f<ffn;++f)s+=(double)dn[e].values[(size_t)o*ffn+f]*a[f]; want[o]+=w[j]*s;} }
 // gate/up
 auto*g=new ExpertStripTask{}; StripTask&t=g->each; auto common=[&](std::vector<Mat>&m,int outputs,int columns,int split){ t.weights={m[0].strips,(int64_t)m[0].shape.strip_bytes(),(int)m[0].shape.num_chunks()}; t.outputs=outputs;t.rows=1;t.columns=columns;t.out_dtype=DType::kBF16;t.accumulate=Accumulate::kOverwrite;t.warps=kDigitWarps;t.stage_bytes=(int)stage_bytes(D);t.split=split; t.num_steps=divide_up(t.weights.num_chunks,kStepChunks); for(int e=0;e<experts;++e) g->strips[e]=m[e].strips; g->items=it; g->room=room; };
 common(gu,2*ffn,dim,split1); t.gated=act;t.gated_stride=ffn;t.activation=Activation::kSilu;t.gate_strips=ffn/8;t.num_tiles=t.gate_strips; t.in=x;t.in_stride=dim; g->in_order=ExpertProduct::In::kRows;
 if(routes){ RouteTask&q=g->route; g->routes=true; q.router=router;q.in=x;q.in_stride=dim;q.columns=dim; int parts=32; while(parts*experts>32)parts/=2; q.parts=parts; q.part_columns=divide_up(dim,parts*8)*8; if(norm){q.norm_weight=nw;q.norm_epsilon=1e-5f;q.normed=nullptr; t.norm_weight=nw;t.norm_epsilon=1e-5f;t.normed=normed;t.normed_stride=dim;} q.choice={.logits=nullptr,.stride=experts,.num_experts=experts,.per_row=per_row,.is_of_all=false,.weights=weights.data(),.weight_stride=per_row}; q.sort={.num_rows=1,.per_row=per_row,.num_experts=experts,.rows_of_item=8,.out=it}; }
 else { count=per_row; auto s=ch; std::sort(s.begin(),s.end()); for(int i=0;i<per_row;++i){items[i]={s[i],i,1};rows[i]=0;} for(int j=0;j<per_row;++j){places[j]=std::find(s.begin(),s.end(),ch[j])-s.begin();weights[j]=w[j];} for(int i=0;i<dim;++i) normed[i]=__float2bfloat16(h[i]); t.in=normed; }
 emu::block_dim=dim3(512); emu::grid=dim3(grid1,per_row); for(int y=0;y<per_row;++y)for(int b=0;b<grid1;++b) emu::run_cluster({dim3(b,y)},512,g->room,[&]{ multiply_expert_digits_kernel<D>(*g); });
 delete g; g=new ExpertStripTask{}; StripTask&t2=g->each; { StripTask&t=t2; t.weights={dn[0].strips,(int64_t)dn[0].shape.strip_bytes(),(int)dn[0].shape.num_chunks()}; t.outputs=dim;t.rows=1;t.columns=ffn;t.out_dtype=DType::kBF16;t.accumulate=Accumulate::kOverwrite;t.warps=kDigitWarps;t.stage_bytes=(int)stage_bytes(D);t.split=split2;t.num_steps=divide_up(t.weights.num_chunks,kStepChunks);t.num_tiles=divide_up(dim,16);t.in=act;t.in_stride=ffn;t.out=ans;t.out_stride=dim; for(int e=0;e<experts;++e) g->strips[e]=dn[e].strips; g->items=it;g->room=room;g->follows=true;g->in_order=ExpertProduct::In::kPlaces; if(sums){g->sum=hidden;g->sum_weights=weights.data();} }
 emu::grid=dim3(grid2,per_row); size_t shared=room+(sums?dim*2:0); for(int b=0;b<grid2;++b){ std::vector<dim3> c; for(int y=0;y<per_row;++y)c.push_back(dim3(b,y)); emu::run_cluster(c,512,shared,[&]{ multiply_expert_digits_kernel<D>(*g); }); }
 delete g; if(!sums) for(int o=0;o<dim;++o){ float s=to_float(hidden[o]); for(int j=0;j<per_row;++j) s+=weights[j]*to_float(ans[places[j]*dim+o]); hidden[o]=__float2bfloat16_rn(s);} 
 double err=0,size=0; for(int o=0;o<dim;++o){double d=want[o]-to_float(hidden[o]);err+=d*d;size+=want[o]*want[o];} double e=sqrt(err/size); bool ok=e<2e-2&&count==per_row; printf("%s dim %d ffn %d experts %d/%d norm %d routes %d sums %d: error %.2e %s\n",std::string(name_of(D)).c_str(),dim,ffn,per_row,experts,norm,routes,sums,e,ok?"":"FAILED"); fflush(stdout); return !ok; }
int main(){ int f=0;
 f+=test<DType::kQ4_0>(640,384,8,2,true,true,true,1,4,3,2,160<<10,11);
 f+=test<DType::kQ4_0>(640,384,4,2,true,false,false,1,1,3,2,160<<10,2);
 f+=test<DType::kQ8_0>(512,640,8,3,false,true,true,2,1,1,4,220<<10,3);
 f+=test<DType::kQ4_K>(512,768,4,2,true,true,true,2,2,5,1,200<<10,4);
 f+=test<DType::kQ6_K>(768,256,2,2,true,true,true,1,1,2,3,200<<10,5);
 f+=test<DType::kQ5_1>(384,640,16,1,true,true,true,1,1,2,2,200<<10,6);
 printf("failed %d\n",f); return f; }
