"""Makes everything that a training run on a CPU needs: a tiny base policy and the two parquet files of a task.

python -m data_prep.make_tiny --task addition --output DIR   ->   DIR/model, DIR/train.parquet, DIR/heldout.parquet
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from data_prep.base_policy import BaseSettings, make_base, random_streams
from data_prep.parquet import write_parquet
from data_prep.problems import Problem, draw_problems
from data_prep.tasks import TASKS, task_named
from data_prep.tiny_model import SupervisedSettings
from data_prep.tokenizer import build_tokenizer, prompt_ids, response_ids

TRAIN_ROWS = 4096
HELDOUT_ROWS = 64
SECONDS_A_STEP, SECONDS_BESIDE_STEPS = 0.05, 8  # measured on one core


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m data_prep.make_tiny", description=__doc__.splitlines()[0])
    parser.add_argument("--task", required=True, choices=sorted(TASKS))
    parser.add_argument("--output", required=True, type=Path, metavar="DIR")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train-rows", type=int, default=TRAIN_ROWS, help="default %(default)s")
    parser.add_argument("--heldout-rows", type=int, default=HELDOUT_ROWS, help="default %(default)s")
    parser.add_argument("--sft-steps", type=int, help="fewer steps make a throw-away model; the default is the task's")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of the training; default %(default)s")
    parser.add_argument("--force", action="store_true", help="make the model again even if DIR/model is up to date")
    return parser.parse_args(arguments)


def supervised_settings(task_name: str, steps: int | None) -> SupervisedSettings:
    """The task's recipe; with `steps`, that many optimizer steps on no more demonstrations than they can use."""
    recipe = SupervisedSettings(steps=task_named(task_name).SUPERVISED_STEPS)
    if steps is None:
        return recipe
    return replace(recipe, steps=steps, demonstrations=min(recipe.demonstrations, max(1, steps) * recipe.batch_size))


def longest(problems: list[Problem]) -> tuple[int, int]:
    """Tokens of the longest prompt (chat template included) and of the longest right response (its end included)."""
    tokenizer = build_tokenizer()
    return (
        max(len(prompt_ids(tokenizer, problem.prompt)) for problem in problems),
        max(len(response_ids(tokenizer, problem.answer)) for problem in problems),
    )


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit status."""
    options = parse(arguments)
    try:
        run(options)
    except ValueError as error:
        print(f"make_tiny: {error}", file=sys.stderr)
        return 2
    return 0


def run(options: argparse.Namespace) -> None:
    """Write the parquet files, make or reuse the base policy, and say what came out."""
    task, streams = task_named(options.task), random_streams(options.seed)
    settings = BaseSettings(
        task=options.task,
        seed=options.seed,
        threads=options.threads,
        supervised=supervised_settings(options.task, options.sft_steps),
    )
    train = draw_problems(task, streams["train"], options.train_rows, heldout=False)
    heldout = draw_problems(task, streams["heldout"], options.heldout_rows, heldout=True)
    write_parquet(options.output / "train.parquet", task, train, "train")
    write_parquet(options.output / "heldout.parquet", task, heldout, "heldout")
    print(f"{options.task}: {len(train)} training and {len(heldout)} held-out problems in {options.output}", flush=True)

    seconds = SECONDS_BESIDE_STEPS + SECONDS_A_STEP * settings.supervised.steps
    model = options.output / "model"
    print(f"{options.task}: base policy in {model}; about {seconds:.0f} s on an idle core", flush=True)
    manifest, reused = make_base(model, settings, force=options.force)

    accuracy = manifest["accuracy"]
    prompt_tokens, response_tokens = longest(train + heldout)
    made = "reused, nothing to do" if reused else f"made in {manifest['seconds']:.0f} s"
    print(
        f"{options.task}: {made}; {manifest['parameters']:,} parameters\n"
        f"  accuracy on {accuracy['n']} held-out problems: mean@{accuracy['k']} at temperature 1 "
        f"{accuracy['mean_at_k']:.3f}, greedy {accuracy['greedy']:.3f}\n"
        f"  e.g. {heldout[0].prompt} -> {heldout[0].answer}\n"
        f"  verl needs at least data.max_prompt_length={prompt_tokens} data.max_response_length={response_tokens}"
    )


if __name__ == "__main__":
    sys.exit(main())
