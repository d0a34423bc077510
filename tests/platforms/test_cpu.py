"""verl_replay.platforms: the CPU platform as verl sees it, and each repair against the installed verl, vLLM and torch.

Whatever changes a process runs in a subprocess: one that has the platform, and one that imports vLLM.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from verl_replay.platforms import cpu_repairs
from verl_replay.platforms.after_import import _AfterImport, after_import
from verl_replay.platforms.cpu_environment import PLATFORM_MODULE, cpu_environment, fill_environment
from verl_replay.platforms.cpu_repairs import Repair, RepairError, install

ROOT = Path(__file__).parents[2]


def run_python(code: str, **variables: str) -> dict:
    """Run `code` in a new process with the environment variables given; it fills the dict `found`, returned here."""
    environ = {name: value for name, value in os.environ.items() if name not in cpu_environment()}
    environ |= {"PYTHONPATH": str(ROOT), **variables}
    program = (
        "import json\nfound = {}\n" + textwrap.dedent(code) + "\nprint('\\nFOUND' + json.dumps(found), flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environ, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.split("FOUND")[-1])


# ---- the environment -------------------------------------------------------------------------------------------------


def test_the_environment_is_complete_for_an_empty_one():
    environ: dict[str, str] = {}
    assert fill_environment(environ) == cpu_environment() == environ
    assert environ["VERL_PLATFORM"] == "cpu" and environ["VERL_USE_EXTERNAL_MODULES"] == PLATFORM_MODULE


def test_only_what_is_missing_is_filled():
    own = {"VLLM_CPU_KVCACHE_SPACE": "4", "OMP_NUM_THREADS": "8", "VERL_PLATFORM": "cpu", "HOME": "/somewhere"}
    environ = dict(own)
    filled = fill_environment(environ)
    assert {name: environ[name] for name in own} == own
    assert set(filled) == set(cpu_environment()) - set(own)
    assert fill_environment(environ) == {}  # nothing is missing any more


@pytest.mark.parametrize("own", ["my.module", "my.module,other", f"my.module,{PLATFORM_MODULE}", PLATFORM_MODULE])
def test_the_users_own_modules_stay_and_the_platform_is_among_them(own):
    environ = {"VERL_USE_EXTERNAL_MODULES": own}
    fill_environment(environ)
    assert environ["VERL_USE_EXTERNAL_MODULES"] == ",".join(
        [*(name for name in own.split(",") if name != PLATFORM_MODULE), PLATFORM_MODULE]
    )


def test_the_environment_is_read_without_importing_anything_heavy():
    found = run_python(
        """
        import sys
        from verl_replay.platforms.cpu_environment import cpu_environment
        found["heavy"] = [name for name in ("torch", "ray", "verl", "vllm", "numpy") if name in sys.modules]
        found["a new dict"] = cpu_environment() is not cpu_environment()
        """
    )
    assert found == {"heavy": [], "a new dict": True}


# ---- importing the platform ------------------------------------------------------------------------------------------

STATE = """
    import importlib.metadata, sys
    import verl
    from verl.plugin.platform import PlatformRegistry
    import verl.utils.distributed

    def vllm_version():
        try:
            return importlib.metadata.version("vllm")
        except importlib.metadata.PackageNotFoundError:
            return None

    def state():
        return [
            PlatformRegistry.registered_names(),
            [type(finder).__module__ for finder in sys.meta_path],
            hasattr(verl.utils.distributed.initialize_global_process_group_ray, "__wrapped__"),
            vllm_version(),
        ]
