#!/usr/bin/env bash
# A Ray cluster of two nodes on this machine, and the tiny recipe on it, one rank a node. Start it under verl_replay.guard, which
# ends the cluster: `ray stop` would end every Ray on the machine.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
ray="$(dirname "$PYTHON")/ray"
eval "$("$PYTHON" -m verl_replay.platforms.cpu_environment)"
RAY_AUTH_TOKEN="$("$PYTHON" -c 'import secrets; print(secrets.token_hex(32))')"
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN   # one for the cluster; by default Ray makes one for the head alone
port="$("$PYTHON" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')"
node=(--num-cpus=16 --num-gpus=1 --object-store-memory=300000000 --disable-usage-stats)
# As on another machine: without what the command below sets for itself.
bare=(env -u OUTPUT_DIR -u DATA_DIR -u MODEL_PATH -u VERL_FILE_LOGGER_PATH)
"${bare[@]}" "$ray" start --head --port="$port" --include-dashboard=false --temp-dir="$(mktemp -d)" "${node[@]}"
"${bare[@]}" "$ray" start --address="127.0.0.1:$port" "${node[@]}"
export RAY_ADDRESS="127.0.0.1:$port"
"$PYTHON" -c 'import ray; ray.init(log_to_driver=False); print("nodes alive:", sum(n["Alive"] for n in ray.nodes()))'
# An existing cluster has its own sizes: Ray refuses to be told any.
bash "$root/recipes/tiny_cpu/run.sh" trainer.nnodes=2 ray_kwargs.ray_init.num_cpus=null ray_kwargs.ray_init.num_gpus=null \
    ray_kwargs.ray_init.object_store_memory=null "$@"
