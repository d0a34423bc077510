"""The tasks by name. A third one is one more module of problems.Task's shape and one more line here."""

from data_prep import addition, countdown
from data_prep.problems import Task

TASKS: dict[str, Task] = {"addition": addition, "countdown": countdown}


def task_named(name: str) -> Task:
    """The task module of that name.

    Raises:
        ValueError: there is no such task.
    """
    if name not in TASKS:
        raise ValueError(f"data_prep: no task {name!r}; choose one of {sorted(TASKS)}")
    return TASKS[name]
