"""A report on runs: figures, tables, one Markdown and one self-contained HTML page. Needs matplotlib.

- runs: run folders, read once
- cost_figures, course_figures, bands, style: figures
- tables, table: tables as Markdown, LaTeX and HTML
- sections: the questions that are answered, shared with the notebooks
- page: Markdown and HTML
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from verl_sara.report.runs import Runs, load_runs
from verl_sara.report.sections import SECTIONS, Section
from verl_sara.report.table import Table

__all__ = ["SECTIONS", "Runs", "Section", "Table", "load_runs", "write_report", "write_report_of"]


def write_report(
    arms: Mapping[str, str | os.PathLike[str]],
    out_dir: str | os.PathLike[str],
    *,
    baselines: Sequence[str] = (),
    last_step: int | None = None,
) -> Path:
    """Reads runs and writes their report; returns the HTML file, beside it `report.md` and the PNG files.

    Args:
      arms: Run folder by name; "arm/1", "arm/2" name several runs of an arm.
      out_dir: Folder of the report, made if absent.
      baselines: Arms that savings are measured against; by default those of the presets verl_ds and ds.
      last_step: Steps after this one are left out.

    Raises:
      LedgerError: If no run can be read, or a baseline is no arm.
    """
    return write_report_of(load_runs(arms, baselines=baselines, last_step=last_step), out_dir)


def write_report_of(runs: Runs, out_dir: str | os.PathLike[str]) -> Path:
    """Writes the report of runs that were read, see `write_report`."""
    from verl_sara.report import tables
    from verl_sara.report.page import write_page

    notes = tables.problems(runs)
    lead = [
        f"Runs: {', '.join(runs.arms)}. Cost counts every rollout that was launched; an effective group is a "
        "trained group with both outcomes. Three kinds of saving are told apart: measured between arms that "
        "were run, replayed on another arm's full groups, counterfactual from an arm's own ledger.",
    ]
    lead += [
        f"{arm.name} has no ledger: only what verl's own log supports is shown (steps, validation, times)."
        for arm in runs.arms.values()
        if arm.ledger is None
    ]
    return write_page(
        Path(out_dir),
        "SARA: what the rollouts bought",
        lead,
        [section(runs) for section in SECTIONS],
        notes if notes.rows else None,
    )
