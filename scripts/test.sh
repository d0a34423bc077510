#!/usr/bin/env bash
# Sets up like the quickstart and runs the tests.
#   bash scripts/test.sh           # all of them, the end-to-end runs on Ray, vLLM and FSDP included
#   bash scripts/test.sh --fast    # without the end-to-end runs and what is marked slow
# Further arguments go to pytest. Tests run in two processes: end-to-end runs where there is memory for two (8 GB each), and
# the smoke run alone.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
bash scripts/setup.sh

select="not e2e"
if [ "${1:-}" = "--fast" ]; then
    select="not e2e and not slow"
    shift
fi
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
.venv/bin/ruff check .
.venv/bin/ruff format --check .

NONE=5   # pytest's exit status where the arguments select no test
run() {  # pytest under the guard; no test selected is no failure
    .venv/bin/python -m verl_replay.guard --timeout "${TIMEOUT:-4800}" -- .venv/bin/python -m pytest "$@" || [ $? = "$NONE" ]
}
files=(--dist loadfile --no-loadscope-reorder)
run -n 2 "${files[@]}" -m "$select" "$@"
if [ "$select" = "not e2e" ]; then
    run -n "$(awk '/^MemAvailable/ {print ($2 > 16e6 ? 2 : 1)}' /proc/meminfo)" "${files[@]}" -m "e2e and not large" "$@"
    run -m large "$@"
fi
