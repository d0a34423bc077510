#!/usr/bin/env bash
# From nothing to a trained policy and a picture of the run, on a laptop CPU: about 9 minutes, the second time about 5.
#   bash scripts/quickstart.sh                  # all of it
#   bash scripts/quickstart.sh replay.ratio=1   # anything of recipes/tiny_cpu/tiny_cpu.yaml can be changed
# Writes outputs/quickstart/: metrics.jsonl, train.log, curves.png, summary.json. Ctrl-C leaves nothing running.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
python="$root/.venv/bin/python"
task="$root/outputs/tasks/addition"
trap 'exit 130' INT TERM

echo "== 1/3 install (3 minutes; a second run skips it)"
started=$SECONDS
bash scripts/setup.sh
install=$((SECONDS - started))

echo "== 2/3 data and base policy (1 minute; a second run skips it)"
started=$SECONDS
"$python" -m data_prep.make_tiny --task addition --output "$task" \
    || { echo "quickstart: making data and model failed (see above). Remove $task and rerun." >&2; exit 1; }
prepare=$((SECONDS - started))

echo "== 3/3 train with fresh-anchored replay, held-out accuracy before and after (4 minutes)"
exec "$python" -m scripts.quickstart --seconds-install "$install" --seconds-prepare "$prepare" -- "$@"
