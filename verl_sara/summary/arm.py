"""One run folder, read once: its ledger as steps and running numbers, and verl's log."""

import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from verl_sara.config.schema import SaraConfig
from verl_sara.core import BetaPrior, SaraThreshold
from verl_sara.ledger import (
    Ledger,
    LedgerError,
    Problems,
    Record,
    attempts,
    ledger_folder,
    open_lines,
    parse_lines,
    read_ledger,
)
from verl_sara.metrics import FullGroups, IdealDs, Lengths, Occupancy, Replayed, Stopping, is_full
from verl_sara.verl_log import RolloutDump, VerlLog, find_dump, read_dump, read_verl_log

RULE_OPTIONS = ("tau_low", "prior", "probe_size", "increment")
TRAINED = ("trained", "saturated_trained")


@dataclass
class Arm:
    """One run as it was read.

    Attributes:
      name: Name of the run; "arm/1", "arm/2" for several runs of an arm.
      ledger: Without its groups, None if the run has none.
      log: verl's own log.
      dump: The rollouts that verl wrote out, read only if there is no ledger.
      options: Options of the run, from the ledger's last header.
      task: What compared runs must share beside their options (data, grader), from the same header.
      setup: What else the header says about the run, such as algorithm and model; shown, not compared.
      prompts: Identities of the prompts that were visited.
      ideal: Bounds on ideal dynamic sampling.
      full_groups: Full groups, to replay rules on.
      stopping: Verdicts, calibration and audits.
      lengths: Tokens of rollouts by outcome.
      occupancy: How busy the steps were.
      problems: Everything that was skipped or looks wrong.
    """

    name: str
    ledger: Ledger | None = None
    log: VerlLog = field(default_factory=VerlLog)
    dump: RolloutDump = field(default_factory=RolloutDump)
    options: Record = field(default_factory=dict)
    task: Record = field(default_factory=dict)
    setup: Record = field(default_factory=dict)
    prompts: set[str] = field(default_factory=set)
    ideal: IdealDs = field(default_factory=IdealDs)
    full_groups: FullGroups = field(default_factory=FullGroups)
    stopping: Stopping = field(default_factory=Stopping)
    lengths: Lengths = field(default_factory=Lengths)
    occupancy: Occupancy = field(default_factory=Occupancy)
    problems: list[str] = field(default_factory=list)

    @property
    def label(self) -> str:
        """Name of the arm, shared by its seeds."""
        return label_of(self.name)

    @property
    def preset(self) -> str:
        """Preset of the run, its label if that is not known."""
        return str(self.options.get("preset", self.label))

    @property
    def num_steps(self) -> int:
        """Steps of the history; of verl's log if there is no ledger."""
        return len(self.history()) if self.ledger else sum(row.step > 0 for row in self.log.history())

    def history(self) -> list[Record]:
        """One line per step, of its last attempt."""
        return self.ledger.history() if self.ledger else []

    def rounds(self) -> dict[int, float]:
        """Returns the rounds of every step that had them: none when streaming or observing."""
        if self.options.get("mode") == "observe" or self.options.get("schedule") == "streaming":
            return {}
        every = {step["step"]: step.get("rounds") for step in self.history()}
        return {step: n for step, n in every.items() if isinstance(n, (int, float)) and math.isfinite(n)}

    def costs(self) -> list[Record]:
        """One line per step: everything launched for it in all attempts, trained as in the last one.

        Rollouts of steps that never finished stand under the fate "lost", with nothing trained.
        """
        if self.ledger is None:
            return []
        kept = {step["step"]: step for step in self.ledger.history()}
        lines: dict[int, dict[str, Counter[str]]] = {}
        for step in self.ledger.steps:
            fates = lines.setdefault(step["step"], {})
            for fate, counts in step["fates"].items():
                fates.setdefault(fate, Counter()).update(counts)
        for number, lost in self.ledger.lost.items():
            for fate in ("lost", "launched"):
                lines.setdefault(number, {}).setdefault(fate, Counter()).update(lost)
        for number, fates in lines.items():
            for fate in TRAINED:
                trained = kept[number]["fates"][fate]["groups"] if number in kept else 0
                fates.setdefault(fate, Counter())["groups"] = trained
        return [{"step": number, "fates": lines[number]} for number in sorted(lines)]

    def take(self, group: Record) -> None:
        """Takes one group of the ledger into the running numbers."""
        self.prompts.add(group["prompt_id"])
        self.ideal.add(group)
        self.stopping.add(group)
        self.lengths.add(group)
        self.occupancy.add(group)
        self.full_groups.add(group)

    def replay(self, *, tau_low: float, prior: tuple[float, float], probe_size: int, increment: int) -> Replayed:
        """Returns the paper's threshold rule run over the full groups."""
        return self.full_groups.replay(
            SaraThreshold(tau_low), prior=BetaPrior(*prior), probe_size=probe_size, increment=increment
        )


