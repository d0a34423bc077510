"""One evaluation: everything is checked before anything is generated or written."""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape

from scripts.evaluating import prompts, scoring
from scripts.evaluating.engine import Engine, Sampling
from scripts.evaluating.grading import Grader, check_reward, default_workers, load_reward
from scripts.evaluating.models import find_model, merge, model_digest
from scripts.evaluating.problems import Benchmark, read_benchmarks
from scripts.evaluating.progress import Watch
from scripts.evaluating.report import markdown, plot
from scripts.evaluating.running import Timing, run
from scripts.evaluating.scoring import RESULTS, TOO_LONG
from scripts.evaluating.store import Generation, Store, check_manifest, write_json, write_text

REPORT, PLOT = "results.md", "plot.png"


@dataclass
class Session:
    """What an evaluation works on, checked.

    Attributes:
        model: folder of the model, merged if need be.
        context: tokens of prompt and answer.
        long_prompts: (benchmark, id) of prompts that leave no room for an answer.
        base: results of the baseline.
    """

    given: argparse.Namespace
    settings: dict[str, Any]
    model: Path
    benchmarks: list[Benchmark]
    prompts: dict[tuple[str, str], list[int]]
    long_prompts: set[tuple[str, str]]
    context: int
    tokenizer: Any
    base: dict[str, Any] | None
    store: Store
    console: Console

    @classmethod
    def open(cls, given: argparse.Namespace, sampling: Sampling) -> Session:
        """Check all that was given, merge the model, open the file of generations.

        Raises:
            ValueError: rule, value, remedy.
        """
        console = Console(stderr=True, soft_wrap=True)
        if given.limit is not None and given.limit < 1:
            raise ValueError(f"--limit must be at least 1, got {given.limit}. Leave it out for all problems.")
        source = find_model(given.model)
        benchmarks = read_benchmarks(given.data, suffix=given.suffix, limit=given.limit)
        data = {benchmark.name: benchmark.digest for benchmark in benchmarks}
        check_reward(load_reward(given.reward), benchmarks)
        base = scoring.read_results(given.baseline) if given.baseline else None
        if base:
            scoring.check_baseline(base, data, given.baseline)
        if given.generation_config:
            prompts.end_tokens(given.generation_config, must=True)
        template = given.chat_template.read_text() if given.chat_template else None
        given.output.mkdir(parents=True, exist_ok=True)
        model = source.folder
        if source.shards:
            console.print(f"merging {len(source.shards)} FSDP shards by verl's merger, in bfloat16")
            model = merge(source, given.output, environ=os.environ)
        tokenizer = prompts.load_tokenizer(model, template)
        context = prompts.context_length(model, given.max_model_len)
        rendered = prompts.render(tokenizer, benchmarks)
        settings = {
            "model": model_digest(model),
            "data": data,
            "chat_template": hashlib.sha256(tokenizer.chat_template.encode()).hexdigest(),
            "sampling": asdict(sampling),
            "context": context,
            "end_tokens": prompts.end_tokens(given.generation_config or model),
            "dtype": given.dtype,
            "reward": _named(given.reward),
            "too_long": given.too_long,
        }
        long_prompts = prompts.too_long(rendered, context, given.too_long)
        check_manifest(given.output, settings)
        store = Store(given.output)
        return cls(given, settings, model, benchmarks, rendered, long_prompts, context, tokenizer, base, store, console)

    def generate(self, make_engine: Callable[[], Engine]) -> Timing:
        """Sample and grade what is missing. The reward's processes start while the engine does."""
        sampling = self.settings["sampling"]
        wanted = prompts.requests(self.benchmarks, self.prompts, n=sampling["n"], seed=sampling["seed"])
        have = {generation.key for generation in self.store.generations}
        missing = [request for request in wanted if request.key not in have]
        hopeless = [request.key for request in missing if request.key[:2] in self.long_prompts]
        self.store.append([Generation(*key, 0, TOO_LONG, "", 0.0) for key in hopeless], now=0.0)
        missing = [request for request in missing if request.key[:2] not in self.long_prompts]
        if have:
            self.console.print(f"{len(have)} answers are there already, {len(missing)} are missing")
        if not missing:
            self.store.flush()
            return Timing()
        grader = Grader(self.given.reward, default_workers())
        try:
            self.console.print("starting vLLM")
            engine = make_engine()
            with Watch(self.console, len(missing)) as watch:
                return run(engine, missing, self.store, grader, self._decode, tick=watch.tick)
        finally:
            grader.close()

    def report(self, timing: Timing) -> dict[str, Any]:
        """Score all generations, print and write results.json, results.md, plot.png."""
        rng = np.random.default_rng(self.settings["sampling"]["seed"])
        n, of = self.settings["sampling"]["n"], self.store.generations
        benchmarks = {
            benchmark.name: scoring.score_benchmark(
                [p.id for p in benchmark.problems], [g for g in of if g.benchmark == benchmark.name], n=n, rng=rng
            )
            for benchmark in self.benchmarks
        }
        averaged = scoring.average(benchmarks, rng)
        results = {
            "model": str(self.given.model),
            "settings": self.settings,
            "benchmarks": benchmarks,
            "average": averaged,
            "baseline": self._compared(benchmarks, averaged, rng),
            "notes": self._notes(),
            "timing": timing.record(),
        }
        text = markdown(results)
        write_json(self.given.output / RESULTS, results)
        write_text(self.given.output / REPORT, text)
        plot(results, self.base, self.given.output / PLOT)
        Console(soft_wrap=True).print(escape(text))
        return results

    def close(self) -> None:
        self.store.close()

    def _decode(self, ids: Any) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def _compared(
        self, benchmarks: Mapping[str, Any], averaged: Mapping[str, Any], rng: np.random.Generator
    ) -> dict[str, Any] | None:
        if self.base is None:
            return None
        differences = scoring.compare(benchmarks, averaged, self.base, rng)
        return {"folder": str(self.given.baseline), "model": self.base["model"], "differences": differences}

    def _notes(self) -> list[str]:
        notes = []
        fitting = [len(ids) for key, ids in self.prompts.items() if key not in self.long_prompts]
        longest, most = max(fitting, default=0), self.settings["sampling"]["max_tokens"]
        if fitting and longest + most > self.context:
            notes.append(
                f"The longest prompt has {longest} tokens: with max_tokens {most} its answers are cut by the context "
                f"of {self.context} tokens."
            )
        if self.base:
            ours, theirs = self.settings, self.base["settings"]
            names = ("sampling", "context", "end_tokens", "dtype", "chat_template", "reward", "too_long")
            if other := [name for name in names if ours[name] != theirs.get(name)]:
                notes.append(f"The baseline was evaluated with other settings: {', '.join(other)}.")
        return notes


def _named(reward: str) -> str:
    """The file's name without where it lies: the same reward, from another checkout."""
    where, _, name = reward.rpartition(":")
    path = Path(where)
    return f"{'/'.join(path.parts[-3:]) if where.endswith('.py') else where}:{name}"
