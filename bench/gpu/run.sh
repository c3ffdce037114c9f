#!/bin/bash
# Speed on a GPU: the 8B shape beside torch and transformers where they are installed, and the default family where
# `make models` has put it. Prints tables; about five minutes. GPU_PROFILE=1 profiles a pair of the 8B shape as well,
# 50 contexts of 8192 tokens: about five minutes more. Making the random model takes a Python with torch.
# GPU_QUANTIZED=bf16,q4_0,q4_k_m compares weights of these formats as well, without torch.
#   bench/gpu/run.sh [build folder]
# The GPU_* settings below make it smaller; GPU_DEVICE=cpu GPU_SHAPE=tiny tries the script without a GPU.
set -euo pipefail
cd "$(dirname "$0")/../.."
BUILD=${1:-build-cuda}
MODEL=${GPU_MODEL:-/dev/shm/droidspeak-8b}
OUT=${GPU_OUT:-out/gpu}
VOCAB=${GPU_VOCAB:-128256}
DEVICE=${GPU_DEVICE:-cuda}
SHAPE=${GPU_SHAPE:-8b}
FAMILY=${GPU_FAMILY:-models/smollm2/family.json}
ROWS=${GPU_ROWS:-tests/data/qa/hotpotqa.profile.jsonl.gz}
LENGTHS=${GPU_LENGTHS:-8192,32768}
PYTHON=${PYTHON:-python3}
CONTEXTS=${GPU_CONTEXTS:-50}
CONTEXT_TOKENS=${GPU_CONTEXT_TOKENS:-8192}
droidspeak=$BUILD/droidspeak
mkdir -p "$OUT"

# Runs a step, tells how long it took, and leaves its output in a file only when it went well.
step() {
  local file=$1 start=$SECONDS
  shift
  "$@" > "$OUT/$file.part"
  mv "$OUT/$file.part" "$OUT/$file"
  echo "$file: $((SECONDS - start)) s" >&2
}

rm -f "$OUT"/*.json "$OUT"/*.part
[ -f "$MODEL/family.json" ] ||
  step model.txt "$PYTHON" tools/make_random_model.py --shape "$SHAPE" --vocab-size "$VOCAB" --out "$MODEL"
random=(--device "$DEVICE" --family "$MODEL" --max-model-len "${GPU_MAX_LEN:-40960}" --kv-memory "${GPU_KV:-20GiB}" --json)
step prefill.json "$droidspeak" bench prefill "${random[@]}" --model base --tokens "32,$LENGTHS" --repeats 5
step decode.json "$droidspeak" bench decode "${random[@]}" --model base --batch 1,8,64 --tokens 64 --context-tokens 1024
step reuse.json "$droidspeak" bench reuse "${random[@]}" --cache-memory "${GPU_CACHE:-12GiB}" --model base --sender variant \
  --plan "${GPU_PLAN:-0,12,20}" --tokens "$LENGTHS" --repeats 5
if [ -f "$FAMILY" ]; then
  step decode_family.json "$droidspeak" bench decode --device "$DEVICE" --family "$FAMILY" --json --model qa \
    --batch 1,8,64 --tokens 64 --kv-memory 8GiB
  step profile_family.json "$droidspeak" profile --device "$DEVICE" --family "$FAMILY" --json --sender base --receiver qa \
    --data "$ROWS" --contexts "$CONTEXTS" --kv-memory 8GiB --out "$OUT/profile_family/qa-from-base.json"
fi
if [ "$DEVICE" = cuda ] && "$PYTHON" -c 'import torch, transformers' 2> /dev/null; then
  step torch.log "$PYTHON" bench/gpu/compare_torch.py --vocab-size "$VOCAB" --tokens "$LENGTHS" --out "$OUT/torch.json"
fi
if [ -n "${GPU_PROFILE:-}" ]; then
  "$PYTHON" bench/gpu/make_rows.py --model "$MODEL/base" --tokens "$CONTEXT_TOKENS" --rows "$CONTEXTS" --out "$OUT/rows.jsonl"
  step profile.json "$droidspeak" profile --device "$DEVICE" --family "$MODEL" --json --sender variant --receiver base \
    --data "$OUT/rows.jsonl" --contexts "$CONTEXTS" --group "${GPU_GROUP:-2}" --max-model-len "$((CONTEXT_TOKENS + 512))" \
    --kv-memory "${GPU_PROFILE_KV:-40GiB}" --out "$OUT/profile/base-from-variant.json"
fi
"$PYTHON" bench/gpu/report.py --folder "$OUT" --vocab-size "$VOCAB"
[ -z "${GPU_QUANTIZED:-}" ] ||
  "$PYTHON" bench/gpu/compare_quantized.py --build "$BUILD" --device "$DEVICE" --shape "$SHAPE" --vocab-size "$VOCAB" \
    --types "$GPU_QUANTIZED" --kv-memory "${GPU_KV:-20GiB}"
