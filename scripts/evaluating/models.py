"""The model to evaluate: a Hugging Face folder or hub name, or a verl checkpoint that verl's own merger merges."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from verl_replay.dry_run.inputs import HUB_NAME
from verl_replay.platforms.cpu_environment import fill_environment

WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
_DIGESTED = (".safetensors", ".bin", ".json", ".jinja", ".txt", ".model")
_BLOCK = 1 << 24  # bytes read at once
MERGED, SOURCE = "model", "merged_from.json"


class Source(NamedTuple):
    """Where the weights are.

    Attributes:
        folder: of a Hugging Face model, or of FSDP shards.
        shards: the files to merge; none where the folder is a model already.
    """

    folder: Path
    shards: tuple[Path, ...] = ()


def find_model(path: Path) -> Source:
    """What `path` holds. A checkpoint that verl saved with hf_model is used as it is.

    Raises:
        ValueError: no model: what is there, and what to give instead.
    """
    if not path.is_dir():
        if HUB_NAME.fullmatch(str(path)):
            return Source(_from_hub(str(path)))
        raise ValueError(
            f"{path} is not a folder. Give a Hugging Face model's folder or hub name, or verl's global_step_N."
        )
    if _is_model(path):
        return Source(path)
    actor = path / "actor" if (path / "actor").is_dir() else path
    if _is_model(actor / "huggingface"):
        return Source(actor / "huggingface")
    if (actor / "fsdp_config.json").exists():
        return Source(actor, _shards(actor))
    if (actor / "dist_ckpt").is_dir() or (actor / "model").is_dir():
        raise ValueError(
            f"{path} is a Megatron checkpoint, which is merged on its own: python -m verl.model_merger merge --backend "
            f"megatron --local_dir {actor} --target_dir FOLDER. Then give FOLDER."
        )
    if steps := sorted(path.glob("global_step_*"), key=lambda step: (len(step.name), step.name)):
        raise ValueError(f"{path} holds several checkpoints. Give one of them, e.g. {steps[-1]}.")
    raise ValueError(f"{path} holds no model: neither config.json and weights nor a verl checkpoint's actor folder.")


def _from_hub(name: str) -> Path:
    """The folder of a model of the hub, fetched unless it is in the cache.

    Raises:
        ValueError: there is no such folder or model, or no network.
    """
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=[f"*{suffix}" for suffix in _DIGESTED]))
    except OSError as error:  # the hub's own errors are of this kind too
        raise ValueError(
            f"{name} is not a folder, and as a model of the hub it cannot be fetched ({type(error).__name__}). Check "
            "the name, or fetch it where there is a network (hf download) and give the folder."
        ) from error


def _is_model(folder: Path) -> bool:
    return (folder / "config.json").exists() and any((folder / name).exists() for name in WEIGHTS)


def _shards(actor: Path) -> tuple[Path, ...]:
    """The files of all ranks.

    Raises:
        ValueError: some of them are missing.
    """
    try:
        ranks = int(json.loads((actor / "fsdp_config.json").read_text())["world_size"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{actor}/fsdp_config.json does not name the world size ({error!r}). Save again.") from error
    shards = tuple(actor / f"model_world_size_{ranks}_rank_{rank}.pt" for rank in range(ranks))
    missing = [shard.name for shard in shards if not shard.exists()]
    if missing:
        raise ValueError(
            f"{actor} lacks {missing[:3]} of {ranks} FSDP shards. Copy them here, or save the checkpoint again with "
            "actor_rollout_ref.actor.checkpoint.save_contents=[model]."
        )
    if not (actor / "huggingface" / "config.json").exists():
        raise ValueError(f"{actor}/huggingface/config.json is missing: verl's merger needs it. Copy it from the model.")
    return shards


def merge(source: Source, output: Path, *, environ: Mapping[str, str]) -> Path:
    """Merge FSDP shards into output/model by verl's merger (which rounds to bfloat16), once for the same shards.

    Args:
        environ: of the merger's process.

    Returns:
        The model's folder.

    Raises:
        ValueError: the merger failed.
    """
    target, unfinished = output / MERGED, output / f".{MERGED}.unfinished"
    came_from = {shard.name: [shard.stat().st_size, shard.stat().st_mtime_ns] for shard in source.shards}
    if _read(target / SOURCE) == came_from:
        return target
    for folder in (unfinished, target):
        shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "verl.model_merger", "merge", "--backend", "fsdp"]
    command += ["--local_dir", str(source.folder), "--target_dir", str(unfinished)]
    env = dict(environ)
    fill_environment(env)  # merging is work of a CPU, wherever the model runs afterwards
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode or not _is_model(unfinished):
        raise ValueError(
            f"verl's merger could not merge {source.folder} (status {done.returncode}):\n{done.stderr[-1500:]}"
        )
    if (unfinished / "lora_adapter").is_dir():
        _merge_adapter(unfinished)
    (unfinished / SOURCE).write_text(json.dumps(came_from) + "\n")
    os.replace(unfinished, target)
    return target


def _merge_adapter(folder: Path) -> None:
    """verl's merger leaves a LoRA adapter beside the base weights: without it the base model would be evaluated.

    Raises:
        ValueError: the adapter's weight is not known.
    """
    if not json.loads((folder / "lora_adapter" / "adapter_config.json").read_text()).get("lora_alpha"):
        raise ValueError(
            "the LoRA adapter has no lora_alpha (lora_train_meta.json is missing beside the shards), so its "
            "weight is unknown. Copy that file from the run, or save the checkpoint again."
        )
    import peft
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(folder)
    peft.PeftModel.from_pretrained(base, folder / "lora_adapter").merge_and_unload().save_pretrained(folder)
    shutil.rmtree(folder / "lora_adapter")


def model_digest(folder: Path) -> str:
    """Of weights, configuration and tokenizer: two models with one digest give the same answers."""
    digest = xxhash.xxh3_128()
    for path in sorted(folder.iterdir()):
        if path.suffix in _DIGESTED and path.name != SOURCE and path.is_file():
            digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
            with path.open("rb") as file:
                while block := file.read(_BLOCK):
                    digest.update(block)
    return digest.hexdigest()


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None
