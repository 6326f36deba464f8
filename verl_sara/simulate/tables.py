"""The tables of `sara simulate` on simulated training: published savings, history, wall-clock."""

from collections.abc import Mapping, Sequence
from typing import Any

from verl_sara.simulate.arms import DS, PAPER, RANKED, TUNED, policy
from verl_sara.simulate.baselines import Cost, ideal, whole_batches
from verl_sara.simulate.lengths import Lengths
from verl_sara.simulate.populations import POOLS
from verl_sara.simulate.server import Server
from verl_sara.simulate.table import Table
from verl_sara.simulate.training import StepReport, Training

NUM_PROMPTS = 7500
MARGIN = {"refill_margin": 0.5}
"""Half a standard deviation on every wave: about a round less a step, for about 1 % more rollouts."""

GROUP_SIZE = 8


def headline(
    *, pool: str = "B", num_steps: int = 130, batch_size: int = 256, num_prompts: int = NUM_PROMPTS, seed: int = 0
) -> Table:
    """The published savings: the paper's rule alone and on a ranked stream, against dynamic sampling."""
    lengths, prompts = Lengths(), POOLS[pool].build(num_prompts)
    sizes = {"num_steps": num_steps, "batch_size": batch_size, "group_size": GROUP_SIZE}
    whole = whole_batches(prompts, lengths=lengths, seed=seed, repeats=10, **sizes)
    exact = ideal(prompts, lengths=lengths, seed=seed, **sizes)
    table = Table(
        f"pool {pool}, {num_steps} steps, B = {batch_size}, k = {GROUP_SIZE}; paper's rule in rounds, groups filled",
        ("", "x uniform", "rollouts vs DS", "tokens vs DS", "vs ideal DS", "rounds", "effective prompts"),
        notes=[
            "DS = whole generation batches of B prompts until B groups are effective; ideal DS stops at the B-th.",
            "Ranked = Dynamics-Predictive Sampling, 5 % random prompts. Waves have half a sd of margin.",
        ],
    )
    for name, cost in (("DS", whole), ("ideal DS", exact)):
        table.rows.append((name, times_uniform(cost), *savings(cost, whole, exact), "", ""))
    for key, name, selection in (("alone", "SARA", {}), ("with_ranked", "SARA, ranked", RANKED)):
        arm = policy({**PAPER, **MARGIN}, batch_size=batch_size, **selection)
        reports = Training(prompts, arm, num_steps=num_steps, lengths=lengths, seed=seed).run()
        cost, rounds = Cost.of(reports), mean(reports, "rounds")
        share = mean(reports, "effective_share")
        table.rows.append((name, times_uniform(cost), *savings(cost, whole, exact), f"{rounds:.1f}", f"{share:.0%}"))
        table.numbers |= {f"saving_{key}": cost.saving(whole), f"rounds_{key}": rounds}
    return table


HISTORY_ARMS: Mapping[str, tuple[str, Mapping[str, Any], float | None]] = {
    "paper": ("uniform prior, tau 0.4 (paper)", PAPER, None),
    "eb_dp": ("empirical Bayes, optimal stopping", {**TUNED, "prior_source": "empirical_bayes"}, None),
    "history_dp": ("history, optimal stopping (tuned)", TUNED, None),
    "history_dp_skip": ("history, optimal stopping, skip", TUNED, 0.05),
}


def history(
    *, pool: str = "B", num_steps: int = 90, batch_size: int = 256, num_prompts: int = NUM_PROMPTS, seed: int = 0
) -> Table:
    """What fitted and per-prompt priors save beyond the paper, with an exact stop and without rounds."""
    lengths, prompts = Lengths(), POOLS[pool].build(num_prompts)
    exact = ideal(
        prompts, num_steps=num_steps, batch_size=batch_size, group_size=GROUP_SIZE, lengths=lengths, seed=seed
    )
    table = Table(
        f"pool {pool}, {num_steps} steps, B = {batch_size}, k = {GROUP_SIZE}; against ideal DS, exact stop, no rounds",
        ("", "rollouts saved", "tokens saved", "q predicted", "q realised", "trained with pass rate < 0.2"),
        notes=[
            "q = P(the full group would have been mixed | abandoned), predicted by the prior and under the true rates.",
            "Skip starts a prompt of negative worth with probability 0.05 only; it is outside the reliability bound.",
        ],
    )
    for key, (name, options, skip) in HISTORY_ARMS.items():
        arm = policy(options, batch_size=batch_size, is_exact=True, skip=skip)
        reports = Training(prompts, arm, num_steps=num_steps, lengths=lengths, seed=seed).run()
        cost, abandoned = Cost.of(reports), sum(report.abandoned for report in reports)
        q = [sum(getattr(report, side) for report in reports) / abandoned for side in ("predicted", "realised")]
        hard = sum(report.hard for report in reports) / cost.groups
        saved = [f"{cost.saving(exact, unit):.1%}" for unit in ("rollouts", "tokens")]
        table.rows.append((name, *saved, f"{q[0]:.2f}", f"{q[1]:.2f}", f"{hard:.2f}"))
        table.numbers[key] = cost.saving(exact)
    return table


