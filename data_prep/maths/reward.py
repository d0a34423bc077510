"""verl's reward function for the data sets of data_prep.maths: 1 where the boxed answer is right, else 0.

reward.custom_reward_function.path=.../data_prep/maths/reward.py reward.custom_reward_function.name=compute_score

verl runs this file by its path, outside its package (pkg://data_prep.maths.reward works too), and calls it in threads.
Without torch or verl; math-verify is loaded in a process of its own (helper.py), which starts with the first answer
that needs it and ends with the reward worker. What counts as right is in grading.py.
"""

import importlib.util
import sys
from pathlib import Path

if importlib.util.find_spec("data_prep") is None:
    # Run by path from a checkout that is not installed. Appended, so that it cannot hide an installed module.
    sys.path.append(str(Path(__file__).resolve().parent.parent.parent))

from data_prep.maths.grading import Grader
from data_prep.maths.sources import DATASETS

if importlib.util.find_spec("math_verify") is None:
    raise ImportError("data_prep.maths.reward needs math-verify: pip install 'verl_replay[eval]'")

GRADER = Grader()  # one for all threads; GRADER.counts says what decided, and how many answers ran out of time


def compute_score(
    data_source: str, solution_str: object, ground_truth: str, extra_info: dict | None = None, **kwargs: object
) -> dict[str, float]:
    """The grade of one response. Never raises for a response; bounded in time and memory whatever it holds.

    Args:
        data_source: the name of a data set (sources.DATASETS), from the parquet row.
        solution_str: the decoded response, special tokens left out; anything that is not right scores 0.
        ground_truth: reward_model.ground_truth of the parquet row. Whether math-verify can read it is settled when
            the file is made; here an unreadable one is compared as text, so that no run ends in the middle for it.
        extra_info, kwargs: verl passes more than a rule needs.

    Returns:
        {"score", "acc"}, both 0.0 or 1.0. verl trains on score; its validation reports acc as mean@k.

    Raises:
        ValueError: unknown data_source, or a ground_truth that is not text or is empty: the parquet file is at fault.
        RuntimeError: the process for math-verify does not start.
    """
    del extra_info, kwargs  # Unused: the rules read the response only.
    if data_source not in DATASETS:
        raise ValueError(
            f"data_prep.maths.reward: no rule for data_source {data_source!r}; it grades {sorted(DATASETS)}; "
            "use parquet files of `python -m data_prep.maths`"
        )
    right = float(GRADER.grade(solution_str, ground_truth))
    return {"score": right, "acc": right}
