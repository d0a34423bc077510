"""Shared fixtures. Whatever starts Ray starts it once, and takes it down."""

from __future__ import annotations

import numpy as np
import pytest


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