"""


@pytest.fixture(scope="module")
def inactive() -> dict:
    """What a process finds that imports the platform where verl is not asked to run on a CPU."""
    return run_python(
        STATE
        + """
    import importlib, os
    found["before"] = state()
    import verl_replay.platforms.cpu
    found["unset"] = state()
    os.environ["VERL_PLATFORM"] = "nvidia"
    importlib.reload(verl_replay.platforms.cpu)
    found["nvidia"] = state()
    found["loaded"] = [name for name in sys.modules if name.startswith("verl_replay")]
    try:
        import verl.third_party.vllm
    except ValueError as error:
        found["verl's vllm"] = str(error)
    """
    )


def test_without_verl_platform_cpu_importing_changes_nothing(inactive):
    assert inactive["unset"] == inactive["nvidia"] == inactive["before"]
    platforms, _finders, group_repaired, version = inactive["before"]
    assert "cpu" not in platforms and not group_repaired and version is None
    assert sorted(inactive["loaded"]) == ["verl_replay", "verl_replay.platforms", "verl_replay.platforms.cpu"]


@pytest.fixture(scope="module")
def active() -> dict:
    """What a process finds that verl has loaded the platform into, as every process of a run."""
    return run_python(
        STATE
        + """
    import time
    found["vllm imported"] = "vllm" in sys.modules
    found["own modules"] = [name for name in sys.modules if name.startswith("verl_replay")]
    found["state"] = state()

    import torch
    from verl.plugin.platform import get_platform
    from verl.utils import device
    platform = get_platform()
    found["helpers"] = [
        type(platform).__name__, device.get_device_name(), device.get_resource_name(), device.get_nccl_backend(),
        device.get_visible_devices_keyword(), device.get_device_capability(), device.is_support_ipc(),
        device.is_device_available(), device.get_torch_device().is_available(), platform.device_count(),
        platform.ray_resource_options(1),
    ]
    found["moved to the device"] = str(torch.ones(2).to(device.get_device_id()).device)
    device.set_expandable_segments(True)
    platform.synchronize(), platform.empty_cache(), platform.set_device(0)
    with platform.nvtx_range("x"):
        platform.profiler_start(), platform.profiler_stop()
    module = device.get_torch_device()
    module.synchronize(), module.set_device(0), module.empty_cache()
    found["torch.cpu's"] = module.Stream is torch.cpu.Stream

    draws = []
    for seed in (device.manual_seed, device.manual_seed_all):
        seed(7)
        draws.append(torch.rand(1).item())
    found["seeded"] = draws[0] == draws[1]

    from verl.utils.checkpoint.checkpoint_manager import BaseCheckpointManager
    saved = BaseCheckpointManager.get_rng_state()
    first = torch.rand(1).item()
    BaseCheckpointManager.load_rng_state(saved)
    found["random state restored"] = torch.rand(1).item() == first and module.set_rng_state is torch.set_rng_state

    from verl.utils.flops_counter import get_device_flops
    from verl.utils.memory_utils import aggressive_empty_cache
    from verl.utils.profiler.performance import _get_current_mem_info
    found["flops"] = get_device_flops("T")
    aggressive_empty_cache()
    found["memory"] = [float(x) for x in _get_current_mem_info()]  # GB: allocated, reserved, used, total
    peak, more = module.max_memory_allocated(), 64 << 20
    ballast = torch.ones(peak - module.memory_allocated() + more, dtype=torch.uint8)
    grown = module.memory_allocated()
    del ballast
    slack = more // 4  # the kernel counts pages a thread and adds them up now and then
    found["current grew"] = grown > peak + more - slack
    found["peak stayed"] = [m() > grown - slack for m in (module.max_memory_allocated, module.max_memory_reserved)]
    found["current fell"] = module.memory_allocated() < grown - slack

    import os
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
    original = verl.utils.distributed.initialize_global_process_group_ray.__wrapped__
    try:
        original()
    except ValueError as error:
        found["unrepaired group"] = str(error)
    verl.utils.distributed.initialize_global_process_group_ray(timeout_second=60)
    total = torch.ones(1)
    torch.distributed.all_reduce(total)
    found["repaired group"] = [torch.distributed.get_backend(), total.item()]
    torch.distributed.destroy_process_group()
    verl.utils.distributed.initialize_global_process_group_ray(backend="gloo")
    found["own backend"] = torch.distributed.get_backend()
    torch.distributed.destroy_process_group()

    listed = [d.metadata["Name"] for d in importlib.metadata.distributions()]
    found["listed"] = [listed.count("vllm"), listed.count("vllm-cpu")]
    found["file"] = importlib.metadata.distribution("vllm").read_text("METADATA").splitlines()[1]
    """,
        **cpu_environment(),
    )


def test_verl_loads_the_platform_and_nothing_heavy_with_it(active):
    assert not active["vllm imported"]
    assert sorted(active["own modules"]) == sorted(
        ["verl_replay", "verl_replay.platforms"]
        + [f"verl_replay.platforms.{name}" for name in ("after_import", "cpu", "cpu_device", "cpu_platform")]
        + ["verl_replay.platforms.cpu_repairs"]
    )


def test_verls_device_helpers_see_a_cpu(active):
    assert active["helpers"] == [
        "CpuPlatform", "cpu", "GPU", "gloo", "CUDA_VISIBLE_DEVICES", [None, None], False, True, False, 1,
        {"num_gpus": 1},
    ]  # fmt: skip
    assert active["moved to the device"] == "cpu"
    assert active["torch.cpu's"] and active["seeded"]


def test_a_checkpoints_random_state_can_be_restored(active):
    assert active["random state restored"]


def test_memory_is_that_of_the_process(active):
    allocated, reserved, used, total = active["memory"]
    assert 0 < allocated == reserved < used < total
    assert active["current grew"] and active["current fell"] and active["peak stayed"] == [True, True]
    assert 0 < active["flops"] < float("inf")


def test_p1_torch_refuses_verls_process_group_and_the_repair_makes_it(active):
    assert cpu_repairs.process_group_refused()
    assert "Duplicate device type cpu" in active["unrepaired group"]
    assert active["state"][2]
    assert active["repaired group"] == ["cpu:gloo", 1.0]
    assert active["own backend"] == "gloo"


def test_p2_vllm_has_another_name_and_the_repair_finds_it(active, inactive):
    assert cpu_repairs.vllm_unnamed()
    assert inactive["verl's vllm"].startswith("vllm version None not supported")
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("vllm")
    assert active["state"][3] == importlib.metadata.version("vllm-cpu") + "+cpu"
    assert active["listed"] == [0, 1]  # found by name only: a list of all distributions stays as it was
    assert active["file"].startswith("Name: vllm")


# ---- the repairs of vLLM ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def vllm_repairs() -> dict:
    """Each of P3-P5 before and after, on vLLM's own classes; the repairs come by themselves with vLLM's modules."""
    return run_python(
        """
    import asyncio, sys
    import verl
    from verl_replay.platforms import cpu_repairs
    from verl_replay.platforms.after_import import _finder

    found["vllm imported by the platform"] = "vllm" in sys.modules
    awaited, _finder._actions = _finder._actions, {}  # hold the repairs back, to see vLLM without them
    found["awaited"] = {name: len(actions) for name, actions in awaited.items()}

    import verl.third_party.vllm
    found["verl's vllm"] = verl.third_party.vllm.vllm_version
    import torch
    import vllm.v1.worker.cpu_model_runner
    import vllm.v1.engine.async_llm
    from vllm.platforms import current_platform
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod, VocabParallelEmbedding
    from vllm.model_executor.models.utils import AutoWeightsLoader
    from vllm.v1.engine.async_llm import AsyncLLM
    found["vllm's platform"] = current_platform.device_type

    def follows_its_weight(method_class, dtype):
        '''Sync a new weight into a processed layer of vLLM: does the layer then multiply by it?'''
        layer = torch.nn.Module()
        layer.weight = torch.nn.Parameter(torch.eye(32, dtype=dtype), requires_grad=False)
        method = object.__new__(method_class)
        if method_class is UnquantizedLinearMethod:
            from vllm.model_executor.layers.utils import dispatch_unquantized_gemm
            method._gemm_impl = dispatch_unquantized_gemm()
        method.process_weights_after_loading(layer)
        if layer.weight.shape != (32, 32):
            return "weight gone"
        layer.weight.data.mul_(3)
        x = torch.ones(2, 32, dtype=dtype)
        return "yes" if torch.equal(method.apply(layer, x), x * 3) else "stale"

    def layers():
        return [
            follows_its_weight(method, dtype)
            for method in (UnquantizedLinearMethod, UnquantizedEmbeddingMethod)
            for dtype in (torch.float32, torch.bfloat16)
        ]

    def tied_model():
        '''Two names of one embedding, as a model with tied embeddings has them.'''
        def embedding():
            module = VocabParallelEmbedding.__new__(VocabParallelEmbedding)
            torch.nn.Module.__init__(module)
            return module
        model = torch.nn.Module()
        model.embed_tokens, model.lm_head = embedding(), embedding()
        weight = torch.nn.Parameter(torch.zeros(4, 2), requires_grad=False)
        weight.weight_loader = lambda parameter, loaded: parameter.data.copy_(loaded)
        model.embed_tokens.weight = model.lm_head.weight = weight
        return model

    def sync(*buckets):
        '''Load the buckets one by one, as verl does. Returns the loaded value, or the error.'''
        model = tied_model()
        try:
            for bucket in buckets:
                AutoWeightsLoader(model).load_weights([(name, torch.ones(4, 2)) for name in bucket])
        except ValueError as error:
            return str(error)
        return model.lm_head.weight.sum().item()

    def syncs():
        both = ["embed_tokens.weight", "lm_head.weight"]
        return [sync(both), sync(both[:1], both[1:]), sync(both[1:])]

    class Engine:
        '''The parts of AsyncLLM that pause_generation calls.'''
        def __init__(self):
            self.calls, self.renderer, self.engine_core = [], self, self
        async def clear_mm_cache_async(self):
            self.calls.append("clear")
        async def pause_scheduler_async(self, **kwargs):
            self.calls.append(kwargs)

    def pause(**kwargs):
        engine = Engine()
        try:
            asyncio.run(AsyncLLM.pause_generation(engine, **kwargs))
        except TypeError as error:
            return str(error)
        return engine.calls

    def pauses():
        '''verl's call, the other value of its argument, and vLLM's own arguments.'''
        return [
            pause(wait_for_inflight_requests=False, clear_cache=True),
            pause(wait_for_inflight_requests=True, clear_cache=False),
            pause(mode="keep", clear_cache=False),
        ]

    needed = [repair.still_needed for repair in cpu_repairs.REPAIRS if repair.after]
    found["needed"] = [check() for check in needed]
    found["before"] = [layers(), syncs(), pauses()]
    for name, actions in awaited.items():
        assert name in sys.modules, name
        for action in actions:
            action()
    found["after"] = [layers(), syncs(), pauses()]
    found["pause needed after"] = cpu_repairs.pause_argument_unknown()

    meta = torch.nn.Module()
    meta.weight = torch.nn.Parameter(torch.empty(2, 2, device="meta"), requires_grad=False)
    convolution = torch.nn.Module()
    convolution.weight = torch.nn.Parameter(torch.ones(4, 1, 3), requires_grad=False)
    for layer in (meta, convolution):
        sys.modules["vllm.model_executor.layers.utils"].dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
    biased = torch.nn.Linear(4, 4)
    UnquantizedEmbeddingMethod.process_weights_after_loading(None, biased)
    y = UnquantizedEmbeddingMethod.apply(None, biased, torch.ones(2, 4), biased.bias)
    found["bias"] = torch.equal(y, biased(torch.ones(2, 4)))
    found["left to vllm"] = [hasattr(meta, "cpu_linear"), hasattr(convolution, "cpu_linear")]

    def gone(check):
        try:
            check()
        except cpu_repairs.RepairError as error:
            return str(error)

    found["gone"] = []
    import vllm.model_executor.layers.utils as layer_utils, vllm.model_executor.models.utils as model_utils
    del layer_utils.dispatch_cpu_unquantized_gemm
    found["gone"].append(gone(cpu_repairs.weights_packed))
    async def pause_generation(self, *, clear_cache=True): ...
    AsyncLLM.pause_generation = pause_generation
    found["gone"].append(gone(cpu_repairs.repair_pause_argument))
    vllm.v1.engine.async_llm.AsyncLLM = object
    found["gone"].append(gone(cpu_repairs.pause_argument_unknown))
    del AutoWeightsLoader._check_skipped_aliases
    found["without a check"] = cpu_repairs.bucket_refused()
    del model_utils.AutoWeightsLoader
    found["gone"].append(gone(cpu_repairs.bucket_refused))
    """,
        **cpu_environment(),
    )


def test_vllm_is_awaited_not_imported(vllm_repairs):
    assert not vllm_repairs["vllm imported by the platform"]
    assert vllm_repairs["awaited"] == {"vllm.v1.worker.cpu_model_runner": 2, "vllm.v1.engine.async_llm": 1}


def test_p2_verl_and_vllm_recognize_the_cpu_build(vllm_repairs):
    assert vllm_repairs["verl's vllm"] == importlib.metadata.version("vllm-cpu") + "+cpu"
    assert vllm_repairs["vllm's platform"] == "cpu"


def test_p3_to_p5_are_needed(vllm_repairs):
    assert vllm_repairs["needed"] == [True, True, True]


def test_p3_layers_lose_their_weight_and_the_repair_keeps_it(vllm_repairs):
    before, after = vllm_repairs["before"][0], vllm_repairs["after"][0]
    assert before[0] == "weight gone" and before[2] == "stale"  # float32: linear, embedding; bfloat16 as the CPU has it
    assert after == ["yes"] * 4 and vllm_repairs["bias"]
    assert vllm_repairs["left to vllm"] == [True, False]


def test_p4_a_bucket_of_tied_weights_fails_and_the_repair_lets_it_pass(vllm_repairs):
    before, after = vllm_repairs["before"][1], vllm_repairs["after"][1]
    assert before[0] == after[0] == 8.0  # one bucket
    assert "uninitialized" in before[1] and after[1] == 8.0  # two buckets
    assert "uninitialized" in before[2] and "uninitialized" in after[2]  # lm_head alone: still an error
    assert vllm_repairs["without a check"] is False


def test_p5_verls_argument_is_unknown_and_the_repair_translates_it(vllm_repairs):
    before, after = vllm_repairs["before"][2], vllm_repairs["after"][2]
    keep = [{"mode": "keep", "clear_cache": False}]
    assert "wait_for_inflight_requests" in before[0] and "wait_for_inflight_requests" in before[1]
    assert before[2] == keep
    assert after == [["clear", {"mode": "abort", "clear_cache": True}], [{"mode": "wait", "clear_cache": False}], keep]
    assert vllm_repairs["pause needed after"] is False


def test_a_place_that_is_gone_is_named_with_its_version(vllm_repairs):
    gemm, mode, pause, loader = vllm_repairs["gone"]
    version = importlib.metadata.version("vllm-cpu")
    for message, place in [
        (gemm, "vllm.model_executor.layers.utils.dispatch_cpu_unquantized_gemm"),
        (pause, "vllm.v1.engine.async_llm.AsyncLLM.pause_generation"),
        (mode, "vllm.v1.engine.async_llm.AsyncLLM.pause_generation"),
        (loader, "vllm.model_executor.models.utils.AutoWeightsLoader"),
    ]:
        assert place in message and f"vllm-cpu {version}" in message and "Install" in message


# ---- the machinery ---------------------------------------------------------------------------------------------------


def test_a_repair_no_longer_needed_is_not_applied():
    applied = []
    repairs = [Repair(str(need), lambda need=need: need, lambda: applied.append(1)) for need in (True, False)]
    install(repairs)
    assert applied == [1]


def test_p1_a_changed_place_in_verl_is_named(monkeypatch):
    import verl.utils.distributed

    monkeypatch.setattr(verl.utils.distributed, "initialize_global_process_group_ray", lambda timeout_second: None)
    with pytest.raises(RepairError, match="takes no argument `backend` in verl 0.9.1"):
        cpu_repairs.repair_process_group()
    monkeypatch.delattr(verl.utils.distributed, "initialize_global_process_group_ray")
    with pytest.raises(RepairError, match="it is gone"):
        cpu_repairs.repair_process_group()


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """A package on the path with a module `inner`, forgotten afterwards."""
    (tmp_path / "awaited_package").mkdir()
    (tmp_path / "awaited_package" / "__init__.py").write_text("")
    (tmp_path / "awaited_package" / "inner.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr("verl_replay.platforms.after_import._finder", _AfterImport())
    yield "awaited_package.inner"
    for name in [name for name in sys.modules if name.startswith("awaited_package")]:
        del sys.modules[name]


def test_an_action_runs_once_after_its_module(modules):
    seen = []
    after_import(modules, lambda: seen.append(sys.modules[modules].value))
    after_import(modules, lambda: seen.append("second"))
    assert seen == [] and modules not in sys.modules
    importlib.import_module(modules)
    assert seen == [1, "second"]
    importlib.import_module(modules)
    assert seen == [1, "second"]
    after_import(modules, lambda: seen.append("at once"))
    assert seen == [1, "second", "at once"]
    assert Path(sys.modules[modules].__spec__.loader.path).name == "inner.py"  # its own loader


def test_an_action_that_fails_fails_the_import(modules):
    def fail():
        raise RepairError("vllm.x", "it is gone")

    after_import(modules, fail)
    with pytest.raises(RepairError):
        importlib.import_module(modules)


def test_awaiting_a_module_that_does_not_exist_changes_nothing(modules):
    after_import("awaited_package.missing", lambda: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("awaited_package.missing")
