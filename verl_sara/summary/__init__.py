"""One run folder, or several side by side, as the numbers that are reported: summary.json and its table.

The three kinds of saving of `metrics` stay apart: measured (against another arm that was run),
counterfactual (against ideal dynamic sampling, from the arm's own ledger) and replayed (the paper's
rule over the full groups of another arm). Arms are compared only if that is fair; if not, the
reason is given instead of a number.

- arm: one run folder, read once
- numbers: the numbers of one arm
- compare: savings and replays
- table: all of it as Markdown
"""

from verl_sara.summary.arm import Arm, read_arm
from verl_sara.summary.compare import paper_rule, summarise, summary_of
from verl_sara.summary.numbers import arm_summary, summarise_arm
from verl_sara.summary.table import table

__all__ = [
    "Arm",
    "arm_summary",
    "paper_rule",
    "read_arm",
    "summarise",
    "summarise_arm",
    "summary_of",
    "table",
]
