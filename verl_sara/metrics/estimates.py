"""Numbers with their 95 % intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import add

Z95 = 1.959963984540054
"""97.5 % point of the standard normal distribution."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its 95 % interval; both ends are NaN where no interval can be given."""

    value: float
    low: float = math.nan
    high: float = math.nan

    def as_list(self) -> list[float | None]:
        """Returns [value, low, high] with None for NaN, for JSON."""
        return [None if math.isnan(x) else x for x in (self.value, self.low, self.high)]


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Estimate:
    """Returns sum(numerators) / sum(denominators) with a delta-method interval over the pairs."""
    total, n = sum(denominators), len(denominators)
    if not total:
        return Estimate(math.nan)
    value = sum(numerators) / total
    if n < 2:
        return Estimate(value)
    squares = sum((x - value * y) ** 2 for x, y in zip(numerators, denominators, strict=True))
    half = Z95 * math.sqrt(squares * n / (n - 1)) / total
    return Estimate(value, value - half, value + half)


def saving(cost: Estimate, baseline: Estimate) -> Estimate:
    """Returns 1 - cost / baseline for two independent estimates, interval on the log ratio."""
    if not (cost.value > 0 and baseline.value > 0):
        return Estimate(math.nan)
    quotient = cost.value / baseline.value
    spread = math.hypot(*((e.high - e.low) / (2 * e.value) for e in (cost, baseline)))
    return Estimate(1 - quotient, 1 - quotient * math.exp(spread), 1 - quotient * math.exp(-spread))


def proportion(count: int, total: int) -> Estimate:
    """Returns count / total with its Wilson interval, NaN if `total` is 0."""
    if not total:
        return Estimate(math.nan)
    share, square = count / total, Z95 * Z95
    centre = (share + square / (2 * total)) / (1 + square / total)
    half = Z95 * math.sqrt(share * (1 - share) / total + square / (4 * total * total)) / (1 + square / total)
    return Estimate(share, max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half)))


def clopper_pearson(count: int, total: int, tail: float = 0.025) -> Estimate:
    """Returns count / total with its exact binomial interval, NaN if `total` is 0.

    Args:
      count: Successes, in [0, total].
      total: Trials.
      tail: Probability that each end leaves out, in (0, 0.5).
    """
    if not total:
        return Estimate(math.nan)
    return Estimate(count / total, 1.0 - _upper(total - count, total, tail), _upper(count, total, tail))


def _upper(count: int, total: int, tail: float) -> float:
    """Returns the rate at which `count` successes or fewer have the probability `tail`, by bisection."""
    if count == total:
        return 1.0
    low, high = count / total, 1.0
    while low < (middle := (low + high) / 2) < high:
        if _prob_at_most(count, total, middle) > tail:
            low = middle
        else:
            high = middle
    return high


def _prob_at_most(count: int, total: int, rate: float) -> float:
    """Returns P(X <= count) of a binomial with a mean above `count`: terms fall from `count` down."""
    log_term = math.lgamma(total + 1) - math.lgamma(count + 1) - math.lgamma(total - count + 1)
    term = math.exp(log_term + count * math.log(rate) + (total - count) * math.log1p(-rate))
    result, odds = 0.0, (1.0 - rate) / rate
    for x in range(count, -1, -1):
        result += term
        term *= odds * x / (total - x + 1)
        if term < 1e-17 * result:
            break
    return result


class RatioOfRatios:
    """Running (sum a / sum b) / (sum c / sum d) of paired terms, with a delta-method interval.

    Memory does not grow with the number of terms.
    """

    def __init__(self) -> None:
        self.count = 0
        self._sums = [0.0] * 4
        self._products = [0.0] * 10

    def add(self, a: float, b: float, c: float, d: float) -> None:
        """Takes one pair of pairs."""
        self.add_sums(1, b, d, a=a, c=c, aa=a * a, cc=c * c, ac=a * c)

    def add_sums(self, count: int, b: float, d: float, *, a: float, c: float, aa: float, cc: float, ac: float) -> None:
        """Takes `count` pairs of pairs that share b and d, as the sums of their a, c, a a, c c and a c."""
        self.count += count
        terms = (a, b * count, c, d * count)
        products = (aa, b * b * count, cc, d * d * count, a * b, ac, a * d, b * c, b * d * count, c * d)
        self._sums = list(map(add, self._sums, terms))
        self._products = list(map(add, self._products, products))

    def estimate(self) -> Estimate:
        """Returns the ratio, its interval on the log scale; NaN if a sum is 0."""
        if not all(self._sums):
            return Estimate(math.nan)
        a, b, c, d = self._sums
        value = (a / b) / (c / d)
        if self.count < 2:
            return Estimate(value)
        w = (1 / a, -1 / b, -1 / c, 1 / d)
        pairs = ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))
        # the weighted terms add up to 0, so their second moment is their variance
        squares = sum(w[i] * w[i] * self._products[i] for i in range(4))
        squares += 2 * sum(w[i] * w[j] * p for (i, j), p in zip(pairs, self._products[4:], strict=True))
        spread = Z95 * math.sqrt(max(0.0, squares * self.count / (self.count - 1)))
        return Estimate(value, value * math.exp(-spread), value * math.exp(spread))
