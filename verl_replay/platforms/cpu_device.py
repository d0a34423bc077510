"""The namespace that verl calls `get_torch_device()`: torch.cpu, and the names of torch.cuda that verl uses beyond it.

Memory. There is no allocator of a device to ask, so verl's memory metrics show the process instead: "allocated" and
"reserved" are its resident set, "max allocated" and "max reserved" its peak resident set since it started. They
contain the interpreter and all libraries, and the peak cannot be reset.
"""

from __future__ import annotations

import resource
from typing import Any

import psutil
import torch

# verl/utils/checkpoint/checkpoint_manager.py, load_rng_state: it restores the state it saved under the name "cpu"
# a second time through the device, and resuming fails if the device cannot.
set_rng_state = torch.set_rng_state


def is_available() -> bool:
    """No: verl/utils/memory_utils.py then leaves out the calls that only an accelerator's allocator has."""
    return False


def empty_cache() -> None:
    """Nothing is cached. Called after each weight sync (bucketed_weight_transfer.py) and offload (fsdp_utils.py)."""


def get_device_name(device: Any = None) -> str:
    """verl/utils/flops_counter.py looks the peak FLOPS up by this name; "CPU" is in its table."""
    del device  # there is one CPU
    return "CPU"


def memory_allocated(device: Any = None) -> int:
    """Resident set of this process, bytes (verl/utils/profiler/performance.py logs it)."""
    del device
    return psutil.Process().memory_info().rss


def max_memory_allocated(device: Any = None) -> int:
    """Peak resident set of this process, bytes (verl/workers/engine_workers.py: perf/max_memory_allocated_gb)."""
    del device
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


memory_reserved = memory_allocated
max_memory_reserved = max_memory_allocated


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free and total memory of the machine, bytes (verl/utils/profiler/performance.py)."""
    del device
    memory = psutil.virtual_memory()
    return memory.available, memory.total


def __getattr__(name: str) -> Any:
    """Everything else is torch.cpu's: synchronize, set_device, device_count, Stream, ..."""
    return getattr(torch.cpu, name)