def label_of(name: str) -> str:
    """Returns the name of the arm that a run belongs to: "arm" for "arm/2", else the run's own name."""
    arm, _, seed = name.rpartition("/")
    return arm if arm and seed.isdigit() else name


def read_arm(name: str, run_dir: str | os.PathLike[str], *, last_step: int | None = None) -> Arm:
    """Reads a run folder once. Without a ledger, only what verl's log supports is there.

    Args:
      name: Name of the run.
      run_dir: Run folder: ledger in it or in its subfolder `sara`, verl's log beside it.
      last_step: Steps after this one are left out; None = all.

    Raises:
      LedgerError: If there is neither a ledger nor a log of verl.
    """
    arm = Arm(name, log=read_verl_log(run_dir))
    problems, end = Problems(), float("inf") if last_step is None else last_step

    def take(group: Record) -> None:
        if group["step"] > end:
            return
        is_saturated = is_full(group) and len(set(group["slots"]["outcome"])) == 1
        if group["fate"] == "trained" and is_saturated:
            problems.add("saturated group that the ledger calls trained", f"step {group['step']} {group['uid']}")
        arm.take(group)

    try:
        arm.ledger = read_ledger(run_dir, on_group=take, is_strict=False)
    except LedgerError as error:
        if (dump := find_dump(run_dir)) is not None:
            arm.dump = read_dump(dump)
        if not (arm.log.rows or arm.dump.scores):
            raise LedgerError(f"{error}; and {'; '.join(arm.log.problems)}") from error
        arm.problems += [f"only what verl's log supports: {error}", *arm.dump.problems]
    else:
        header = arm.ledger.runs[-1] if arm.ledger.runs else {}
        arm.options, arm.task, arm.setup = (header.get(name, {}) for name in ("options", "task", "setup"))
        arm.problems += arm.ledger.problems + arm.ledger.unbalanced + problems.sentences()
        arm.ledger.steps = [step for step in arm.ledger.steps if step["step"] <= end]
        arm.ledger.lost = {step: lost for step, lost in arm.ledger.lost.items() if step <= end}
    arm.log.rows = [row for row in arm.log.rows if row.step <= end]
    arm.problems += arm.log.problems
    return arm


def options_of(run_dir: str | os.PathLike[str]) -> Record:
    """Returns the options in the header of a run's last ledger, empty if there is none."""
    try:
        folder = ledger_folder(run_dir)
    except LedgerError:
        return {}
    path = folder / f"ledger.attempt-{max(attempts(folder))}.jsonl"
    with open_lines(path) as lines:
        record: Record = next((record for _, record in parse_lines(lines, path.name, Problems())), {})
    options = record.get("options", {})
    return options if isinstance(options, dict) else {}


def rule_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of the paper's rule; those that a run does not give are the preset's."""
    defaults = {f.name: f.default for f in fields(SaraConfig)}
    given = {name: value for name, value in options.items() if value is not None}
    return {name: given.get(name, defaults[name]) for name in RULE_OPTIONS}
