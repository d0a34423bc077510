#!/usr/bin/env bash
# Adds torchrl to .venv, a peer that scripts/benchmark_replay.py measures against; nothing else needs it. Changes no
# other package. Its wheels bring the sum tree compiled for another torch, so that is compiled again from the source in
# the wheel (1 minute, g++).
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="$root/.venv/bin/python"
[ -x "$python" ] || { echo "setup_torchrl: no .venv. Run bash scripts/setup.sh first." >&2; exit 1; }

"$python" -m pip --disable-pip-version-check -qq install --no-deps torchrl==0.10.1
check='from torchrl.data import PrioritizedSampler; PrioritizedSampler(2, alpha=0.5, beta=0.0)'
if "$python" -c "$check" 2>/dev/null; then
    echo "setup_torchrl: torchrl is complete"
    exit 0
fi
echo "setup_torchrl: compiling torchrl's sum tree (1 minute)"
read -r source torch python_include suffix < <("$python" - <<'END'
import importlib.util
import os
import sysconfig

folders = [os.path.dirname(importlib.util.find_spec(name).origin) for name in ("torchrl", "torch")]
print(*folders, sysconfig.get_paths()["include"], sysconfig.get_config_var("EXT_SUFFIX"))
END
)
g++ -O3 -std=c++20 -shared -fPIC -w -DTORCH_EXTENSION_NAME=_torchrl \
    -I"$torch/include" -I"$torch/include/torch/csrc/api/include" -I"$python_include" -I"$source/csrc" \
    "$source/csrc/pybind.cpp" "$source/csrc/utils.cpp" -o "$source/_torchrl$suffix" \
    -L"$torch/lib" -Wl,-rpath,"$torch/lib" -ltorch -ltorch_cpu -ltorch_python -lc10 \
    || { echo "setup_torchrl: compiling failed (see above). g++ and Python's headers are needed (Debian: python3-dev)." >&2; exit 1; }
"$python" -c "$check" || { echo "setup_torchrl: torchrl still does not load (see above)." >&2; exit 1; }
echo "setup_torchrl: done"
