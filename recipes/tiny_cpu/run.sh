#!/usr/bin/env bash
# GRPO with replay on a CPU. Settings are in tiny_cpu.yaml; anything of it can be changed on the command line:
#   bash recipes/tiny_cpu/run.sh replay=pooled trainer.total_training_steps=50
#   bash recipes/tiny_cpu/run.sh replay=off                                         # the stock baseline
# Needs scripts/setup.sh to have run. Makes its data and model on first use. From the environment: MODEL_PATH, DATA_DIR,
# OUTPUT_DIR, TIMEOUT (seconds, 3600), MODULE (verl.trainer.main_ppo runs stock verl on the same settings).
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"
python="${PYTHON:-$root/.venv/bin/python}"
[ -x "$python" ] || { echo "run.sh: $python is missing. Run: bash scripts/setup.sh" >&2; exit 1; }

export DATA_DIR="${DATA_DIR:-$root/outputs/tasks/addition}"
export MODEL_PATH="${MODEL_PATH:-$DATA_DIR/model}"
export OUTPUT_DIR="${OUTPUT_DIR:-$root/outputs/tiny_cpu}"
export REWARD_FUNCTION="$root/data_prep/reward.py"
export REPEATABLE_AGENT_LOOP="$root/verl_replay/config/repeatable_agent_loop.yaml"
export VERL_FILE_LOGGER_PATH="${VERL_FILE_LOGGER_PATH:-$OUTPUT_DIR/metrics.jsonl}"
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
mkdir -p "$OUTPUT_DIR"
cd "$root"

if [ "$MODEL_PATH" = "$DATA_DIR/model" ] && [ "$DATA_DIR" = "$root/outputs/tasks/addition" ]; then
    "$python" -m data_prep.make_tiny --task addition --output "$DATA_DIR"
fi

eval "$("$python" -m verl_replay.platforms.cpu_environment)"   # exports what a run without an accelerator needs
exec "$python" -m verl_replay.guard --timeout "${TIMEOUT:-3600}" -- \
    "$python" -m "${MODULE:-verl_replay.main_ppo}" --config-path "$here" --config-name tiny_cpu "$@"
