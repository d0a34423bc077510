"""Shared fixtures. Whatever starts Ray starts it once, and takes it down."""

from __future__ import annotations

import copy
import io
import os
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: two processes share the files, and the last one should not be a long one."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session", autouse=True)
def yaml_files_are_parsed_once():
    """Hydra parses verl's 30 files anew for every config, which is most of its time; tests compose hundreds."""
    load, parsed = OmegaConf.load, {}

    def load_once(file: Any) -> Any:
        if not isinstance(file, io.TextIOWrapper):
            return load(file)
        state = os.fstat(file.fileno())
        key = (state.st_ino, state.st_size, state.st_mtime_ns)
        if key not in parsed:
            parsed[key] = load(file)
        return copy.deepcopy(parsed[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OmegaConf, "load", load_once)
        yield


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def transfer_queue():
    """A real TransferQueue on a local Ray, for the session."""
    import ray
    import transfer_queue as tq
    from omegaconf import OmegaConf

    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, object_store_memory=200_000_000)
    tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
    yield tq
    tq.close()
    ray.shutdown()


@pytest.fixture
def clear_partition(transfer_queue):
    """Leaves TransferQueue's partition "train" empty."""
    yield
    keys = list((transfer_queue.kv_list("train") or {}).get("train", {}))
    if keys:
        transfer_queue.kv_clear(keys=keys, partition_id="train")
