"""verl's reward function for the tasks here.

reward.custom_reward_function.path=.../data_prep/reward.py reward.custom_reward_function.name=compute_score

verl runs this file by its path, outside its package (pkg://data_prep.reward works too). Without torch or verl, so that
a reward worker loads it at once.
"""

import importlib.util
import sys
from pathlib import Path

if importlib.util.find_spec("data_prep") is None:
    # Run by path from a checkout that is not installed. Appended, so that it cannot hide an installed module.
    sys.path.append(str(Path(__file__).resolve().parent.parent))

from data_prep.tasks import TASKS

GRADES = {task.DATA_SOURCE: task.grade for task in TASKS.values()}


def compute_score(
    data_source: str, solution_str: object, ground_truth: str, extra_info: dict | None = None, **kwargs: object
) -> dict[str, float]:
    """The task's grade of one response.

    Args:
        data_source: "verl_replay/addition" or "verl_replay/countdown", from the parquet row.
        solution_str: the decoded response, special tokens left out; anything that is not right scores 0.
        ground_truth: reward_model.ground_truth of the parquet row.
        extra_info, kwargs: verl passes more than a rule needs.

    Returns:
        {"score", "acc"}, both 0.0 or 1.0. verl trains on score; its validation reports acc as mean@k.

    Raises:
        ValueError: unknown data_source, or a ground_truth that is not of the task's form.
    """
    del extra_info, kwargs  # Unused: the rule reads the response only.
    if data_source not in GRADES:
        raise ValueError(
            f"data_prep.reward: no rule for data_source {data_source!r}; it grades {sorted(GRADES)}; "
            "use parquet files of data_prep.make_tiny, or add the task to data_prep/tasks.py"
        )
    right = float(GRADES[data_source](ground_truth, solution_str))
    return {"score": right, "acc": right}
