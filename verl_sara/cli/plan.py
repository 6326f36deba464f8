"""`sara plan`: what SARA would save on a user's own prompts, from rollouts that are already there."""

import argparse
import json
from typing import Any

from verl_sara.core import ConfigError


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the subcommand."""
    parser = subparsers.add_parser(
        "plan",
        help="predict cost and savings of ds, paper and tuned from a rollout dump or ledger",
        description="Reads rollouts of an unfiltered run: verl's dump (trainer.rollout_data_dir), a ledger, or JSON "
        "lines with a prompt, an outcome and a length.",
    )
    parser.add_argument("file", metavar="FILE", help="run folder, folder of <step>.jsonl files, or a JSONL file")
    parser.add_argument("--group-size", type=int, metavar="K", help="k of the planned run; default that of the file")
    parser.add_argument("--batch-size", type=int, metavar="B", help="groups per step; default that of the file, or 64")
    parser.add_argument("--prompts", type=int, metavar="P", help="size of the training set; default the file's prompts")
    parser.add_argument("--slots", type=int, metavar="C", help="rollouts the servers run at once; default 2 B")
    parser.add_argument("--steps", type=int, default=12, metavar="N", help="simulated steps, default 12")
    parser.add_argument("--replicates", type=int, default=8, metavar="R", help="simulations of resamples, default 8")
    parser.add_argument("--success-threshold", type=float, metavar="X", help="a score of at least X passes")
    parser.add_argument("--seed", type=int, default=0, help="seed, default 0")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Prints the plan."""
    try:
        from verl_sara.simulate import observed as reading
        from verl_sara.simulate import paired, plan
    except ImportError as error:
        raise ConfigError(f"sara plan needs numpy: {error}") from error
    observed = reading.read_observed(args.file, success_threshold=args.success_threshold)
    planner = plan.Planner(observed, _settings(args, observed, plan))
    options, costs = plan.options_table(planner), plan.costs_table(planner)
    word, sentences = plan.verdict(planner, options, costs)
    facts = _facts(planner)
    replays = paired.replay_presets(observed, planner.settings.group_size, planner.settings.batch_size)
    if args.json:
        numbers = {"observed": facts, "options": options.numbers, "costs": costs.numbers}
        numbers["replayed"] = {name: estimate.as_list() for name, estimate in replays.items()}
        print(json.dumps(numbers | {"recommendation": plan.recommendation(planner, options), "verdict": word}))
        return 0
    lines = [
        f"{facts['groups']} groups of up to {facts['group_size']} from {facts['prompts']} prompts: "
        f"{facts['unsolved']:.0%} all-fail, {facts['mixed']:.0%} mixed, {facts['solved']:.0%} all-pass",
        *observed.problems,
    ]
    if observed.is_censored:
        lines.append(
            "Some groups were abandoned early: their prefixes are used as such, so the shares are of prefixes."
        )
    told = [f"{name} {found.value:.2f} [{found.low:.2f}, {found.high:.2f}]" for name, found in replays.items()]
    if told:
        sentences += [
            "Replayed on the full groups in their order (paired), rollouts per effective group relative to theirs:",
            f"{', '.join(told)}.",
        ]
    print("\n".join([*lines, "", options.text(), "", costs.text(), "", *sentences]))
    return 0


def _settings(args: argparse.Namespace, observed: Any, plan: Any) -> Any:
    batch_size = args.batch_size if args.batch_size is not None else observed.batch_size or 64
    return plan.PlanSettings(
        group_size=args.group_size if args.group_size is not None else observed.group_size,
        batch_size=batch_size,
        num_prompts=args.prompts,
        num_steps=args.steps,
        num_replicates=args.replicates,
        num_slots=args.slots if args.slots is not None else 2 * batch_size,
        seed=args.seed,
    )


def _facts(planner: Any) -> dict[str, Any]:
    total = len(planner.passes)
    return {
        "groups": total,
        "prompts": len({group.prompt_id for group in planner.observed.groups}),
        "group_size": planner.observed.group_size,
        "unsolved": float((planner.passes == 0).sum() / total),
        "solved": float((planner.fails == 0).sum() / total),
        "mixed": float(((planner.passes > 0) & (planner.fails > 0)).sum() / total),
        "length_unit": planner.observed.length_unit,
        "problems": planner.observed.problems,
    }
