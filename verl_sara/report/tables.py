"""The tables of a report. Every number comes from the summary or from `metrics`; here they become text."""

import math
import statistics
from collections.abc import Sequence

from verl_sara.metrics import Estimate
from verl_sara.report.course_figures import stopping_arms
from verl_sara.report.runs import Runs
from verl_sara.report.table import Table
from verl_sara.summary.numbers import UPDATE_PHASES, step_seconds
from verl_sara.summary.table import fixed, integer, one_digit, overview, percent, two_digits, with_interval

INTERVALS = "[95 % interval]"


def side_by_side(runs: Runs) -> Table:
    """Returns the table of the demo, a column per run."""
    head, rows = overview(runs.summary)
    columns = zip(*rows, strict=True)
    flipped = [[name, *map(_broken, cells)] for name, cells in zip(head, columns, strict=True)]
    caption = (
        f"All runs side by side; {INTERVALS}. Measured savings are against an arm that was run; the bounds "
        "against ideal dynamic sampling are estimated from the run's own ledger. Savings pool the seeds of an arm."
    )
    return Table(caption, flipped[0], flipped[1:])


def _broken(cell: str) -> str:
    """Returns a cell with its intervals and parts on lines of their own."""
    return cell.replace("], ", "],\n").replace(" [", "\n[").replace(" (", "\n(")


def cost(runs: Runs, unit: str) -> Table:
    """Returns what every run spent and what an effective group cost it."""
    total = {"rollouts": "rollouts", "tokens": "generated_tokens"}[unit]
    key = f"{unit}_per_effective_group"
    rows = [
        [
            name,
            integer(arm["steps"]),
            integer(arm["effective_groups"]),
            integer(arm[total]),
            integer(arm["lost"][unit]),
            with_interval([arm[key], *arm["intervals"][key]], one_digit),
        ]
        for name, arm in runs.summary["arms"].items()
    ]
    head = [
        "run",
        "steps n",
        "effective groups n",
        f"{unit} launched",
        "of them lost",
        f"{unit} / effective group",
    ]
    caption = (
        f"Cost in {unit}. Everything launched in all attempts counts, what unfinished steps lost included; "
        f"{INTERVALS}, steps taken as independent."
    )
    return Table(caption, head, rows)


def measured(runs: Runs) -> Table:
    """Returns measured savings, a row per pair of arms, refusals with their reason."""
    rows = []
    for label, entry in runs.summary["savings"].items():
        for base, found in entry["measured"].items():
            refused = found.get("refused")
            cells = [
                "refused" if refused else with_interval(found.get(unit), percent) for unit in ("rollouts", "tokens")
            ]
            rows.append([f"{label} vs {base}", _seeds(runs, label, base), *cells, refused or ""])
    head = ["arm vs baseline", "runs n", "rollouts saved", "tokens saved", "why refused"]
    caption = f"Measured savings per effective group, two arms that were run; {INTERVALS}, seeds pooled."
    return Table(caption, head, rows)


def _seeds(runs: Runs, *labels: str) -> str:
    return " vs ".join(str(len(runs.by_label[label])) for label in labels)


def replayed(runs: Runs) -> Table:
    """Returns the paper's rule replayed on the full groups of other arms."""
    rows = []
    for arm in runs.full:
        result = arm.replay(**runs.rule)
        saved = [_saved(estimate) for estimate in (result.rollouts, result.tokens)]
        rows.append([arm.name, integer(result.num_groups), *saved])
    rule = ", ".join(f"{name} {value}" for name, value in runs.rule.items())
    caption = (
        f"Replayed savings per effective group: the paper's rule ({rule}) over the full groups of an arm, "
        f"paired on the same outcomes; {INTERVALS}, groups taken as independent. Waves, surplus and budget "
        "play no part."
    )
    return Table(caption, ["full groups of", "groups n", "rollouts saved", "tokens saved"], rows)


def _saved(quotient: Estimate) -> str:
    saved = Estimate(1 - quotient.value, 1 - quotient.high, 1 - quotient.low)
    return with_interval(saved.as_list(), percent)


def counterfactual(runs: Runs) -> Table:
    """Returns bounds on the saving against ideal dynamic sampling."""
    rows = []
    for label, entry in runs.summary["savings"].items():
        found = entry["counterfactual"]["ideal_ds"]["rollouts"]
        low, high = found["interval"]
        interval = "n/a" if low is None else f"{percent(low)} to {percent(high)}"
        rows.append([label, *map(percent, found["bounds"]), interval])
    caption = (
        "Counterfactual saving in rollouts per effective group against ideal dynamic sampling (full groups, "
        "stop exactly at the last one needed) on the prompts that the arm decided. What abandoned "
        "groups would have become is unknown: the bounds take it as p_eff and as 0. Tokens of rollouts that "
        "never ran are unknown, so there are no bounds in tokens."
    )
    return Table(caption, ["arm", "lower bound", "upper bound", "95 % interval of both"], rows)


