"""Throughput of the graders, and their worst case on garbage.

    python tests/benchmarks/bench_grading.py

Four parts: answers per second that the normal form decides, math-verify alone on the same inputs in the same
run, Countdown, and the longest time for 100 kB of garbage. One core. Problems do not repeat; the answers of one
problem come in groups, as rollouts do.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence

from verl_sara.data.countdown import generate
from verl_sara.rewards import countdown, equivalence, math_answer, symbolic

GROUP_SIZE = 8
NUM_PARTS = 10
PROSE = "We write the condition down, simplify both sides and check the result. " * 4
GARBAGE = (
    r"\boxed{", "{", "}", "(", "answer is ", "Answer:", r"\boxed{1}", r"\frac", " ", "1,", "####", "</think>",
    "1+1a", "3*5+7 a", "((1+1)) a", "<answer>", "-a", "\n", "a", "⟦", r"\text{", "1 ",
)  # fmt: skip


def math_pairs(num_pairs: int, seed: int = 0) -> list[tuple[str, str]]:
    """Returns gold answers and responses in groups of `GROUP_SIZE`, half of them right, of usual kinds."""
    rng = random.Random(seed)
    kinds = (
        ("{a}", "{b}"),
        ("{a}", r"x = {b}\text{{ cm}}"),
        (r"\frac{{{a}}}{{{c}}}", r"\dfrac{{{b}}}{{{c}}}"),
        ("{a}", "{b}.0"),
        ("({a},{c})", r"\left({b}, {c}\right)"),
        ("{a}", r"{b}^\circ"),
    )
    pairs = []
    for number in range(num_pairs // GROUP_SIZE):
        gold, answer = kinds[number % len(kinds)]
        a, c = number * 10**5 + rng.randint(2, 10**5), rng.randint(2, 10**5)
        for rollout in range(GROUP_SIZE):
            b = a + rollout if rollout % 2 else a
            boxed = answer.format(b=b, c=c)
            pairs.append((gold.format(a=a, c=c), f"{PROSE}The final answer is $\\boxed{{{boxed}}}$."))
    return pairs


def rate(
    function: Callable[[str, object], object], pairs: Sequence[tuple[object, str]]
) -> tuple[float, float]:
    """Returns median and best calls per second of processor time over ten equal parts of the pairs."""
    equivalence.parse.cache_clear()
    size = max(1, len(pairs) // NUM_PARTS)
    rates = []
    for first in range(0, size * NUM_PARTS, size):
        start = time.process_time()
        for gold, response in pairs[first : first + size]:
            function(response, gold)
        rates.append(size / (time.process_time() - start))
    return statistics.median(rates), max(rates)


def math_verify_alone() -> Callable[[str, object], bool] | None:
    """Returns math-verify on a whole response, as its users call it; `None` if it is not installed."""
    if not symbolic.is_available():
        return None
    import logging

    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)

    def grade(response: str, gold: object) -> bool:
        return verify(
            parse(f"${gold}$", parsing_timeout=None),
            parse(response, parsing_timeout=None),
            timeout_seconds=None,
        )

    return grade


def worst_garbage(grader: Callable[[str, object], object], gold: object, size: int) -> tuple[float, str]:
    """Returns the longest processor time for `size` characters of one repeated piece, and the piece."""
    times = []
    for piece in GARBAGE:
        text = piece * (size // len(piece))
        best = float("inf")
        for _ in range(3):
            start = time.process_time()
            grader(text, gold)
            best = min(best, time.process_time() - start)
        times.append((best, piece))
    return max(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--answers", type=int, default=20_000, help="answers in mathematics, default 20000")
    parser.add_argument("--alone", type=int, default=400, help="of these for math-verify alone, default 400")
    args = parser.parse_args()

    pairs = math_pairs(args.answers)
    asked = 0

    def undecided(_gold: str, _answer: str) -> bool:
        nonlocal asked
        asked += 1
        return False

    ours, best = rate(lambda response, gold: math_answer.grade(response, gold, undecided), pairs)
    print(f"mathematics, normal form: {ours:10,.0f} answers/s, best part {best:,.0f}")
    print(f"  ({len(pairs)} answers, {asked} left to math-verify)")
    alone = math_verify_alone()
    if alone is None:
        print("mathematics, math-verify: not installed")
    else:
        sample = pairs[:: max(1, len(pairs) // args.alone)]
        same = sum(alone(r, g) == bool(math_answer.grade(r, g, undecided).acc) for g, r in sample)
        theirs, best = rate(alone, sample)
        print(f"mathematics, math-verify: {theirs:10,.0f} answers/s, best part {best:,.0f}")
        print(
            f"  ({len(sample)} of the same answers; {ours / theirs:,.0f} times slower; same verdict on {same})"
        )

    problems = generate(500, seed=1)
    games = [
        (problem.ground_truth, f"{PROSE}<answer>{problem.solution}{' + 1' * (number % 2)}</answer>")
        for problem in problems
        for number in range(GROUP_SIZE)
    ]
    median, best = rate(countdown.grade, games)
    print(
        f"Countdown:                {median:10,.0f} answers/s, best part {best:,.0f} ({len(games)} answers)"
    )
    for name, grader, gold in (
        ("mathematics", lambda text, gold: math_answer.grade(text, gold, undecided), "12"),
        ("Countdown", countdown.grade, {"target": 22, "numbers": [3, 5, 7]}),
    ):
        seconds, piece = worst_garbage(grader, gold, 100_000)
        print(f"100 kB of garbage, {name}: at most {1000 * seconds:.1f} ms (repeated {piece!r})")


if __name__ == "__main__":
    main()
