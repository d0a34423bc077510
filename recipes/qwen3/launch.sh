#!/usr/bin/env bash
# GRPO with replay on Qwen3-*-Base at one scale; recipes/qwen3_*/run.sh call it. First argument: 0.6b, 1.7b or 4b, the
# rest are overrides of qwen3.yaml. From the environment:
#   MODEL_PATH   a folder or a hub name                    (Qwen/Qwen3-<scale>-Base)
#   DATA_DIR     the parquet files of data_prep.maths      (outputs/data/maths)
#   OUTPUT_DIR   checkpoints, metrics, logs                (outputs/qwen3_<scale>)
#   DRY_RUN      1: check everything, start nothing; strict: fail where an input is missing
#   PYTHON       the Python that has verl                  (.venv/bin/python, else python3)
#   TIMEOUT      seconds after which the run is ended      (never)
#   MODULE       verl.trainer.main_ppo: stock verl on the same settings
#   RAY_ADDRESS  auto: the Ray cluster that runs already, see recipes/README.md
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"
declare -A models=([0.6b]=Qwen/Qwen3-0.6B-Base [1.7b]=Qwen/Qwen3-1.7B-Base [4b]=Qwen/Qwen3-4B-Base)
scale="${1:-}"
[ -n "${models[$scale]:-}" ] || { echo "launch.sh: the scale must be one of ${!models[*]}, got '$scale'" >&2; exit 2; }
shift
python="${PYTHON:-$root/.venv/bin/python}"
[ -n "${PYTHON:-}" ] || [ -x "$python" ] || python=python3

export MODEL_PATH="${MODEL_PATH:-${models[$scale]}}"
export DATA_DIR="${DATA_DIR:-$root/outputs/data/maths}"
export OUTPUT_DIR="${OUTPUT_DIR:-$root/outputs/qwen3_$scale}"
export GENERATION_CONFIG="$here/generation"
export VERL_FILE_LOGGER_PATH="${VERL_FILE_LOGGER_PATH:-$OUTPUT_DIR/metrics.jsonl}"
export TENSORBOARD_DIR="${TENSORBOARD_DIR:-$OUTPUT_DIR/tensorboard}"
cd "$root"

settings=(--config-path "$here" --config-name qwen3 "scale=$scale")
run=("$python" -m verl_replay.guard ${TIMEOUT:+--timeout "$TIMEOUT"} --
    "$python" -m "${MODULE:-verl_replay.main_ppo}" "${settings[@]}" "$@")
if [ "${DRY_RUN:-0}" != 0 ]; then
    scratch="$(mktemp -d)"   # Hydra writes a log: not into the folder of a real run
    trap 'rm -rf "$scratch"' EXIT
    "$python" -m verl_replay.main_ppo "${settings[@]}" hydra.run.dir="$scratch" hydra.sweep.dir="$scratch" "$@"
    echo "command, without DRY_RUN:"
    for name in MODEL_PATH DATA_DIR OUTPUT_DIR GENERATION_CONFIG VERL_FILE_LOGGER_PATH TENSORBOARD_DIR; do
        printf '%s=%q ' "$name" "${!name}"
    done
    printf '%q ' "${run[@]}"
    echo
    exit 0
fi
mkdir -p "$OUTPUT_DIR"
exec "${run[@]}"
