"""verl's parquet format: one row a problem, the same bytes for the same problems."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.problems import Problem, Task
from verl_replay.files import written_whole

SCHEMA = pa.schema(
    [
        ("data_source", pa.string()),
        ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("ability", pa.string()),
        ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
        ("extra_info", pa.struct([("split", pa.string()), ("index", pa.int64())])),
    ]
)


def verl_rows(task: Task, problems: Sequence[Problem], split: str) -> list[dict]:
    """The rows of verl's RLHFDataset; extra_info.index is the row's number, by which verl tells prompts apart."""
    return [
        {
            "data_source": task.DATA_SOURCE,
            "prompt": [{"role": "user", "content": problem.prompt}],
            "ability": task.ABILITY,
            "reward_model": {"style": "rule", "ground_truth": problem.ground_truth},
            "extra_info": {"split": split, "index": index},
        }
        for index, problem in enumerate(problems)
    ]


def write_parquet(path: Path, task: Task, problems: Sequence[Problem], split: str) -> None:
    """Write the problems to `path`, whole or not at all."""
    table = pa.Table.from_pylist(verl_rows(task, problems, split), schema=SCHEMA)
    with written_whole(path) as unfinished:
        # Not through pandas: it writes its own version into the file.
        pq.write_table(table, unfinished)
