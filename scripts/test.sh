#!/usr/bin/env bash
# Sets up like the quickstart and runs the tests.
#   bash scripts/test.sh           # all of them, the end-to-end runs on Ray, vLLM and FSDP included
#   bash scripts/test.sh --fast    # without the end-to-end runs and the thousands of random cases
# Further arguments go to pytest.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
bash scripts/setup.sh

select=()
if [ "${1:-}" = "--fast" ]; then
    select=(-m "not e2e and not slow")
    shift
fi
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
.venv/bin/ruff check .
.venv/bin/ruff format --check .
exec .venv/bin/python -m verl_replay.guard --timeout "${TIMEOUT:-4800}" -- .venv/bin/python -m pytest "${select[@]}" "$@"
