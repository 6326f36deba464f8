"""One run folder, read once: its ledger as steps and running numbers, and verl's log."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from verl_sara.config.schema import SaraConfig
from verl_sara.core import BetaPrior, SaraThreshold
from verl_sara.ledger import Ledger, LedgerError, Record, read_ledger
from verl_sara.metrics import IdealDs, Replay
from verl_sara.verl_log import VerlLog, read_verl_log


@dataclass
class Arm:
    """One run as it was read.

    Attributes:
      name: Name in tables.
      ledger: Without its groups, None if the run has none.
      log: verl's own log.
      options: Options of the run, from the ledger's last header.
      prompts: Identities of the prompts that were visited.
      ideal: Bounds on ideal dynamic sampling.
      replay: The paper's rule on the run's full groups.
      problems: Everything that was skipped or looks wrong.
    """

    name: str
    ledger: Ledger | None = None
    log: VerlLog = field(default_factory=VerlLog)
    options: Record = field(default_factory=dict)
    prompts: set[str] = field(default_factory=set)
    ideal: IdealDs = field(default_factory=IdealDs)
    replay: Replay | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def preset(self) -> str:
        """Preset of the run, its name if that is not known."""
        return str(self.options.get("preset", self.name))

    def history(self) -> list[Record]:
        """One line per step, of its last attempt."""
        return self.ledger.history() if self.ledger else []

    def costs(self) -> list[Record]:
        """One line per step: everything launched for it in all attempts, trained as in the last one.

        Rollouts of steps that never finished stand with 0 trained groups.
        """
        if self.ledger is None:
            return []
        kept = {step["step"]: step for step in self.ledger.history()}
        numbers = kept.keys() | self.ledger.lost.keys()
        costs = {
            number: {"step": number, "fates": {"launched": {"groups": 0, "rollouts": 0, "tokens": 0}}}
            for number in sorted(numbers)
        }
        for step in self.ledger.steps:
            for unit in ("groups", "rollouts", "tokens"):
                costs[step["step"]]["fates"]["launched"][unit] += step["fates"]["launched"][unit]
        for number, lost in self.ledger.lost.items():
            for unit in ("rollouts", "tokens"):
                costs[number]["fates"]["launched"][unit] += lost[unit]
        for number, line in costs.items():
            for fate in ("trained", "saturated_trained"):
                trained = kept[number]["fates"][fate]["groups"] if number in kept else 0
                line["fates"][fate] = {"groups": trained}
        return list(costs.values())


def read_arm(name: str, run_dir: str | os.PathLike[str], rule_options: Record | None = None) -> Arm:
    """Reads a run folder once. Without a ledger, only what verl's log supports is there.

    Args:
      name: Name of the arm.
      run_dir: Run folder: ledger in it or in its subfolder `sara`, verl's log beside it.
      rule_options: Options of the rule to replay; None replays none.

    Raises:
      LedgerError: If there is neither a ledger nor a log of verl.
    """
    arm = Arm(name, log=read_verl_log(run_dir))
    if rule_options is not None:
        arm.replay = paper_replay(rule_options)

    def take(group: Record) -> None:
        arm.prompts.add(group["prompt_id"])
        arm.ideal.add(group)
        if arm.replay:
            arm.replay.add(group)

    try:
        arm.ledger = read_ledger(run_dir, on_group=take, is_strict=False)
    except LedgerError as error:
        if not arm.log.rows:
            raise LedgerError(f"{error}; and {arm.log.problems[0]}") from error
        arm.problems.append(f"only what verl's log supports: {error}")
    else:
        arm.options = arm.ledger.runs[-1].get("options", {}) if arm.ledger.runs else {}
        arm.problems += arm.ledger.problems + arm.ledger.unbalanced
    arm.problems += arm.log.problems
    return arm


def paper_replay(options: Mapping[str, Any]) -> Replay:
    """Returns the paper's rule with a run's options; those that are not given are the preset's."""
    defaults = {f.name: f.default for f in fields(SaraConfig)}
    values = {
        name: options.get(name, defaults[name]) for name in ("tau_low", "prior", "probe_size", "increment")
    }
    return Replay(
        SaraThreshold(values["tau_low"]),
        prior=BetaPrior(*values["prior"]),
        probe_size=values["probe_size"],
        increment=values["increment"],
    )
