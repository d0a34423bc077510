"""verl's platform interface (verl.plugin.platform, its official extension point) for a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch
from verl.plugin.platform import PlatformBase

from verl_replay.platforms import cpu_device


class CpuPlatform(PlatformBase):
    """One CPU as the device. Where a method is not obvious, its docstring names the call in verl that needs it."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module: ModuleType = cpu_device

    def is_available(self) -> bool:
        """Yes, unlike `device_module.is_available()`: verl warns about a platform that is not there."""
        return True

    def current_device(self) -> torch.device:
        """A torch.device, not an index: verl calls `x.to(get_device_id())` and torch reads an index as a GPU."""
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """verl sets expandable_segments around each weight sync (engine_workers.py); there is no such allocator."""

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """Ray numbers its logical GPUs in this variable, and verl's Worker and vLLM server read them from there."""
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        """Logical GPUs (`+ray_kwargs.ray_init.num_gpus=N`): ray_trainer.py counts only GPU and NPU as resources."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        """No: vllm_rollout.py then sends weights through shared memory instead of CUDA IPC handles."""
        return False

    def cudart(self) -> None:
        return None
