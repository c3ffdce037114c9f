#include "emu.h"
#include "expand_part.cuh"
#include "tensor/half.h"
#include "ops/cuda/quantized/strip_packer.h"
#include "ops/cpu/reference.h"
using namespace droidspeak; using namespace droidspeak::cuda;
template<DType D> int test(int rows,int cols){ std::mt19937 r(3); StripShape s{.dtype=D,.rows=rows,.columns=cols}; auto bytes=cpu::random_matrix(r,D,rows,cols); auto want=cpu::dequantized(D,bytes,(int64_t)rows*cols); std::vector<unsigned char> strips(s.bytes()); for(int i=0;i<rows;++i) pack_strip_row(s,bytes.data()+bytes_of(D,(int64_t)i*cols),i%8,(std::byte*)strips.data()+(i/8)*s.strip_bytes()); StripStack st{.shape=s,.first_row=0,.strips=(std::byte*)strips.data()}; auto p=StripPointers::of(st); int bad=0,seen=0; for(int row=0;row<rows;++row) for(int c=0;c<p.num_chunks;++c) for(int t=0;t<4;++t) expand_lane<D>(p,row/8,c,row%8*4+t,cols,[&](int col,const float(&v)[4]){ for(int j=0;j<4;++j){ ++seen; if(bf16_from_float(v[j])!=bf16_from_float(want[(size_t)row*cols+col+j])) ++bad; }}); printf("%s %dx%d: %d of %d differ (%d)\n",std::string(name_of(D)).c_str(),rows,cols,bad,seen,rows*cols); return bad||seen!=rows*cols; }
int main(){ int f=0; f+=test<DType::kQ4_0>(19,608)+test<DType::kQ4_1>(19,576)+test<DType::kQ5_0>(9,96)+test<DType::kQ5_1>(8,672)+test<DType::kQ8_0>(17,608)+test<DType::kQ4_K>(9,512)+test<DType::kQ5_K>(9,768)+test<DType::kQ6_K>(9,256); printf("failed %d\n",f); }
