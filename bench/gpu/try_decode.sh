#!/bin/bash
# Not for the tree: what to run first of decode attention as a stream, weights in pieces, and experts
# of one row with routing and sum within their products.
#   bench/gpu/try_decode.sh SECONDS    in a folder with CUDA 13; rows go to $OUT/log.txt too
limit=${1:-300}; start=$SECONDS; OUT=${OUT:-out/try_decode}; mkdir -p "$OUT"
left() { echo $((limit - (SECONDS - start))); }
say() { echo "[$((SECONDS - start))s] $*" | tee -a "$OUT/log.txt"; }
cmake --preset cuda -DDROIDSPEAK_TESTS=ON -DDROIDSPEAK_BENCH=ON > "$OUT/configure.log" 2>&1 || { tail -20 "$OUT/configure.log"; exit 1; }
cmake --build build-cuda -j 14 --target ops_cuda_bench ops_cuda_test experts_cuda_bench > "$OUT/build.log" 2>&1 || { grep -n error "$OUT/build.log" | head -20; exit 1; }
say built
B=build-cuda/bin/ops_cuda_bench
T=build-cuda/bin/ops_cuda_test
row() { local name=$1; shift; [ "$(left)" -gt 12 ] || return 0
  local text; text=$(env "$@" 2>&1 | tail -1); say "$name | $text"; }
tests() { local name=$1; [ "$(left)" -gt 12 ] || return 0
  timeout 60 $T --gtest_filter="$2" > "$OUT/$name.txt" 2>&1
  say "$name: rc $?, $(grep -c '\[       OK' "$OUT/$name.txt") passed, $(grep -c 'FAILED  \]' "$OUT/$name.txt") failed"
  grep -m8 -n Failure "$OUT/$name.txt"; }
tests attention 'AttentionStream*:CudaAttentionTest.AStream*:CudaAttentionTest.RowDoes*:CudaAttentionTest.ManySeq*:CudaAttentionTest.Splits*'
A="timeout 20 $B 8b"
row "tile kernel, 64 1024" DS_STREAM_SPLITS=99999999 $A 64 1024 attention
for v in "2 6" "1 6" "1 4" "2 4" "1 5"; do
  set -- $v
  row "stream, $1 blocks, $2 stages in all, 64 1024" DS_STREAM_BLOCKS=$1 DS_STREAM_STAGES=$2 $A 64 1024 attention
done
row "step of 64, tile kernel" DS_STREAM_SPLITS=99999999 timeout 60 $B 8b 64 1024 step
row "step of 64, stream" timeout 60 $B 8b 64 1024 step
# With planes: mixtral 346 to 348 tokens/s, 8b q4_0 507, q4_k 437, q8_0 364.
row "mixtral" timeout 80 $B mixtral 1 512 step q4_0
row "mixtral, routed apart" DS_ROUTE_APART=1 timeout 80 $B mixtral 1 512 step q4_0
row "mixtral, both apart" DS_ROUTE_APART=1 DS_ADD_APART=1 timeout 80 $B mixtral 1 512 step q4_0
row "8b q4_0" timeout 60 $B 8b 1 1024 step q4_0
tests strips 'Strip*:GroupedExperts*:Route*'
row "mixtral, apart, nothing routed" DS_ROUTE_APART=1 DS_ADD_APART=1 DS_SKIP_ROUTE=1 timeout 60 $B mixtral 1 512 step q4_0
row "mixtral, apart, nothing added" DS_ROUTE_APART=1 DS_ADD_APART=1 DS_SKIP_ADD=1 timeout 60 $B mixtral 1 512 step q4_0
for shape in "8 1024" "16 1024" "4 1024" "32 1024" "1 8192" "8 8192" "64 4096"; do
  row "tile kernel, $shape" DS_STREAM_SPLITS=99999999 $A $shape attention
  row "stream, $shape" DS_STREAM_SPLITS=1 $A $shape attention
done
row "8b q4_k" timeout 60 $B 8b 1 1024 step q4_k
row "8b q8_0" timeout 60 $B 8b 1 1024 step q8_0
[ "$(left)" -gt 25 ] && timeout "$(left)" build-cuda/bin/experts_cuda_bench mixtral q4_0 decode | tee "$OUT/experts.txt"
[ "$(left)" -gt 40 ] && timeout "$(left)" $B mixtral 1 512 parts q4_0 | tee "$OUT/parts_mixtral.txt"
tests all_attention 'CudaAttentionTest.*'