def lengths(runs: Runs) -> Table:
    """Returns the mean tokens of a rollout by outcome and by fate of its group."""
    columns = ("passed", "failed", "fate trained", "fate abandoned")
    rows = []
    for arm in runs.with_ledger:
        cells = [with_interval(arm.lengths.mean(name).as_list(), one_digit) for name in columns]
        counts = [integer(arm.lengths.count(name)) for name in columns[:2]]
        rows.append([arm.name, *counts, *cells])
    head = [
        "run",
        "passed n",
        "failed n",
        "tokens passed",
        "tokens failed",
        "tokens trained",
        "tokens abandoned",
    ]
    caption = (
        f"Mean tokens of a rollout {INTERVALS}, by its outcome and by the fate of its group. Tokens save "
        "more than rollouts where abandoned groups hold the longer rollouts."
    )
    return Table(caption, head, rows)


def batch(runs: Runs) -> Table:
    """Returns what was trained, over all steps."""
    rows = []
    for name, arm in runs.summary["arms"].items():
        fraction = with_interval([arm["effective_fraction"], *arm["intervals"]["effective_fraction"]], two_digits)
        per_step = _ratio(arm["prompts_visited"], arm["steps"])
        rows.append(
            [
                name,
                integer(arm["steps"]),
                integer(arm["groups_trained"]),
                fraction,
                fixed(per_step, 1),
                f"{fixed(arm['val_before'], 3)}",
                f"{fixed(arm['val_after'], 3)}",
            ]
        )
    head = [
        "run",
        "steps n",
        "groups trained n",
        "effective fraction",
        "prompts / step",
        "val. before",
        "val. after",
    ]
    caption = f"The trained batch: share of its groups that are mixed {INTERVALS}; validation accuracy as verl logs it."
    return Table(caption, head, rows)


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    return numerator / denominator if numerator is not None and denominator else None


def verdicts(runs: Runs) -> Table:
    """Returns the verdicts of every run whose rule may abandon."""
    rows = []
    for arm in stopping_arms(runs):
        by_reason = {
            reason: sum(count for (why, _), count in arm.stopping.verdicts.items() if why == reason)
            for reason in ("mixed", "all_fail", "all_pass")
        }
        total = sum(by_reason.values())
        taken = sum(length * count for (_, length), count in arm.stopping.verdicts.items())
        rows.append(
            [
                arm.name,
                integer(total),
                *(integer(by_reason[reason]) for reason in by_reason),
                fixed(taken / total if total else None, 2),
            ]
        )
    head = [
        "run",
        "verdicts n",
        "committed",
        "abandoned all-fail",
        "abandoned all-pass",
        "rollouts to the verdict",
    ]
    return Table("Verdicts, and the mean rollouts launched until they fell.", head, rows)


def wrong_abandons(runs: Runs) -> Table:
    """Returns q, the share of abandoned groups that would have been mixed, audited and replayed."""
    rows = []
    for arm in stopping_arms(runs):
        for side, (total, mixed, rate) in arm.stopping.audited().items():
            if not total and side != "both":
                continue
            cells = [integer(total), integer(mixed), _share(rate)]
            rows.append([f"{arm.name}, audited", side.replace("_", "-"), *cells, "n/a", "n/a"])
    for arm in runs.full:
        result = arm.replay(**runs.rule)
        cells = [_share(estimate) for estimate in (result.wrong_rate(), result.recall(), result.effective_share())]
        counts = (sum(result.num_abandoned.values()), sum(result.num_wrong.values()))
        rows.append([f"paper's rule on {arm.name}", "both", *map(integer, counts), *cells])
    head = ["source", "side", "abandoned n", "mixed n", "wrong-abandon rate q", "mixed groups kept", "mixed of all"]
    caption = (
        "Wrong abandons, q with its exact 95 % Clopper-Pearson interval, other shares with Wilson's: audited "
        "groups were completed although abandoned; replayed ones are full groups that the rule would have "
        "abandoned. Stopping pays in rollouts as long as q <= (mixed of all) (1 - n*/k), n* the stop length."
    )
    return Table(caption, head, rows)


def reliability(runs: Runs) -> Table:
    """Returns what may be claimed of the bound q < tau_low, for every run whose rule may abandon."""
    rows = []
    for arm in stopping_arms(runs):
        audits, source = arm.stopping.audits, str(arm.options.get("prior_source", "fixed"))
        rate, predicted = audits.rate(), audits.predicted()
        claims = ["under the fitted prior"] if source != "fixed" else []
        if audits.counts()[0]:
            claims.append(f"audited: q at most {two_digits(rate.high)}")
        cells = [integer(audits.counts()[0]), two_digits(None if math.isnan(predicted) else predicted), _share(rate)]
        bound = str(arm.options.get("tau_low", "n/a"))
        claim = "; ".join(claims) or "not claimed: fixed prior, no audit"
        rows.append([arm.name, source.replace("_", " "), bound, *cells, claim])
    head = ["run", "prior", "tau_low", "audits n", "predicted p_eff", "audited q", "bound q < tau_low"]
    caption = (
        "Reliability of abandoning on the prompts of every run. The rule promises q < tau_low under its prior; that "
        "is claimed only where the prior was fitted to the run's own prompts, and tested only where groups were "
        "audited. Predicted p_eff: mean at the verdict of the audited groups; audited q with its exact 95 % "
        "Clopper-Pearson interval."
    )
    return Table(caption, head, rows)


