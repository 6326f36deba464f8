"""The process in which math-verify runs: one JSON pair a line in, one verdict out (`1`, `0`, `!message`).

It ends when its input closes, is killed by its owner at the deadline, and is bounded by the kernel in memory
and in processor time in case the owner is gone. Only LaTeX is parsed, by a grammar; text never reaches an
evaluator.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable

_DEGREES = re.compile(r"(\d+(?:\.\d+)?)\^\{?\\circ\}?")
_MEMORY_BYTES = 4 << 30
_CPU_MARGIN_S = 60


def _limit_memory() -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, resource.RLIM_INFINITY))
    except (ImportError, ValueError, OSError):  # a platform without limits, or a lower one already set
        return


def _limit_cpu() -> None:
    """Lets the next request use at most `_CPU_MARGIN_S` seconds; the kernel ends the process after that."""
    try:
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        resource.setrlimit(
            resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + _CPU_MARGIN_S, resource.RLIM_INFINITY)
        )
    except (ImportError, ValueError, OSError):
        return


def _load() -> Callable[[str, str], bool]:
    """Returns a function that decides whether two LaTeX answers are equal."""
    import logging

    from math_verify import LatexExtractionConfig, parse, verify
    from sympy import Basic, I

    logging.disable(logging.CRITICAL)
    extraction = [LatexExtractionConfig()]

    def read(text: str) -> list[object]:
        latex = _DEGREES.sub(r"{(\1\\cdot\\pi/180)}", text.replace("*", r"\cdot "))
        found = parse(f"${latex}$", extraction, fallback_mode="no_fallback", parsing_timeout=None)
        return [_with_imaginary_unit(item) if isinstance(item, Basic) else item for item in found]

    def _with_imaginary_unit(expression: Basic) -> Basic:
        return expression.subs({symbol: I for symbol in expression.free_symbols if symbol.name == "i"})

    def is_equal(gold: str, answer: str) -> bool:
        first, second = read(gold), read(answer)
        # 12 places: an approximation such as 1.41421 does not pass for the root of 2.
        return bool(
            first
            and second
            and verify(first, second, float_rounding=12, allow_set_relation_comp=True, timeout_seconds=None)
        )

    return is_equal


def main() -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what libraries print must not mix with the replies

    def reply(text: str) -> None:
        replies.write(text.replace("\n", " ") + "\n")
        replies.flush()

    try:
        is_equal = _load()
    except Exception as error:
        reply(f"!{type(error).__name__}: {error}")
        return
    _limit_memory()
    reply("ready")
    for line in sys.stdin.buffer:
        _limit_cpu()
        try:
            reply("1" if is_equal(*json.loads(line)) else "0")
        except Exception as error:
            reply(f"!{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
