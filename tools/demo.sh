#!/bin/sh
# The whole road on a small model: fetch, build, answer a sample file, report. Called by `make demo`.
set -eu
BIN=${BIN:-.venv/bin}
TRTB_HOME=${TRTB_HOME:-$PWD/.cache/trtb}
export TRTB_HOME

trtb() {
    printf '\n$ trtb %s\n' "$*"
    "$BIN/trtb" "$@"
}

mkdir -p demo-out
trtb models fetch smollm2-135m-instruct
trtb build --model smollm2-135m-instruct
trtb run tools/data/sample.jsonl -o demo-out/answers.jsonl --overwrite
printf '\nits page, demo-out/report.html:\n'
trtb report demo-out/answers.jsonl.run --html demo-out/report.html --sample 8 --include-text --json > demo-out/report.json
