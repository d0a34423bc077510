"""The environment variables of a CPU run, kept apart from the platform so that a launcher can read them early.

They have to be set before torch, ray, vLLM or verl is imported, so this module imports none of them.
"""

from __future__ import annotations

from collections.abc import MutableMapping

PLATFORM_MODULE = "verl_replay.platforms.cpu"
_MODULES = "VERL_USE_EXTERNAL_MODULES"


def cpu_environment() -> dict[str, str]:
    """All variables that a run of verl on the CPU needs: a new dict, the environment is left alone."""
    return {
        # verl/__init__.py imports these modules in every process; ours registers the platform named next.
        _MODULES: PLATFORM_MODULE,
        "VERL_PLATFORM": "cpu",
        # verl/workers/engine/base.py looks engines up by device; FSDP is registered for "cuda" and runs on any.
        "VERL_ENGINE_DEVICE": "cuda",
        # GiB. Unset, vLLM takes the fraction rollout.gpu_memory_utilization of the machine's memory for its cache.
        "VLLM_CPU_KVCACHE_SPACE": "1",
        # "auto" pins vLLM's threads to cores of its own choice: trainer, replicas and other jobs share these cores.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # Trainer and vLLM would each start a thread per core; the order of sums, too, depends on the number.
        "OMP_NUM_THREADS": "1",
        # gloo listens on the address of the host's name, which a container or a laptop may not be able to reach.
        "GLOO_SOCKET_IFNAME": "lo",
        # Both report usage over the network by default; a machine used for tests may have none.
        "RAY_USAGE_STATS_ENABLED": "0",
        "VLLM_NO_USAGE_STATS": "1",
    }


def fill_environment(environ: MutableMapping[str, str]) -> dict[str, str]:
    """Set in `environ` what is missing, and return that. What the user has set stays as it is.

    VERL_USE_EXTERNAL_MODULES is a list: where the user names other modules the platform is added to them, because
    without it `VERL_PLATFORM=cpu` fails with "Unknown platform 'cpu'".
    """
    filled = {name: value for name, value in cpu_environment().items() if not environ.get(name)}
    modules = [name for name in environ.get(_MODULES, "").split(",") if name]
    if PLATFORM_MODULE not in modules:
        filled[_MODULES] = ",".join([*modules, PLATFORM_MODULE])
    environ.update(filled)
    return filled


if __name__ == "__main__":  # for a shell: eval "$(python -m verl_replay.platforms.cpu_environment)"
    import os
    import shlex

    for name, value in fill_environment(dict(os.environ)).items():
        print(f"export {name}={shlex.quote(value)}")