def _share(estimate: Estimate) -> str:
    return with_interval(estimate.as_list(), two_digits)


def calibration(runs: Runs) -> Table:
    """Returns predicted p_eff and what came true, by prefix."""
    rows = [
        [
            arm.name,
            row.side.replace("_", "-"),
            integer(row.length),
            integer(row.num_groups),
            two_digits(row.predicted),
            _share(row.realised),
        ]
        for arm in runs.full
        for row in arm.stopping.calibration()
    ]
    head = ["full groups of", "prefix", "length", "groups n", "predicted p_eff", "became mixed"]
    caption = (
        "Calibration of p_eff on full groups that no rule selected, a run's own prompts each [95 % Wilson "
        "interval]; p_eff is under the prior in use."
    )
    return Table(caption, head, rows)


def ablation(runs: Runs) -> Table:
    """Returns the replayed rule by threshold."""
    rows = []
    for arm in runs.full:
        for tau, result in runs.replays(arm).items():
            cells = [
                _saved(result.rollouts),
                _saved(result.tokens),
                _share(result.wrong_rate()),
                _share(result.recall()),
            ]
            rows.append([arm.name, f"{tau:g}", integer(result.num_groups), *cells])
    head = [
        "full groups of",
        "tau_low",
        "groups n",
        "rollouts saved",
        "tokens saved",
        "wrong-abandon rate q",
        "mixed kept",
    ]
    caption = (
        f"The rule by threshold, replayed (prior {runs.rule['prior']}, probe 2, +{runs.rule['increment']}); "
        f"{INTERVALS}, per effective group of the same full groups."
    )
    return Table(caption, head, rows)


def settings(runs: Runs) -> Table:
    """Returns the options, task and setup in which the runs differ, and what each cost."""
    told = {arm.name: {**arm.task, **arm.setup, **arm.options} for arm in runs.with_ledger}
    names = sorted({name for facts in told.values() for name in facts} - {"run_dir", "run_name"})
    differing = [name for name in names if len({repr(facts.get(name)) for facts in told.values()}) > 1]
    rows = []
    for run, facts in told.items():
        numbers = runs.summary["arms"][run]
        key = "rollouts_per_effective_group"
        cost_cell = with_interval([numbers[key], *numbers["intervals"][key]], one_digit)
        values = [str(facts.get(name, "n/a")) for name in differing]
        rows.append([run, *values, cost_cell, fixed(numbers["val_after"], 3)])
    caption = f"What the runs differ in; n/a where the run does not say. {INTERVALS}."
    return Table(caption, ["run", *differing, "rollouts / effective group", "val. after"], rows)


def wall(runs: Runs) -> Table:
    """Returns seconds per step by phase, with rounds and occupancy."""
    rows = []
    for name, arm in runs.arms.items():
        split = runs.summary["arms"][name]["wall_s"]
        seconds = step_seconds(arm.log)
        count = len(seconds)
        cells = [fixed(_ratio(split[phase], count), 2) for phase in ("total", "generate", "update", "weights", "wait")]
        rounds = runs.summary["arms"][name]["rounds_per_step"]
        busy = [value for value in arm.occupancy.by_step().values() if not math.isnan(value)]
        idle = 1 - sum(busy) / len(busy) if busy else None
        median = fixed(statistics.median(seconds) if seconds else None, 2)
        rows.append([name, integer(count), median, *cells, "-" if rounds is None else fixed(rounds, 1), percent(idle)])
    head = [
        "run",
        "steps n",
        "median s / step",
        "mean s / step",
        "generate s",
        "update s",
        "weights s",
        "wait s",
        "rounds / step",
        "idle places",
    ]
    caption = (
        "Wall-clock seconds per step as verl logs them, phases as means that add up to the mean (validation and "
        f"checkpoints apart; update = {', '.join(phase.replace('_', ' ') for phase in UPDATE_PHASES)}; wait = the "
        "rest). Idle places: 1 - mean / most "
        "groups in service at once, from the ledger."
    )
    return Table(caption, head, rows)


def problems(runs: Runs) -> Table:
    """Returns everything that was skipped or looks wrong."""
    rows: list[Sequence[str]] = [[name, f"not read: {reason}"] for name, reason in runs.unread.items()]
    for name, arm in runs.summary["arms"].items():
        rows += [[name, problem] for problem in arm["problems"]]
    return Table("What was skipped or looks wrong while reading.", ["run", "problem"], rows)