REGIMES = {
    "1: 128 slots": (128, 0.0),
    "2: 128 slots, full server twice as slow": (128, 1.0),
    "3: 512 slots, latency-bound": (512, 0.0),
}
SERVER_ARMS: Mapping[str, tuple[str | None, Mapping[str, Any]]] = {
    "DS, deficit-sized batches": (None, DS),
    "DS, streamed": ("ds_streamed", {**DS, "schedule": "streaming"}),
    "SARA rounds, probe 4, n* 5 (paper)": ("rounds", PAPER),
    "SARA rounds, probe 3, n* 3": (None, {**PAPER, "probe_size": 3, "tau_low": 0.6}),
    "SARA streaming, probe 4, n* 5": (None, {**PAPER, "schedule": "streaming"}),
    "SARA streaming, probe 2, n* 3": (
        "streaming",
        {**PAPER, "probe_size": 2, "tau_low": 0.6, "schedule": "streaming"},
    ),
    "SARA tuned": (None, TUNED),
}


def server(
    *, pool: str = "B", num_steps: int = 24, batch_size: int = 64, num_prompts: int = NUM_PROMPTS, seed: int = 0
) -> Table:
    """Wall-clock on a continuous-batching server, against dynamic sampling in whole batches."""
    lengths, prompts = Lengths(), POOLS[pool].build(num_prompts)
    table = Table(
        f"pool {pool}, {num_steps} steps, B = {batch_size}, k = {GROUP_SIZE}; wall-clock over DS in whole batches",
        ("", *(f"wall {name.partition(':')[0]}" for name in REGIMES), "tokens", "idle slots"),
        notes=[*REGIMES, "Tokens, idle slots and the numbers for JSON are those of regime 1."],
    )
    sizes = {"num_steps": num_steps, "lengths": lengths, "seed": seed}
    walls: dict[str, list[float]] = {}
    details: dict[str, tuple[float, float]] = {}
    for num_slots, slowdown in REGIMES.values():
        machine = Server(num_slots, slowdown)
        base = whole_batches(prompts, batch_size=batch_size, group_size=GROUP_SIZE, server=machine, **sizes)
        base_time = machine.time
        runs = {"DS, whole batches": (base, machine)}
        for name, (_, options) in SERVER_ARMS.items():
            machine = Server(num_slots, slowdown)
            arm = policy({**options, **MARGIN}, batch_size=batch_size)
            runs[name] = Cost.of(Training(prompts, arm, server=machine, **sizes).run()), machine
        for name, (cost, machine) in runs.items():
            walls.setdefault(name, []).append(machine.time / base_time)
            details.setdefault(name, (cost.tokens / base.tokens, 1.0 - machine.load))
    for name, wall in walls.items():
        tokens, idle = details[name]
        table.rows.append((name, *(f"{x:.2f}" for x in wall), f"{tokens:.2f}", f"{idle:.0%}"))
    table.numbers = {key: walls[name][0] for name, (key, _) in SERVER_ARMS.items() if key}
    return table


def times_uniform(cost: Cost) -> str:
    """Returns rollouts per effective group relative to k, as text."""
    return f"{cost.rollouts / cost.groups / GROUP_SIZE:.2f}"


def savings(cost: Cost, whole: Cost, exact: Cost) -> tuple[str, str, str]:
    """Returns the savings in rollouts and tokens against whole batches, and in rollouts against ideal DS."""
    values = (cost.saving(whole), cost.saving(whole, "tokens"), cost.saving(exact))
    return f"{values[0]:.1%}", f"{values[1]:.1%}", f"{values[2]:.1%}"


def mean(reports: Sequence[StepReport], name: str) -> float:
    """Returns the mean of a number over the steps."""
    return float(sum(getattr(report, name) for report in reports) / len(reports))
