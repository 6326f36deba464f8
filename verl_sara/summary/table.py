"""The summary as a Markdown table: one row an arm, then the notes."""

from collections.abc import Mapping, Sequence
from typing import Any

from verl_sara.summary.arm import label_of

WALL = ("generate", "update", "weights", "wait")


def table(summary: Mapping[str, Any]) -> str:
    """Returns the Markdown table of `make demo`: one row an arm, units in the heads, then the notes."""
    below = "".join(f"\n- {note}" for note in notes(summary))
    return markdown(*overview(summary)) + (f"{below}\n" if below else "")


def overview(summary: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Returns head and rows of the table, one row an arm."""
    bases = list(dict.fromkeys(base for entry in summary["savings"].values() for base in entry["measured"]))
    head = [
        "arm",
        "steps",
        "prompts visited",
        "groups trained",
        "effective fraction",
        "rollouts",
        "generated tokens",
        "rollouts / effective group",
        "tokens / effective group",
        *(f"measured saving vs {base}: rollouts, tokens" for base in bases),
        "rollouts saved vs ideal DS (estimated bounds)",
        "rounds / step",
        "val. accuracy before, after",
        f"wall-clock s ({' + '.join(WALL)})",
    ]
    return head, [_row(name, arm, summary, bases) for name, arm in summary["arms"].items()]


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table with aligned columns; the first is text, the others are numbers."""
    widths = [max(len(line[i]) for line in (head, *rows)) for i in range(len(head))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cells[0].ljust(widths[0]),
            *(c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True)),
        ]
        return "| " + " | ".join(padded) + " |\n"

    return "".join(map(line, (head, rule, *rows)))


def _row(name: str, arm: Mapping[str, Any], summary: Mapping[str, Any], bases: list[str]) -> list[str]:
    savings = summary["savings"].get(label_of(name), {"measured": {}, "counterfactual": {}})
    intervals, wall = arm["intervals"], arm["wall_s"]
    bounds = savings["counterfactual"].get("ideal_ds", {}).get("rollouts", {}).get("bounds", [None, None])

    def saved(base: str) -> str:
        found = savings["measured"].get(base)
        if found is None:
            return "-"
        if "refused" in found:
            return "not comparable"
        return ", ".join(with_interval(found[unit], percent) for unit in ("rollouts", "tokens"))

    def per_group(unit: str) -> str:
        key = f"{unit}_per_effective_group"
        return with_interval([arm[key], *intervals[key]], one_digit)

    return [
        name,
        integer(arm["steps"]),
        integer(arm["prompts_visited"]),
        integer(arm["groups_trained"]),
        fixed(arm["effective_fraction"], 3),
        integer(arm["rollouts"]),
        integer(arm["generated_tokens"]),
        per_group("rollouts"),
        per_group("tokens"),
        *(saved(base) for base in bases),
        percent(bounds[0]) if bounds[0] == bounds[1] else " to ".join(map(percent, bounds)),
        "-" if arm["rounds_per_step"] is None else fixed(arm["rounds_per_step"], 1),
        f"{fixed(arm['val_before'], 3)}, {fixed(arm['val_after'], 3)}",
        f"{fixed(wall['total'], 0)} ({' + '.join(fixed(wall[phase], 0) for phase in WALL)})",
    ]


def notes(summary: Mapping[str, Any]) -> list[str]:
    """Returns what belongs below the table: replays, refusals, losses, problems."""
    found = []
    for base in summary["arms"]:
        if (key := f"paper_vs_{base}") in summary["replay"]:
            groups = summary["replay"][f"{key}_groups"]
            cells = [
                with_interval([summary["replay"][k], *summary["replay"][f"{k}_interval"]], two_digits)
                for k in (key, f"{key}_tokens")
            ]
            found.append(
                f"Replayed: the paper's rule on the {groups} full groups of {base} costs {cells[0]} of their "
                f"rollouts and {cells[1]} of their tokens per effective group (paired; 95 % interval)."
            )
    for name, entry in summary["savings"].items():
        for base, saved in entry["measured"].items():
            if "refused" in saved:
                found.append(f"{name} is not compared with {base}: {saved['refused']}.")
    for name, arm in summary["arms"].items():
        if arm["lost"]["rollouts"]:
            found.append(f"{name}: {arm['lost']['rollouts']} rollouts of unfinished steps are counted as cost.")
        found += [f"{name}: {problem}." for problem in arm["problems"]]
    return found


def integer(value: float | None) -> str:
    """Returns a count, "n/a" for None."""
    return "n/a" if value is None else f"{value:,.0f}"


def fixed(value: float | None, digits: int) -> str:
    """Returns a number with fixed digits, "n/a" for None."""
    return "n/a" if value is None else f"{round(value, digits) + 0.0:,.{digits}f}"


def one_digit(value: float | None) -> str:
    """Returns a number with one digit."""
    return fixed(value, 1)


def two_digits(value: float | None) -> str:
    """Returns a number with two digits."""
    return fixed(value, 2)


def percent(value: float | None) -> str:
    """Returns a share as whole percent."""
    return "n/a" if value is None else f"{round(100 * value) + 0:d} %"


def with_interval(triple: Sequence[float | None] | None, form: Any) -> str:
    """Returns "value [low, high]"; without the interval where it is not known."""
    value, low, high = triple or (None, None, None)
    return form(value) if value is None or low is None else f"{form(value)} [{form(low)}, {form(high)}]"
