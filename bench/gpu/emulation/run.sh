#!/bin/bash
# Not for the tree: runs the source of kernels on the CPU, each thread a fiber. include/ stands in for src/ops/cuda/device_code;
# copies of the engine come late and in random order. Needs the static libraries of a release build (BUILD, default build) and the
# CUDA headers.
#   bench/gpu/emulation/run.sh attention|experts|expand
set -e
cd "$(dirname "$0")/../../.."
here=bench/gpu/emulation; build=${BUILD:-build}/src; work=$(mktemp -d); gen=$work/gen
mkdir -p "$gen"/ops/cuda/{attention,quantized}
python3 - "$gen" <<'PYTHON'
import re, sys
gen = sys.argv[1]
def plain(text):
    text = re.sub(r"extern __shared__ __align__\(\d+\) unsigned char (\w+)\[\];", r"unsigned char* \1 = emu::current->block->shared;", text)
    text = re.sub(r'asm volatile\("bar.sync 1, %0;".*?\);', "emu::bar_wait(emu::current->block->bars[1], kTileThreads);", text, flags=re.S)
    def lop(match):
        names = re.findall(r'"=?r"\((\w+)\)', match.group(0))
        return f"{names[0]} = ({names[1]} & {names[2]}) {'|' if '0xEA' in match.group(0) else '^'} {names[3]};"
    return re.sub(r'asm\("lop3.*?\);', lop, text, flags=re.S)
def read(path):
    return open("src/ops/cuda/" + path).read()
for name in ["warp_rows", "tile_work", "tile_kernel", "stream_work", "stream_kernel"]:
    open(f"{gen}/ops/cuda/attention/attention_{name}.cuh", "w").write(plain(read(f"attention/attention_{name}.cuh")))
for name in ["digit_kernel", "strip_code"]:
    open(f"{gen}/ops/cuda/quantized/{name}.cuh", "w").write(plain(read(f"quantized/{name}.cuh")))
experts = read("experts/expert_strips.cu")
experts = experts[:experts.index("template <DType kDtype, int kTiles>\n__global__")] + "}}\n"
for name in ["strip_kernel.cuh", "strip_launch.h"]:
    experts = experts.replace(f'#include "ops/cuda/quantized/{name}"\n', "")
open(f"{gen}/expert_part.cuh", "w").write(plain(experts))
expand = read("quantized/expand.cu")
expand = expand[:expand.index("template <class Out>\n__device__ void store_run")] + "}}\n"
open(f"{gen}/expand_part.cuh", "w").write(expand.replace('#include "device/cuda/cuda_check.h"\n', ""))
PYTHON
flags="-std=c++20 -O2 -w -I $here/include -I $gen -I src -I ${CUDA:-/usr/local/cuda}/include"
sources=$here/$1.cpp
[ "$1" = attention ] || sources="$sources src/ops/cuda/quantized/strip_packer.cpp src/ops/cpu/reference.cpp"
for source in $sources; do g++ $flags -c "$source" -o "$work/$(basename "$source").o"; done
g++ "$work"/*.o -o "$work/$1" "$build"/{ops/libdroidspeak_ops,kv/libdroidspeak_kv,tensor/libdroidspeak_tensor,device/libdroidspeak_device,base/libdroidspeak_base}.a \
  -lgtest -lfmt -lspdlog -lhwy -lcrypto -lpcre2-8 -lz -lxxhash -lpthread
"$work/$1"
rm -r "$work"
