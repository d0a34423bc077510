"""A model or a verl checkpoint -> n answers a problem with vLLM -> mean@k, pass@k, lengths, AES.

    python -m scripts.evaluate --model checkpoints/global_step_200 --data math500.parquet aime.jsonl --output eval/ours
    python -m scripts.evaluate --model Qwen3-0.6B-Base --data ... --output eval/base
    python -m scripts.evaluate --model ... --data ... --output eval/ours --baseline eval/base     # differences and AES

Data: parquet files with verl's columns, or JSON lines of {id, problem, answer}. Every answer is kept in
OUTPUT/generations.jsonl. Stopped by Ctrl-C, a kill or a power cut, the same command goes on where it stopped. Runs on
GPUs and on vLLM's CPU build. Writes OUTPUT/results.json, results.md and plot.png.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scripts.evaluating.engine import Engine, Sampling, Vllm, on_cpu
from scripts.evaluating.problems import SUFFIX
from scripts.evaluating.prompts import REFUSE, WRONG
from verl_replay.guard import run_guarded
from verl_replay.platforms.cpu_environment import fill_environment

ROOT = Path(__file__).resolve().parent.parent
REWARD = f"{ROOT / 'data_prep/maths/reward.py'}:compute_score"
INSIDE = "VERL_REPLAY_EVALUATE"  # set in the process that does the work


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model",
        type=Path,
        required=True,
        help="Hugging Face folder or hub name, or verl's global_step_N (merged into OUTPUT/model)",
    )
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="parquet or jsonl files, one a benchmark")
    parser.add_argument("--output", type=Path, required=True, help="folder; an unfinished evaluation there goes on")
    parser.add_argument("--baseline", type=Path, help="--output folder of another evaluation on the same data")
    parser.add_argument("--reward", default=REWARD, help="path_or_module:name of a verl reward function")
    parser.add_argument("--suffix", default=SUFFIX, help="follows each problem of a jsonl file (default: %(default)r)")
    parser.add_argument("--chat-template", type=Path, help="file; default is the tokenizer's own")
    parser.add_argument("--limit", type=int, help="only the first problems of each file")
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument("--n", type=int, default=16, help="answers a problem (default: %(default)s)")
    sampling.add_argument("--temperature", type=float, default=1.0, help="default: %(default)s")
    sampling.add_argument("--top-p", type=float, default=1.0, help="default: %(default)s")
    sampling.add_argument("--top-k", type=int, default=-1, help="-1 is all (default)")
    sampling.add_argument("--max-tokens", type=int, default=4096, help="of an answer (default: %(default)s)")
    sampling.add_argument("--seed", type=int, default=0, help="every answer has a seed of its own, derived from this")
    engine = parser.add_argument_group("vLLM")
    engine.add_argument("--tensor-parallel-size", type=int, default=1)
    engine.add_argument("--dtype", default="auto", choices=("auto", "bfloat16", "float16", "float32"))
    engine.add_argument("--gpu-memory-utilization", type=float, default=0.9)
    engine.add_argument("--max-model-len", type=int, help="tokens of prompt and answer; default is the model's")
    engine.add_argument(
        "--generation-config",
        type=Path,
        help="folder of a generation_config.json whose end tokens count; default is the model's own. The Qwen3 recipes "
        "train with recipes/qwen3/generation",
    )
    engine.add_argument("--too-long", choices=(REFUSE, WRONG), default=REFUSE, help="prompts that leave no room")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parse(arguments)  # --help and misspelt options end here
    if INSIDE not in os.environ:
        return _guarded(arguments)
    try:
        evaluate(parse(arguments), _vllm)
    except (ValueError, OSError) as error:
        print(f"evaluate: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _guarded(arguments: Sequence[str]) -> int:
    """The work in a process of its own: whatever ends it, nothing of vLLM stays behind."""
    env = {**os.environ, INSIDE: "1"}
    cpu = on_cpu(env)
    env.setdefault("VLLM_LOGGING_LEVEL", "ERROR" if cpu else "WARNING")  # on a CPU it warns of what it is
    env.setdefault("TOKENIZERS_PARALLELISM", "false")
    if cpu:
        fill_environment(env)
        env.setdefault(
            "VLLM_ENABLE_V1_MULTIPROCESSING", "0"
        )  # the engine in this process: starts sooner, and no GPU waits
    status = run_guarded([sys.executable, "-m", "scripts.evaluate", *arguments], env=env)
    if status >= 128:
        print("evaluate: stopped. The same command goes on from here.", file=sys.stderr)
    return status


def _vllm(given: argparse.Namespace, model: Path, sampling: Sampling, context: int) -> Engine:
    return Vllm(
        model,
        sampling,
        context=context,
        tensor_parallel_size=given.tensor_parallel_size,
        dtype=given.dtype,
        gpu_memory_utilization=given.gpu_memory_utilization,
        generation_config=str(given.generation_config) if given.generation_config else "auto",
    )


MakeEngine = Callable[[argparse.Namespace, Path, Sampling, int], Engine]


def evaluate(given: argparse.Namespace, make_engine: MakeEngine) -> dict[str, Any]:
    """Check, merge, generate what is missing, score, write.

    Args:
        make_engine: called only if there is something to generate.

    Returns:
        What results.json holds.

    Raises:
        ValueError: something that was given cannot work: rule, value, remedy.
    """
    from scripts.evaluating.session import Session  # libraries that --help does not need

    sampling = Sampling(given.n, given.temperature, given.top_p, given.top_k, given.max_tokens, given.seed)
    session = Session.open(given, sampling)
    try:
        timing = session.generate(lambda: make_engine(given, session.model, sampling, session.context))
        return session.report(timing)
    finally:
        session.close()


if __name__ == "__main__":
    sys.exit(main())
