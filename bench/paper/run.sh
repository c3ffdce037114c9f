#!/usr/bin/env bash
# Every measurement behind docs/results.md. Results that exist are kept, so a stopped run goes on where it was.
#
#   DATA=data OUT=out/paper DEVICE=cuda bench/paper/run.sh                    # all stages
#   DATA=data OUT=out/paper STAGES="baselines length" bench/paper/run.sh    # some
#   python3 bench/paper/figures.py --results out/paper                        # then: docs/results.md and its plots
#
# Settings, by environment:
#   DATA       folder of the data sets (.jsonl.gz)
#   OUT        where results go, one .json.gz each
#   FAMILY     family.json
#   PAIRS      sender:receiver ...; default: those of the family's plan books
#   DEVICE     cpu, cuda or auto: where the product and the baselines run
#   LIMIT      rows of a data set at most (0: all)
#   PARALLEL   processes side by side
#   STAGES     of: baselines length transfer
set -euo pipefail
cd "$(dirname "$0")/../.."

DATA=${DATA:?the folder of the data sets}
OUT=${OUT:-out/paper}
FAMILY=${FAMILY:-models/smollm2/family.json}
DEVICE=${DEVICE:-auto}
LIMIT=${LIMIT:-300}
PARALLEL=${PARALLEL:-1}
STAGES=${STAGES:-baselines length transfer}
PYTHON=${PYTHON:-python3}
PROGRAM=${PROGRAM:-build/droidspeak}
THREADS=${THREADS:-0}
PROFILE_ROWS=${PROFILE_ROWS:-50}
TRANSFER_PAIRS=${TRANSFER_PAIRS:-math:qa qa-alt:qa}
LENGTH_PAIRS=${LENGTH_PAIRS:-base:qa math:qa}
LENGTHS=${LENGTHS:-1300 2000 4000 7000}
LENGTH_ROWS=${LENGTH_ROWS:-100}

BY_LENGTH='full;reuse;0,16,24;reuse+10%;reuse+25%;0,16,20+15%'

mkdir -p "$OUT"
PAIRS=${PAIRS:-$($PYTHON bench/paper/prepare.py pairs "$FAMILY" | tr '\n' ' ')}
failed="$OUT/failed.txt"
: > "$failed"

rows_of() { if [ "$LIMIT" -gt 0 ] && { [ "$1" -eq 0 ] || [ "$LIMIT" -lt "$1" ]; }; then echo "$LIMIT"; else echo "$1"; fi; }
sender_of() { echo "${1%%:*}"; }
receiver_of() { echo "${1##*:}"; }
name_of() { echo "$(receiver_of "$1")-from-$(sender_of "$1")"; }

# start NAME COMMAND...: standard output becomes OUT/NAME.json.gz, unless it is there.
start() {
  local name=$1
  shift
  [ -s "$OUT/$name.json.gz" ] && return 0
  while [ "$(jobs -rp | wc -l)" -ge "$PARALLEL" ]; do wait -n || true; done
  {
    local begin=$SECONDS
    if "$@" > "$OUT/$name.part" 2> "$OUT/$name.log"; then
      gzip -nf "$OUT/$name.part"
      mv "$OUT/$name.part.gz" "$OUT/$name.json.gz"
      echo "$name: $((SECONDS - begin)) s"
    else
      rm -f "$OUT/$name.part"
      echo "$name" >> "$failed"
      echo "$name failed: $(tail -n 1 "$OUT/$name.log")" >&2
    fi
  } &
}

# evaluate NAME PAIR DATA ROWS PLANS FAMILY [OPTION...]
evaluate() {
  local name=$1 pair=$2 data=$3 rows=$4 plans=$5 family=$6
  shift 6
  start "$name" "$PROGRAM" evaluate --family "$family" --sender "$(sender_of "$pair")" --receiver "$(receiver_of "$pair")" \
    --plans "$plans" --data "$data" --limit "$rows" --device "$DEVICE" --threads "$THREADS" --json "$@"
}

