"""Numbers by hand, by a second route, and their invariants."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_sara.core import (
    UNIFORM,
    BetaPrior,
    Fate,
    Group,
    Phase,
    SaraThreshold,
    align_lengths,
    prob_effective,
    stage_boundaries,
)
from verl_sara.ledger import balance
from verl_sara.metrics import (
    Audits,
    Estimate,
    FullGroups,
    IdealDs,
    Lengths,
    Occupancy,
    RatioOfRatios,
    Stopping,
    audit_metrics,
    clopper_pearson,
    cost_per_effective_group,
    effective_fraction,
    groups_trained,
    ideal_ds_cost,
    proportion,
    ratio,
    saving,
    step_metrics,
)

PAPER = {"prior": UNIFORM, "probe_size": 4, "increment": 1}


def record(outcomes, *, tokens=None, fate="trained", verdict="commit", reason="mixed", step=1, **changes):
    """A group line with the given outcomes, 10 tokens a rollout."""
    k = changes.pop("group_size", 8)
    return {
        "step": step,
        "uid": "u",
        "prompt_id": "p",
        "group_size": k,
        "prior": [1.0, 1.0],
        "n0": k,
        "n1": k,
        "slots": {"outcome": list(outcomes), "tokens": tokens or [10] * len(outcomes)},
        "verdict": verdict,
        "reason": reason,
        "verdict_length": len(outcomes),
        "p_eff": None,
        "fate": fate,
        **changes,
    }


def step_line(groups, **changes):
    numbers = {"step": 1, "rounds": 2, "commit_rate": 0.5, "is_exhausted": False, "collect_s": 1.5}
    return {**numbers, "fates": balance(groups), **changes}


OUTCOMES = st.lists(st.lists(st.integers(0, 1), min_size=8, max_size=8), min_size=1, max_size=30)


# ---- estimates --------------------------------------------------------------------------------


def test_ratio_by_hand():
    found = ratio([10, 20, 30], [1, 2, 2])
    half = 1.959963984540054 * math.sqrt(1.5 * (4 + 16 + 36)) / 5
    assert found.value == 12 and found.high - 12 == pytest.approx(half) and 12 - found.low == pytest.approx(half)


def test_ratio_without_denominator_or_with_one_pair_has_no_interval():
    assert math.isnan(ratio([1], [0]).value) and math.isnan(ratio([], []).value)
    assert ratio([6], [2]).as_list() == [3.0, None, None]


# Wilson's interval of 8 in 10 and 0 in 10: (p + z2/2n -+ z sqrt(p q/n + z2/4n2)) / (1 + z2/n)
@pytest.mark.parametrize(("count", "total", "low", "high"), [(8, 10, 0.4901625, 0.9433178), (0, 10, 0.0, 0.2775328)])
def test_proportion_is_wilsons(count, total, low, high):
    found = proportion(count, total)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-6)


def test_saving_of_half_with_its_interval():
    found = saving(Estimate(10, 8, 12), Estimate(20, 16, 24))
    spread = math.hypot(0.2, 0.2)
    assert found.as_list() == pytest.approx([0.5, 1 - 0.5 * math.exp(spread), 1 - 0.5 * math.exp(-spread)])
    assert math.isnan(saving(Estimate(0), Estimate(20)).value)


@given(st.lists(st.tuples(*[st.integers(0, 50)] * 4), min_size=2, max_size=20))
def test_running_ratio_of_ratios_agrees_with_the_sums_and_the_terms(terms):
    running = RatioOfRatios()
    for term in terms:
        running.add(*term)
    a, b, c, d = (sum(column) for column in zip(*terms, strict=True))
    found = running.estimate()
    if not (a and b and c and d):
        assert math.isnan(found.value)
        return
    assert found.value == pytest.approx((a / b) / (c / d))
    squares = sum((w / a - x / b - y / c + z / d) ** 2 for w, x, y, z in terms)
    spread = 1.959963984540054 * math.sqrt(squares * len(terms) / (len(terms) - 1))
    assert math.log(found.high / found.value) == pytest.approx(spread, abs=1e-6)
    assert found.low <= found.value <= found.high


# ---- steps ------------------------------------------------------------------------------------


def test_numbers_of_a_step_by_hand():
    groups = [
        record([0, 1] * 4),
        record([1] * 8, fate="saturated_trained"),
        record([0] * 5, fate="abandoned"),
        record([0, 1, 1, 0], fate="surplus"),
    ]
    step = step_line(groups)
    assert groups_trained(step) == 2 and effective_fraction([step]).value == 0.5
    assert cost_per_effective_group([step], "rollouts").value == 25
    assert cost_per_effective_group([step], "tokens").value == 250
    numbers = step_metrics(step)
    assert numbers["sara/rollouts_launched_total"] == 25 and numbers["sara/tokens_abandoned_total"] == 50
    assert numbers["sara/effective_fraction"] == 0.5 and numbers["sara/prompts_visited_total"] == 4


def test_metric_names_choose_the_right_reduction_of_an_async_aggregator():
    """verl takes max, min or sum by what a name contains; counts must be summed, the others averaged."""
    for name, value in step_metrics(step_line([record([0, 1] * 4)])).items():
        is_summed = "sum" in name or "total" in name
        assert "max" not in name and "min" not in name and isinstance(value, (int, float)), name
        assert is_summed == name.endswith("_total"), name


def test_a_step_that_trained_nothing_has_no_ratios():
    numbers = step_metrics(step_line([record([0] * 5, fate="abandoned")]))
    assert "sara/effective_fraction" not in numbers and "sara/rollouts_per_effective_group" not in numbers


# ---- replay -----------------------------------------------------------------------------------


def by_the_machine(outcomes, rule):
    """The second route: the group machine of the core, fed stage by stage. Returns (rollouts, is kept)."""
    boundaries = stage_boundaries(8, PAPER["probe_size"], PAPER["increment"])
    lengths = align_lengths(rule.lengths(UNIFORM, 8), boundaries)
    group = Group("u", "p", 0, 8, UNIFORM, lengths, boundaries)
    while count := group.next_grant():
        for slot in group.launch(count, 0):
            group.record(slot, bool(outcomes[slot]), 10)
    return group.num_launched, group.phase is Phase.COMPLETE


def full_groups(groups):
    full = FullGroups()
    for group in groups:
        full.add(group)
    return full


@given(OUTCOMES, st.sampled_from([0.1, 0.2, 0.35, 0.4, 0.5, 0.7]))
def test_a_replayed_saving_agrees_with_the_group_machine(groups, tau_low):
    rule = SaraThreshold(tau_low)
    played = [by_the_machine(outcomes, rule) for outcomes in groups]
    rollouts, kept = (sum(column) for column in zip(*played, strict=True))
    mixed = sum(0 < sum(outcomes) < 8 for outcomes in groups)
    found = full_groups(map(record, groups)).replay(rule, **PAPER).rollouts
    if not kept:
        assert math.isnan(found.value)
    else:
        assert found.value == pytest.approx((rollouts / kept) / (8 * len(groups) / mixed))


def test_replay_of_four_groups_by_hand():
    """n* = 5: the all-fail group costs 5, the mixed one whose first five fail is wrongly abandoned."""
    groups = [[0] * 8, [0] * 5 + [1] * 3, [1, 0] * 4, [1, 1, 1, 1, 0, 0, 0, 0]]
    full = full_groups(record(outcomes, tokens=[1, 2, 3, 4, 5, 6, 7, 8]) for outcomes in groups)
    result = full.replay(SaraThreshold(0.4), **PAPER)
    # rollouts: (5 + 5 + 8 + 8) / 2 kept, against 32 / 3 mixed; tokens: (15 + 15 + 36 + 36) / 2, 144 / 3
    assert result.rollouts.value == pytest.approx((26 / 2) / (32 / 3))
    assert result.tokens.value == pytest.approx((102 / 2) / (144 / 3))
    assert result.num_abandoned == {"all_fail": 2, "all_pass": 0} and result.num_wrong == {"all_fail": 1, "all_pass": 0}
    assert result.wrong_rate().value == 0.5 and result.recall().value == pytest.approx(2 / 3)
    assert result.effective_share().value == 0.75


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 1), min_size=8, max_size=8), st.integers(1, 99)), max_size=20),
    st.sampled_from([0.1, 0.3, 0.4, 0.6]),
)
def test_sums_over_groups_that_begin_alike_give_the_intervals_of_the_groups(groups, tau_low):
    """The second route: the rule on every group, a term of the ratio each."""
    lines = [record(outcomes, tokens=[1 + 7 * i % size for i in range(8)]) for outcomes, size in groups]
    rollouts, tokens = RatioOfRatios(), RatioOfRatios()
    for line, (outcomes, _) in zip(lines, groups, strict=True):
        spent, is_kept = by_the_machine(outcomes, SaraThreshold(tau_low))
        is_mixed, counts = 0 < sum(outcomes) < 8, line["slots"]["tokens"]
        rollouts.add(spent, is_kept, 8, is_mixed)
        tokens.add(sum(counts[:spent]), is_kept, sum(counts), is_mixed)
    full = full_groups(lines[::2])
    full.update(full_groups(lines[1::2]))
    found = full.replay(SaraThreshold(tau_low), **PAPER)
    for estimate, other in ((found.rollouts, rollouts.estimate()), (found.tokens, tokens.estimate())):
        assert estimate.as_list() == pytest.approx(other.as_list(), abs=1e-6)


def test_replay_passes_over_groups_that_are_not_full_and_invents_nothing():
    found = full_groups([record([0] * 5), record([0, 1, None, 1, 1, 1, 1, 1])]).replay(SaraThreshold(0.4), **PAPER)
    assert found.num_groups == 0 and math.isnan(found.rollouts.value) and math.isnan(found.wrong_rate().value)


# ---- ideal dynamic sampling -------------------------------------------------------------------


def test_bounds_of_ideal_ds_by_hand():
    groups = [
        record([0, 1] * 4),
        record([0] * 5, fate="abandoned", verdict="abandon", reason="all_fail", p_eff=1 / 3),
        record([0] * 8, fate="audit", verdict="abandon", reason="all_fail", p_eff=1 / 3),
        record([1] * 4, fate="undecided", verdict="none", reason="step_ended"),
    ]
    # 3 decided groups of 8; one mixed, and at most 1/3 of another (the audited one is known)
    assert ideal_ds_cost(groups) == pytest.approx((24 / (4 / 3), 24.0))
    ideal = IdealDs()
    for group in groups:
        ideal.add(group)
    bounds = ideal.saving({(1, 1): (25, 1)}).as_dict()["bounds"]
    assert bounds == pytest.approx([1 - 25 / 18, 1 - 25 / 24])


def test_bounds_meet_on_full_groups_and_are_open_without_a_mixed_one():
    low, high = ideal_ds_cost(map(record, [[0, 1] * 4, [0] * 8]))
    assert low == high == 16
    assert ideal_ds_cost([record([0] * 5, verdict="abandon", p_eff=0.25)]) == (32, math.inf)
    assert all(math.isnan(x) for x in ideal_ds_cost([]))


# ---- stopping ---------------------------------------------------------------------------------


def test_calibration_by_hand():
    stopping = Stopping()
    for outcomes in ([0] * 8, [0, 0, 0, 1, 1, 1, 1, 1], [1, 0] * 4):
        stopping.add(record(outcomes))
    rows = {(row.side, row.length): row for row in stopping.calibration()}
    assert set(rows) == {("all_fail", n) for n in range(1, 8)} | {("all_pass", 1)}
    assert (rows["all_fail", 3].num_groups, rows["all_fail", 3].realised.value) == (2, 0.5)
    assert (rows["all_fail", 4].num_groups, rows["all_fail", 4].realised.value) == (1, 0.0)
    assert rows["all_pass", 1].realised.value == 1.0
    for row in rows.values():
        passed = row.length if row.side == "all_pass" else 0
        assert row.predicted == pytest.approx(prob_effective(row.length, passed, group_size=8, prior=UNIFORM))
    assert dict(stopping.mixed_after) == {8: 0, 4: 1, 2: 1}


def test_p_eff_comes_true_on_a_pool_that_is_as_the_prior_says():
    prior, draw, stopping = BetaPrior(0.5, 1.5), random.Random(5), Stopping()
    for _ in range(4000):
        rate = draw.betavariate(prior.alpha, prior.beta)
        outcomes = [int(draw.random() < rate) for _ in range(8)]
        stopping.add(record(outcomes, prior=[prior.alpha, prior.beta]))
    rows = [row for row in stopping.calibration() if row.num_groups >= 100]
    assert len(rows) >= 10
    inside = sum(row.realised.low <= row.predicted <= row.realised.high for row in rows)
    assert inside >= len(rows) - 2


def test_calibration_leaves_out_groups_that_a_rule_selected():
    stopping = Stopping()
    stopping.add(record([0, 1] * 4, n0=5, n1=5))
    assert stopping.calibration() == [] and stopping.verdicts["mixed", 8] == 1


def test_audits_are_counted_by_side():
    stopping = Stopping()
    for outcomes, reason in (([0] * 8, "all_fail"), ([0] * 7 + [1], "all_fail"), ([1] * 8, "all_pass")):
        stopping.add(record(outcomes, fate="audit", verdict="abandon", reason=reason, n0=5, n1=5))
    audited = {side: found[:2] for side, found in stopping.audited().items()}
    assert audited == {"all_fail": (2, 1), "all_pass": (1, 0), "both": (3, 1)}


def test_audits_that_were_trained_are_audits_and_cut_groups_are_none():
    run, step = Audits(), Audits()
    mixed = {"verdict": "abandon", "reason": "all_fail", "verdict_length": 5, "p_eff": 0.3}
    assert step.add(record([0] * 7 + [1], fate="trained", **mixed))
    assert step.add(record([0] * 8, fate="saturated_trained", **mixed))
    assert not step.add(record([0] * 5, fate="abandoned", **mixed))
    assert not step.add(record([0] * 8, fate="abandoned", **mixed | {"verdict_length": 8}))
    assert not step.add(record([0, 1] * 4))
    run.load_state_dict(step.state_dict())
    numbers = audit_metrics(step, run)
    assert numbers["sara/audits_total"] == numbers["sara/audits_run"] == 2
    for name in ("sara/wrong_abandon_rate", "sara/wrong_abandon_rate_run"):
        assert numbers[name] == 0.5 and numbers[f"{name}_predicted"] == 0.3
        assert numbers[f"{name}_lower"] == pytest.approx(1 - math.sqrt(0.975))
        assert numbers[f"{name}_upper"] == pytest.approx(math.sqrt(0.975))
    assert audit_metrics(Audits(), Audits()) == {"sara/audits_total": 0, "sara/audits_run": 0}


@pytest.mark.parametrize("total, upper", [(100, 0.244), (400, 0.204), (1000, 0.191)])
def test_the_one_sided_bound_at_17_percent(total, upper):
    assert clopper_pearson(17 * total // 100, total, 0.05).high == pytest.approx(upper, abs=5e-4)


@given(st.integers(1, 40), st.data())
def test_the_exact_interval_leaves_out_its_tails(total, data):
    count = data.draw(st.integers(0, total))
    interval = clopper_pearson(count, total)

    def prob(rate, counts):
        return sum(math.comb(total, x) * rate**x * (1 - rate) ** (total - x) for x in counts)

    assert interval.low <= interval.value <= interval.high
    if count:
        assert prob(interval.low, range(count, total + 1)) == pytest.approx(0.025)
    else:
        assert interval.low == 0.0
    if count < total:
        assert prob(interval.high, range(count + 1)) == pytest.approx(0.025)
    else:
        assert interval.high == 1.0


# ---- lengths and occupancy --------------------------------------------------------------------


def test_lengths_by_outcome_and_fate():
    lengths = Lengths()
    lengths.add(record([0, 1, None], tokens=[30, 10, 7]))
    lengths.add(record([0, 0], tokens=[50, 40], fate="abandoned"))
    means = {name: lengths.mean(name).value for name in ("passed", "failed", "no outcome", "fate trained")}
    assert means == pytest.approx({"passed": 10, "failed": 40, "no outcome": 7, "fate trained": 47 / 3})
    assert lengths.count("failed") == 3 and lengths.count("fate abandoned") == 2
    assert math.isnan(lengths.mean("fate audit").value)


def test_occupancy_by_hand():
    occupancy = Occupancy()
    # two at once for 1 s, then one for 3 s: 5 group-seconds of 2 x 4
    for first, last in ((0.0, 1.0), (0.0, 4.0)):
        occupancy.add(record([0, 1], times={"granted_s": first, "closed_s": last}, attempt=2))
    occupancy.add(record([0, 1], times={}))
    assert occupancy.by_step() == {(2, 1): 0.625}


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=30))
def test_occupancy_is_a_share(spans):
    occupancy = Occupancy()
    for first, length in spans:
        occupancy.add(record([0, 1], times={"granted_s": first, "closed_s": first + length}))
    (value,) = occupancy.by_step().values()
    assert math.isnan(value) or 0 <= value <= 1 + 1e-9


@given(OUTCOMES, st.lists(st.sampled_from(list(Fate)), min_size=30, max_size=30))
def test_fates_add_up_in_groups_rollouts_and_tokens(groups, chosen):
    lines = [record(outcomes, fate=fate.value) for outcomes, fate in zip(groups, chosen, strict=False)]
    totals = balance(lines)
    for unit in ("groups", "rollouts", "tokens"):
        assert sum(totals[fate.value][unit] for fate in Fate) == totals["launched"][unit]
    assert totals["launched"]["rollouts"] == 8 * len(groups)
