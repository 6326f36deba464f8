"""The advantages of every estimator, written down again from its definition, without torch.

`rows` are the rows of one batch: "uid" of the group, "rewards" and, with a critic, "values" of every token.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import mean, stdev
from typing import Any

Row = dict[str, Any]


def by_group(rows: Sequence[Row], weigh: Callable[[float, list[float]], float]) -> list[list[float]]:
    """Returns every row's advantage, the same at each token, from its reward and its group's rewards."""
    groups = defaultdict(list)
    for row in rows:
        groups[row["uid"]].append(sum(row["rewards"]))
    return [[weigh(sum(row["rewards"]), groups[row["uid"]])] * len(row["rewards"]) for row in rows]


def whitened(advantages: Sequence[Sequence[float]]) -> list[list[float]]:
    """Returns the tokens' values with mean 0 and variance 1 over the batch."""
    tokens = [value for row in advantages for value in row]
    center, scale = mean(tokens), math.sqrt(stdev(tokens) ** 2 + 1e-8)
    return [[(value - center) / scale for value in row] for row in advantages]


def grpo(rows: Sequence[Row]) -> list[list[float]]:
    """Arxiv 2402.03300: reward minus the group's mean, over its standard deviation."""
    return by_group(rows, lambda reward, group: (reward - mean(group)) / (stdev(group) + 1e-6))


def dr_grpo(rows: Sequence[Row]) -> list[list[float]]:
    """Arxiv 2503.20783: reward minus the group's mean."""
    return by_group(rows, lambda reward, group: reward - mean(group))


def rloo(rows: Sequence[Row]) -> list[list[float]]:
    """Arxiv 2402.14740: reward minus the mean of the others of the group."""
    return by_group(rows, lambda reward, group: reward - (sum(group) - reward) / (len(group) - 1))


def to_come(row: Row) -> list[float]:
    """Returns the rewards from each token on."""
    return [sum(row["rewards"][token:]) for token in range(len(row["rewards"]))]


def reinforce_plus_plus(rows: Sequence[Row]) -> list[list[float]]:
    """Arxiv 2501.03262 without discount: the rewards to come, normalised over the batch's tokens."""
    return whitened([to_come(row) for row in rows])


def reinforce_plus_plus_baseline(rows: Sequence[Row]) -> list[list[float]]:
    """The reward minus the group's mean, normalised over the batch's tokens."""
    return whitened(dr_grpo(rows))


def gae(rows: Sequence[Row]) -> list[list[float]]:
    """Arxiv 1506.02438 with gamma = lambda = 1: rewards to come minus the value, normalised over the batch's tokens."""
    return whitened([
        [reward - value for reward, value in zip(to_come(row), row["values"], strict=True)] for row in rows
    ])


EXPECTED = {
    "gae": gae,
    "grpo": grpo,
    "sara_grpo": grpo,
    "rloo": rloo,
    "reinforce_plus_plus": reinforce_plus_plus,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
}
