#!/usr/bin/env bash
# Everything of docs/results.md, from the photographs to the page. Stopped, the same command goes on.
#   scripts/flickr8k.sh Flickr8k.token.txt Flicker8k_Dataset splits [FOLDER, some gigabytes]
# The lines that are in results/flickr8k.jsonl count as done: without them everything is trained anew,
# about eight hours on two cores.
set -euo pipefail
captions=$1 pictures=$2 splits=$3 folder=${4:-runs/flickr8k}
bin="$(dirname "$0")/../.venv/bin"
experiments=(table1 table3 small-batch table4 table5 draws ensembles)

[ -f "$folder/data/dataset.json" ] ||
    "$bin/aoq" data build "$captions" --pictures "$pictures" --splits "$splits" --grid 3 --out "$folder/data"
for name in "${experiments[@]}"; do
    "$bin/aoq" experiment "flickr8k-$name" --data "$folder/data" --out "$folder/runs" \
        --results "$(dirname "$0")/../results/flickr8k.jsonl"
done
"$bin/python" "$(dirname "$0")/results_page.py" "${experiments[@]/#/flickr8k-}" \
    --data "$folder/data" --out "$folder/runs"
