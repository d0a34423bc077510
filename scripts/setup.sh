#!/usr/bin/env bash
# Makes .venv with everything that verl_replay needs on a machine without an accelerator, exact versions (4 GB, about
# 3 minutes). Does nothing when that is already so. From the environment:
#   PYTHON_BASE      a Python 3.11 to make it from (python3.11 or python3)
#   TORCH_INDEX_URL  where pip finds torch's CPU build, if your usual index has only the CUDA build
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
venv="$root/.venv"
stamp="$venv/.installed"
lock=scripts/requirements_cpu.txt

fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

wanted="$(cat "$lock" setup.py | sha256sum | cut -c1-16)"
if [ -x "$venv/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    echo "setup: .venv is complete"
    exit 0
fi

base="${PYTHON_BASE:-}"
if [ -z "$base" ]; then
    for candidate in python3.11 python3; do
        if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
            base="$candidate"
            break
        fi
    done
fi
[ -n "$base" ] || fail "needs Python 3.11, found $(python3 --version 2>&1 || echo none). Install python3.11 and python3.11-venv, or set PYTHON_BASE."
# vLLM's CPU build links to libnuma and compiles small kernels with g++ as it runs; no Python package brings these.
if ! "$base" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null || ! command -v g++ >/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "setup: installing libnuma1 and g++, which vLLM needs"
        { apt-get -qq update && apt-get -qq install -y --no-install-recommends libnuma1 g++ >/dev/null; } \
            || fail "apt-get install libnuma1 g++ failed (see above). Install it and rerun."
    else
        fail "needs libnuma.so.1 and g++ for vLLM. On Debian: sudo apt-get install libnuma1 g++, then rerun."
    fi
fi
free_kb="$(df -Pk "$root" | awk 'NR == 2 {print $4}')"
[ "$free_kb" -gt 6000000 ] || fail "needs 6 GB of free disk, found $((free_kb / 1000000)) GB at $root. Free some."

started=$SECONDS
echo "setup: [1/4] .venv from $("$base" --version)"
"$base" -m venv "$venv" || fail "python -m venv failed. On Debian: apt-get install python3-venv; then remove .venv and rerun."
pip() { "$venv/bin/python" -m pip --disable-pip-version-check -qq "$@"; }
pip install --upgrade pip || fail "pip cannot reach a package index. Check the network and pip's own configuration."

echo "setup: [2/4] torch, the build without CUDA (200 MB)"
index=()
[ -z "${TORCH_INDEX_URL:-}" ] || index=(--index-url "$TORCH_INDEX_URL")
pip install --no-deps "${index[@]}" torch==2.13.0 || fail "torch 2.13.0 cannot be installed. See TORCH_INDEX_URL in scripts/setup.sh."
grep -q '^cuda.*= None' "$venv"/lib/python3.11/site-packages/torch/version.py || {
    rm -rf "$venv"
    fail "pip's index gave a CUDA build of torch. Set TORCH_INDEX_URL to PyTorch's own wheel index of CPU builds and rerun."
}

echo "setup: [3/4] $(grep -c == "$lock") packages, exact versions (about 2 minutes)"
pip install --no-deps -r "$lock" || fail "installing $lock failed (see above). Rerun: what was fetched is kept in pip's cache."

echo "setup: [4/4] verl_replay itself, and a check"
pip install --no-deps --no-build-isolation --editable . || fail "installing verl_replay failed (see above)."
"$venv/bin/python" -c 'import torch, transformers, ray, hydra, tensordict, transfer_queue, verl_replay' \
    || fail "an import failed (see above). Remove .venv and rerun; if it fails again, report the message."
echo "$wanted" > "$stamp"
echo "setup: done in $((SECONDS - started)) s"
