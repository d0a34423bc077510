"""Shows that vLLM samples from the weights that the actor trains: digests of both after every weight sync.

    VERL_USE_EXTERNAL_MODULES=verl_replay.weight_digests WEIGHT_DIGESTS=FOLDER  python -m verl_replay.main_ppo ...

writes FOLDER/actor.jsonl and a FOLDER/vllm_<process>.jsonl for each replica, one line a sync: {"sync": n, "digests":
{name: digest}}. Sync 0 brings the initial weights. The actor's are read from FSDP's own parameters, vLLM's from its
model, so the way between them is what is shown. It reads the weights once more a sync (seconds), and is for trainers
that share a machine with vLLM (sync, colocate_async).
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl_replay.platforms.after_import import after_import

if TYPE_CHECKING:
    import torch

VARIABLE = "WEIGHT_DIGESTS"
_ACTOR_MODULE = "verl.workers.engine_workers"
_VLLM_MODULE = "verl.workers.rollout.vllm_rollout.utils"
# vLLM joins these along the rows, in this order.
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def split_fused(
    parameters: Iterable[tuple[str, torch.Tensor]], shapes: Mapping[str, int]
) -> Iterable[tuple[str, torch.Tensor]]:
    """vLLM's parameters under the names of transformers.

    Args:
        parameters: name and tensor, joined ones ((rows, columns) or (rows,)) included.
        shapes: rows of each part of FUSED, by its name, on this rank.

    Raises:
        ValueError: the parts' rows do not add up to a joined tensor's.
    """
    for name, tensor in parameters:
        fused = next((part for part in name.split(".") if part in FUSED), None)
        if fused is None:
            yield name, tensor
            continue
        rows = [shapes[part] for part in FUSED[fused]]
        if sum(rows) != tensor.shape[0]:
            raise ValueError(f"{name} has {tensor.shape[0]} rows, its parts {rows}: another model than shapes are of")
        for part, piece in zip(FUSED[fused], tensor.split(rows), strict=True):
            yield name.replace(fused, part), piece


def digests(parameters: Iterable[tuple[str, torch.Tensor]]) -> dict[str, str]:
    """xxh3 of each tensor's values as bfloat16, the format that both sides of a sync hold exactly.

    Raises:
        ValueError: a tensor holds a value that bfloat16 does not.
    """
    import torch
    import xxhash

    found = {}
    for name, tensor in parameters:
        narrow = tensor.detach().to("cpu", torch.bfloat16)
        if not torch.equal(narrow.to(tensor.dtype), tensor.detach().cpu()):
            raise ValueError(
                f"{name} ({tensor.dtype}) holds values that bfloat16 does not, so the two sides of a sync may differ. "
                "Set actor_rollout_ref.actor.fsdp_config.model_dtype=bf16, or leave weight_digests out."
            )
        found[name] = xxhash.xxh3_64_hexdigest(narrow.contiguous().view(torch.uint8).numpy())
    return found


def append(path: Path, sync: int, found: Mapping[str, str]) -> None:
    """Add one sync's line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps({"sync": sync, "digests": dict(sorted(found.items()))}) + "\n")


def _full_parameters(module: torch.nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    for name, parameter in module.named_parameters():
        yield name, parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter


def rows_of_parts(model_config: Any, ranks: int) -> dict[str, int]:
    """Rows of the parts of vLLM's joined layers on one of `ranks` tensor-parallel ranks."""
    text = model_config.hf_text_config
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    heads, kv_heads = text.num_attention_heads // ranks, max(1, text.num_key_value_heads // ranks)
    ffn = text.intermediate_size // ranks
    rows = {"q_proj": heads * size, "k_proj": kv_heads * size, "v_proj": kv_heads * size}
    return rows | {"gate_proj": ffn, "up_proj": ffn}


def _count(owner: Any) -> int:
    owner.__dict__["_syncs"] = owner.__dict__.get("_syncs", -1) + 1
    return owner.__dict__["_syncs"]


def _watch(place: type, method: str, wrapper: Callable[[Callable], Callable]) -> None:
    setattr(place, method, wrapper(getattr(place, method)))


def watch_actor(folder: Path) -> None:
    """Write the actor's digests after each of its update_weights."""
    from verl.workers.engine_workers import ActorRolloutRefWorker

    def wrapper(original: Callable) -> Callable:
        @functools.wraps(original)  # verl's dispatch reads attributes of the function
        async def update_weights(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = await original(self, *args, **kwargs)
            found = digests(_full_parameters(self.actor.engine.module))  # every rank takes part
            if self.rank == 0:
                append(folder / "actor.jsonl", _count(self), found)
            return result

        return update_weights

    _watch(ActorRolloutRefWorker, "update_weights", wrapper)


def watch_vllm(folder: Path) -> None:
    """Write vLLM's digests after each sync it received."""
    from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

    def wrapper(original: Callable) -> Callable:
        @functools.wraps(original)
        def update_weights_from_ipc(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            ranks = self.vllm_config.parallel_config.tensor_parallel_size
            rows = rows_of_parts(self.vllm_config.model_config, ranks)
            found = digests(split_fused(self.model_runner.model.named_parameters(), rows))
            append(folder / f"vllm_{os.getpid()}.jsonl", _count(self), found)
            return result

        return update_weights_from_ipc

    _watch(vLLMColocateWorkerExtension, "update_weights_from_ipc", wrapper)


if os.environ.get(VARIABLE):
    _folder = Path(os.environ[VARIABLE])
    after_import(_ACTOR_MODULE, functools.partial(watch_actor, _folder))
    after_import(_VLLM_MODULE, functools.partial(watch_vllm, _folder))