# A profile made on the other data set itself, against the HotpotQA profile, on rows that neither has seen.
stage_transfer() {
  for set in 2wikimqa.test musique.test multi_news; do
    local profile_data=$OUT/data/$set.profile.jsonl.gz rest=$OUT/data/$set.rest.jsonl.gz
    [ -s "$rest" ] || $PYTHON bench/paper/prepare.py split "$DATA/$set.jsonl.gz" "$PROFILE_ROWS" "$profile_data" "$rest"
    local metric=f1; [ "$set" = multi_news ] && metric=rouge_l
    for pair in $TRANSFER_PAIRS; do
      local name; name=$(name_of "$pair")
      mkdir -p "$OUT/books/$set"
      start "profile.$name.${set%.test}" "$PROGRAM" profile --family "$FAMILY" --sender "$(sender_of "$pair")" \
        --receiver "$(receiver_of "$pair")" --data "$profile_data" --contexts "$(rows_of "$PROFILE_ROWS")" --metric "$metric" \
        --device "$DEVICE" --threads "$THREADS" --out "$OUT/books/$set/$name.json" --json
    done
  done
  wait
  for set in 2wikimqa.test musique.test multi_news; do
    local short=${set%.test} options=(); [ "$set" = multi_news ] && options=(--metric rouge_l --max-tokens 128)
    for pair in $TRANSFER_PAIRS; do
      local name; name=$(name_of "$pair")
      [ -s "$OUT/books/$set/$name.json" ] || continue
      $PYTHON bench/paper/prepare.py family "$FAMILY" "$OUT/books/$set/$name.family.json" "$OUT/books/$set/$name.json"
      evaluate "transfer.$name.$short.family_book" "$pair" "$OUT/data/$set.rest.jsonl.gz" "$(rows_of 0)" 'full;reuse;auto' \
        "$FAMILY" "${options[@]}"
      evaluate "transfer.$name.$short.own_profile" "$pair" "$OUT/data/$set.rest.jsonl.gz" "$(rows_of 0)" 'full;reuse;auto' \
        "$OUT/books/$set/$name.family.json" "${options[@]}"
    done
  done
}

make_length() {
  local data=$OUT/data/hotpotqa.$1.jsonl.gz
  [ -s "$data" ] || $PYTHON bench/paper/lengthen.py "$DATA/hotpotqa.test.jsonl.gz" "$1" "$data" --limit "$LENGTH_ROWS" > /dev/null
  echo "$data"
}

stage_length() {
  for tokens in $LENGTHS; do
    local data; data=$(make_length "$tokens")
    for pair in $LENGTH_PAIRS; do
      evaluate "length.$(name_of "$pair").$tokens" "$pair" "$data" "$(rows_of "$LENGTH_ROWS")" "$BY_LENGTH" "$FAMILY"
    done
  done
}

# Ways the product does not have, in PyTorch.
stage_baselines() {
  local device=$DEVICE
  [ "$device" = auto ] && device=$($PYTHON -c 'import torch; print("cuda" if torch.cuda.is_available() else "cpu")')
  for pair in $PAIRS; do
    for set in hotpotqa 2wikimqa; do
      start "baselines.$(name_of "$pair").$set" $PYTHON bench/paper/baselines.py --family "$FAMILY" --sender "$(sender_of "$pair")" \
        --receiver "$(receiver_of "$pair")" --data "$DATA/$set.test.jsonl.gz" --profile-data "$DATA/hotpotqa.profile.jsonl.gz" \
        --profile-limit "$(rows_of "$PROFILE_ROWS")" --limit "$(rows_of 300)" --device "$device"
    done
  done
}

for stage in $STAGES; do
  echo "stage $stage (pairs: $PAIRS)"
  "stage_$stage"
  wait
done
if [ -s "$failed" ]; then
  echo "failed: $(tr '\n' ' ' < "$failed")" >&2
  exit 1
fi
rm -f "$failed"
