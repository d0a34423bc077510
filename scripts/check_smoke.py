"""What must hold after recipes/qwen3_0.6b/smoke.sh: python -m scripts.check_smoke OUTPUT_DIR.

Every check reads what the run wrote: verl's metrics, and the weights' digests of verl_replay.weight_digests.
Exit status 1 where one fails.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from verl_replay.analysis import read_metrics

STEPS = 3
FIRST_REPLAY = 2  # warm-up 0: the first step finds an empty buffer
AGREE = 0.01  # root mean square of a token's log-prob, vLLM's less the actor's; a stale or wrong weight gives .1 to 10


def checks(metrics: pd.DataFrame, actor: dict[int, dict], engines: list[dict[int, dict]]) -> Iterator[tuple[bool, str]]:
    """(holds, what was looked at) of each check.

    Args:
        metrics: one row a step.
        actor: digests of the actor's weights by sync, sync 0 before the first step.
        engines: the same of each vLLM replica.
    """
    steps = [step for step in metrics.index if step > 0]
    yield steps == list(range(1, STEPS + 1)), f"steps run: {steps}"
    trained = metrics.loc[steps]
    for name in ("actor/pg_loss", "actor/grad_norm"):
        values = trained[name].tolist()
        yield all(map(math.isfinite, values)), f"{name} finite: {values}"
    yield (trained["actor/grad_norm"] > 0).all(), "gradients not zero"
    replayed = trained["replay/draw/rollouts"].astype(int).to_dict()
    held = all((count > 0) == (step >= FIRST_REPLAY) for step, count in replayed.items())
    yield held, f"rollouts replayed a step, the first from step {FIRST_REPLAY}: {replayed}"
    apart = [math.sqrt(2 * abs(value)) for value in trained["rollout_corr/k3_kl"]]  # k3 is half the mean square
    shown = ", ".join(f"{value:.1e}" for value in apart)
    yield (
        max(apart) < AGREE,
        f"log-probs of vLLM and actor, root mean square difference a step: {shown} (bound {AGREE})",
    )
    syncs = list(range(STEPS + 1))
    yield sorted(actor) == syncs, f"weight syncs of the actor: {sorted(actor)}"
    yield bool(engines), f"vLLM replicas that reported their weights: {len(engines)}"
    for engine in engines:
        same = [sync for sync in syncs if engine.get(sync) == actor.get(sync)]
        yield same == syncs, f"syncs after which all {len(actor.get(0, ()))} tensors of vLLM equal the actor's: {same}"
    for before, after in zip(syncs, syncs[1:], strict=False):
        pairs = zip(actor.get(before, {}).values(), actor.get(after, {}).values(), strict=False)
        moved = sum(one != other for one, other in pairs)
        yield moved > 0, f"tensors that step {after} changed: {moved} of {len(actor.get(after, {}))}"


def read_digests(path: Path) -> dict[int, dict[str, str]]:
    """The digests by sync of one file of weight_digests."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["sync"]: line["digests"] for line in lines}


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(f"usage: python -m scripts.check_smoke OUTPUT_DIR, got {arguments}", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    try:
        metrics = read_metrics(folder / "metrics.jsonl")
        actor = read_digests(folder / "weights/actor.jsonl")
        engines = [read_digests(path) for path in sorted((folder / "weights").glob("vllm_*.jsonl"))]
    except (OSError, ValueError) as error:
        print(f"check_smoke: {error}. Look at the run's log for what stopped it.", file=sys.stderr)
        return 1
    found = list(checks(metrics, actor, engines))
    for holds, text in found:
        print(f"{'ok    ' if holds else 'FAILED'} {text}")
    print(f"seconds a step: {metrics.loc[metrics.index > 0, 'timing_s/step'].round(1).tolist()}")
    return 0 if all(holds for holds, _ in found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
