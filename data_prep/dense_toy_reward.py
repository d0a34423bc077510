"""A toy reward for runs that show that the machinery works: dense, so that a policy with random weights has a signal.

Not a measure of anything: a random policy answers no problem, so a right-or-wrong reward would be 0 for all its
rollouts, every group without variance, and nothing left to train on or to replay.
"""


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict | None = None, **kwargs: object
) -> float:
    """Share of the response's characters that are even digits, 0 to 1; 0 for an empty response."""
    del data_source, ground_truth, extra_info, kwargs  # Unused: only the characters count.
    return sum(character in "02468" for character in solution_str) / max(1, len(solution_str))
