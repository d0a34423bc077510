"""Which rows are kept, and why the others are not."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from data_prep.maths.boxed import MAX_ANSWER
from data_prep.maths.contamination import BenchIndex, Match
from data_prep.maths.helper import Helpers
from data_prep.maths.reading import Row
from data_prep.maths.sources import Dataset
from data_prep.maths.texts import fingerprint
from data_prep.maths.writing import as_words, both_signs, clean, exact, key

LONGEST_PROBLEM = 20_000  # characters
CHINESE = range(0x4E00, 0xA000)


@dataclass
class Cleaned:
    """Rows kept, and counts of all others.

    Attributes:
        rows: in the order of the source.
        read: rows read.
        prompts: distinct prompts as they are written.
        torn: of these, prompts with different answers.
        chinese: rows with a Chinese character.
        dropped: reason -> rows.
        conflicts: for each problem with conflicting answers, the indices of its rows.
        ungradable: [index, answer] of rows dropped for their answer.
        contaminated: (index, match) of rows dropped for being a benchmark's problem.
    """

    rows: list[Row] = field(default_factory=list)
    read: int = 0
    prompts: int = 0
    torn: int = 0
    chinese: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    conflicts: list[list[int]] = field(default_factory=list)
    ungradable: list[tuple[int, str]] = field(default_factory=list)
    contaminated: list[tuple[int, Match]] = field(default_factory=list)


def clean_rows(
    dataset: Dataset,
    rows: Iterable[Row],
    helpers: Helpers,
    bench: BenchIndex | None,
    progress: Callable[[Iterable[Row], str], Iterable[Row]] = lambda rows, what: rows,
) -> Cleaned:
    """Drop what cannot be trained on or scored.

    In order: "proof" and the like (sources.Dataset.left_out), "empty" (no problem or no answer), "too long", "answer
    not gradable", "same prompt" (the same writing and an equal answer), "same problem" (the same texts.fingerprint and
    an equal answer), "conflicting answers" (the same fingerprint and different answers: all its rows), "benchmark
    problem". Rows of a benchmark are dropped for the first four reasons only: it is scored as it is published.

    Args:
        bench: what must not be trained on; None to look for nothing.
        progress: wraps rows that take long, with what is done, for a progress bar.
    """
    result, gradable = Cleaned(), Gradable(helpers)
    candidates: list[Row] = []
    written: dict[str, set[str]] = defaultdict(set)
    repeated: set[tuple[str, str | None]] = set()
    for row in progress(rows, "reading"):
        result.read += 1
        written[row.written].add(canonical(row.answer or ""))
        result.chinese += any(ord(character) in CHINESE for character in row.problem)
        # Before any other check: the hub's DAPO-Math-17k has every row a hundred times.
        if dataset.role == "train" and (row.problem, row.answer) in repeated:
            result.dropped["same prompt"] += 1
            continue
        repeated.add((row.problem, row.answer))
        candidates.append(row)
    result.prompts, result.torn = len(written), sum(len(answers) > 1 for answers in written.values())

    kept: list[Row] = []
    for row in progress(candidates, "answers"):
        reason = dataset.left_out.get(row.id) or unusable(row) or gradable.reason(row.answer or "")
        if reason:
            result.dropped[reason] += 1
            if reason == Gradable.REASON:
                result.ungradable.append((row.index, row.answer or ""))
        else:
            kept.append(row)
    if dataset.role == "train":
        kept = one_of_each(kept, result)
    for row in progress(kept, "comparing"):
        matches = bench.find(row.problem) if bench and dataset.role == "train" else []
        if matches:
            result.dropped["benchmark problem"] += 1
            result.contaminated += [(row.index, match) for match in matches]
        else:
            result.rows.append(row)
    return result


def unusable(row: Row) -> str | None:
    """The reason why a row cannot be used whatever its answer means, or None."""
    if not row.problem or not row.answer or not clean(row.answer):
        return "empty"
    return "too long" if len(row.problem) > LONGEST_PROBLEM or len(row.answer) > MAX_ANSWER else None


def canonical(answer: str) -> str:
    """The same text for answers that are equal by the rules of writing alone."""
    written = key(clean(answer))
    number = exact(written)
    return str(number) if number is not None else as_words(clean(answer)) or written


def one_of_each(rows: list[Row], result: Cleaned) -> list[Row]:
    """The first row of each problem; none of a problem whose rows disagree."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[fingerprint(row.problem)].append(row)
    first = set()
    for group in groups.values():
        if len({canonical(row.answer) for row in group}) > 1:
            result.conflicts.append([row.index for row in group])
            result.dropped["conflicting answers"] += len(group)
        else:
            first.add(group[0].index)
            texts = {row.problem for row in group}
            result.dropped += Counter({"same problem": len(texts) - 1, "same prompt": len(group) - len(texts)})
    return [row for row in rows if row.index in first]


class Gradable:
    """Whether a gold answer can be graded; each distinct one is asked once."""

    REASON = "answer not gradable"

    def __init__(self, helpers: Helpers) -> None:
        self.helpers = helpers
        self._known: dict[str, bool] = {}

    def reason(self, answer: str) -> str | None:
        """None for a number, words, or what math-verify parses and finds equal to itself."""
        cleaned = clean(answer)
        if exact(key(cleaned)) is not None or as_words(cleaned) is not None:
            return None
        if cleaned not in self._known:
            self._known[cleaned] = self.helpers.ask("parses", both_signs(cleaned)) == "right"
        return None if self._known[cleaned] else self.REASON
