"""`sara explain`: what the stopping rule will do, before anything is run."""

import argparse
import json

from verl_sara.core import (
    BetaPrior,
    ConfigError,
    SaraThreshold,
    align_lengths,
    expected_cost,
    prob_effective,
    prob_keep,
    stage_boundaries,
)


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the subcommand."""
    parser = subparsers.add_parser("explain", help="show p_eff, stop lengths, costs and bound of a rule")
    parser.add_argument("--group-size", type=int, required=True, metavar="K", help="rollouts in a full group, >= 2")
    parser.add_argument("--tau-low", type=float, default=0.4, help="abandon below this p_eff, in [0, 1]")
    parser.add_argument("--prior", type=_prior, default=BetaPrior(), metavar="A,B", help="Beta prior, default 1,1")
    parser.add_argument("--probe-size", type=int, default=1, help="first rollouts of a prompt, default 1")
    parser.add_argument("--increment", type=int, default=1, help="rollouts per further stage, default 1")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(func=run)


def _prior(text: str) -> BetaPrior:
    try:
        alpha, beta = (float(part) for part in text.split(","))
        return BetaPrior(alpha, beta)
    except (ValueError, ConfigError) as error:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: two numbers > 0 such as 1,1") from error


def explain(*, group_size: int, tau_low: float, prior: BetaPrior, probe_size: int, increment: int) -> dict[str, object]:
    """Returns what the rule does, as the JSON of the command.

    Raises:
      ConfigError: If a size or the threshold is out of range.
    """
    k = group_size
    for name, value, least in (("group-size", k, 2), ("probe-size", probe_size, 1), ("increment", increment, 1)):
        if value < least:
            raise ConfigError(f"{name} is {value}; allowed: >= {least}")
    rule = SaraThreshold(tau_low)
    lengths = align_lengths(rule.lengths(prior, k), stage_boundaries(k, probe_size, increment))

    def cost(completed: bool) -> float:
        n0, n1 = lengths.fail, lengths.passed
        return expected_cost(group_size=k, fail_length=n0, pass_length=n1, prior=prior, completed=completed)

    reliability = {
        side: prob_effective(n, s, group_size=k, prior=prior)
        for side, n, s in (("all_fail", lengths.fail, 0), ("all_pass", lengths.passed, lengths.passed))
    }
    return {
        "group_size": k,
        "tau_low": tau_low,
        "prior": [prior.alpha, prior.beta],
        "p_eff": {
            "all_fail": [prob_effective(n, 0, group_size=k, prior=prior) for n in range(1, k + 1)],
            "all_pass": [prob_effective(n, n, group_size=k, prior=prior) for n in range(1, k + 1)],
        },
        "abandon_after": {"all_fail": lengths.fail, "all_pass": lengths.passed},
        "expected_rollouts": {"until_verdict": cost(False), "group_filled": cost(True), "full_group": k},
        "prob_effective_if_abandoned": reliability,
        "reliability_bound": max(reliability.values()),
        "prob_keep": [
            prob_keep(s, group_size=k, fail_length=lengths.fail, pass_length=lengths.passed) for s in range(1, k)
        ],
    }


def run(args: argparse.Namespace) -> int:
    """Prints the explanation."""
    facts = explain(
        group_size=args.group_size,
        tau_low=args.tau_low,
        prior=args.prior,
        probe_size=args.probe_size,
        increment=args.increment,
    )
    print(json.dumps(facts) if args.json else _text(facts))
    return 0


def _text(facts: dict) -> str:  # type: ignore[type-arg]
    k, after, costs = facts["group_size"], facts["abandon_after"], facts["expected_rollouts"]
    alpha, beta = facts["prior"]
    lines = [
        f"group size {k}, tau_low {facts['tau_low']:g}, prior Beta({alpha:g}, {beta:g})",
        "",
        "  n   p_eff all-fail   p_eff all-pass",
    ]
    for n, (fail, passed) in enumerate(zip(*facts["p_eff"].values(), strict=True), start=1):
        lines.append(f"{n:>3}   {fail:>14.4f}   {passed:>14.4f}")
    for side, name in (("all_fail", "all-fail"), ("all_pass", "all-pass")):
        stop = after[side]
        when = f"abandoned after {stop}" if stop < k else f"never abandoned before it is full ({k})"
        risk = facts["prob_effective_if_abandoned"][side]
        lines.append(f"{name} prefixes are {when}; P(full group mixed | abandoned) = {risk:.4f} under the prior")
    lines += [
        f"expected rollouts per prompt under the prior: {costs['until_verdict']:.2f} until the verdict, "
        f"{costs['group_filled']:.2f} with committed groups filled, {k} for full groups",
        "P(kept | s passes of k), s = 1..k-1: " + " ".join(f"{p:.3f}" for p in facts["prob_keep"]),
    ]
    return "\n".join(lines)
