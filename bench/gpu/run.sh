#!/bin/bash
# Speed of the 8B shape on a GPU, beside torch and transformers where they are installed. Prints tables.
#   bench/gpu/run.sh [build folder]
set -euo pipefail
cd "$(dirname "$0")/../.."
BUILD=${1:-build-cuda}
MODEL=${GPU_MODEL:-/dev/shm/droidspeak-8b}
OUT=${GPU_OUT:-out/gpu}
VOCAB=${GPU_VOCAB:-128256}
PYTHON=${PYTHON:-python3}
LENGTHS=8192,32768
droidspeak=$BUILD/droidspeak
mkdir -p "$OUT"
[ -f "$MODEL/family.json" ] || "$PYTHON" tools/make_random_model.py --shape 8b --vocab-size "$VOCAB" --out "$MODEL"

common=(--device cuda --family "$MODEL" --max-model-len 40960 --kv-memory 20GiB --json)
"$droidspeak" bench prefill "${common[@]}" --model base --tokens "32,$LENGTHS" --repeats 5 > "$OUT/prefill.json"
"$droidspeak" bench decode "${common[@]}" --model base --batch 1,8,64 --tokens 64 --context-tokens 1024 > "$OUT/decode.json"
"$droidspeak" bench reuse "${common[@]}" --cache-memory 12GiB --model base --sender variant --plan 0,12,20 \
  --tokens "$LENGTHS" --repeats 5 > "$OUT/reuse.json"
if "$PYTHON" -c 'import torch, transformers' 2> /dev/null; then
  "$PYTHON" bench/gpu/compare_torch.py --vocab-size "$VOCAB" --tokens "$LENGTHS" --out "$OUT/torch.json" > "$OUT/torch.log"
fi
"$PYTHON" bench/gpu/report.py --folder "$OUT" --vocab-size "$VOCAB"
