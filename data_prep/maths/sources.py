"""The data sets, one entry each: where they are, and how a row becomes a problem with its answer.

Imports nothing heavy: the reward reads the names here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

PROOF = "proof"  # reason for leaving a row out: it asks for a proof, which no answer settles


@dataclass(frozen=True)
class Dataset:
    """One data set.

    Attributes:
        name: of the output files, and verl's data_source, by which its validation metrics are grouped.
        role: "train" rows are trained on and cleaned, "bench" rows are evaluated and kept as they are.
        hub: repository on the Hugging Face hub; None for files only.
        subset, split: of the hub's repository.
        problem, answer: names of the hub's columns; verl's columns, and {problem, answer}, are read in any case.
        answer_in: where `answer` holds more than the answer: the last \\boxed{} of a solution, or what follows ####.
        files: names (without ending) of the data set's file within a folder that holds several.
        left_out: reasons for rows to leave out, by their id.
    """

    name: str
    role: Literal["train", "bench"]
    hub: str | None
    subset: str | None = None
    split: str = "train"
    problem: str = "problem"
    answer: str = "answer"
    answer_in: Literal["column", "boxed", "hashes"] = "column"
    files: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def output_split(self) -> str:
        """extra_info.split."""
        return "train" if self.role == "train" else "test"


_ALL = (
    Dataset("dapo_math_17k", "train", "BytedTsinghua-SIA/DAPO-Math-17k", files=("dapo-math-17k",)),
    Dataset(
        "math",
        "train",
        "DigitalLearningGmbH/MATH-lighteval",
        answer="solution",
        answer_in="boxed",
        files=("math_train",),
    ),
    Dataset(
        "gsm8k", "train", "openai/gsm8k", subset="main", problem="question", answer_in="hashes", files=("gsm8k_train",)
    ),
    Dataset("math500", "bench", "HuggingFaceH4/MATH-500", split="test"),
    Dataset("aime_2025", "bench", "MathArena/aime_2025"),
    Dataset("aime_2026", "bench", "MathArena/aime_2026"),
    Dataset("hmmt_feb_2025", "bench", "MathArena/hmmt_feb_2025"),
    Dataset(
        "hmmt_feb_2026", "bench", "MathArena/hmmt_feb_2026", left_out={str(number): PROOF for number in (31, 32, 33)}
    ),
    # Not of the paper's five.
    Dataset("aime_2024", "bench", "HuggingFaceH4/aime_2024"),
    Dataset("amc_2023", "bench", "math-ai/amc23", split="test", problem="question"),
    Dataset(
        "math_test", "bench", "DigitalLearningGmbH/MATH-lighteval", split="test", answer="solution", answer_in="boxed"
    ),
    Dataset("gsm8k_test", "bench", "openai/gsm8k", subset="main", split="test", problem="question", answer_in="hashes"),
)
DATASETS: dict[str, Dataset] = {dataset.name: dataset for dataset in _ALL}
TRAIN = tuple(dataset.name for dataset in _ALL if dataset.role == "train")
BENCH = ("math500", "aime_2025", "aime_2026", "hmmt_feb_2025", "hmmt_feb_2026")  # the paper's five
GROUPS = {"bench": BENCH, "train": TRAIN, "all": BENCH + TRAIN}  # benchmarks first: train is compared with them

# Instructions that come with the data. They go, so that a problem reads the same from every source and one
# instruction is left, that of --suffix.
_INSTRUCTIONS = (
    re.compile(
        r"\A\s*Solve the following math problem step by step\. The last line of your response should be of the form "
        r"Answer: \$?\\?(?:Answer|boxed\{Answer\}) \(without quotes\) where \$?Answer is the answer to the problem\.\s*"
    ),
    re.compile(r"""\s*Remember to put your answer on its own line after ["“]Answer:["”]\.?\s*\Z"""),
    re.compile(r"\s*Let's think step by step and output the final answer (?:after \"####\"|within \\boxed\{\})\.\s*\Z"),
    re.compile(r"\s*Please reason step by step, and put your final answer within \\boxed\{\}\.\s*\Z"),
)


def without_instructions(prompt: str) -> str:
    """The problem alone: without the instruction texts of DAPO-Math-17k and of verl's own preprocessing."""
    for instruction in _INSTRUCTIONS:
        prompt = instruction.sub("", prompt)
    return prompt.strip()


def dataset_names(asked: list[str]) -> list[str]:
    """Names of data sets for names of data sets or groups; each once, benchmarks first.

    Raises:
        ValueError: there is no such data set.
    """
    names: set[str] = set()
    for name in asked:
        if name not in DATASETS and name not in GROUPS:
            raise ValueError(f"data_prep.maths: no data set {name!r}; choose of {[*GROUPS, *DATASETS]}")
        names.update(GROUPS.get(name, (name,)))
    return sorted(names, key=lambda name: (DATASETS[name].role != "bench", list(DATASETS).index(name)))


def row_id(row: Mapping[str, Any]) -> str | None:
    """What the data calls the row, as text; None where it says nothing."""
    extra = row.get("extra_info") or {}
    for value in (row.get("id"), row.get("unique_id"), row.get("problem_idx"), extra.get("id"), extra.get("index")):
        if value is not None:
            return str(value)
    return None
