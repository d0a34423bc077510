#!/usr/bin/env bash
# Sets up like the quickstart and runs the tests.
#   bash scripts/test.sh           # all of them, the end-to-end runs on Ray, vLLM and FSDP included
#   bash scripts/test.sh --fast    # without the end-to-end runs and the thousands of random cases
# Further arguments go to pytest. Tests run in two processes, but for the smoke run, which needs the machine's memory alone.
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
two=(-n 2 --dist loadfile --no-loadscope-reorder)
run "${two[@]}" -m "$select" "$@"
if [ "$select" = "not e2e" ]; then
    run "${two[@]}" -m "e2e and not large" "$@"
    run -m large "$@"
fi
