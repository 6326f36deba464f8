"""The report: complete, self-contained, escaped, and with the summary's numbers."""

import html
import json
import re
from html.parser import HTMLParser
from itertools import pairwise

import matplotlib
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tests.simulated_runs import PRESETS, write_arms, write_run
from verl_sara.ledger import LedgerError
from verl_sara.metrics import clopper_pearson
from verl_sara.report import SECTIONS, Table, cost_figures, course_figures, load_runs, tables, write_report
from verl_sara.report.style import ARM_COLOURS, FATE_COLOURS, PHASE_COLOURS, arm_style
from verl_sara.summary import summarise

HOSTILE = "<script>alert('x')</script> & \"y\" | z_% $x^$"
FIGURES = [
    (cost_figures.savings,),
    (cost_figures.cost_by_fate, "rollouts"),
    (cost_figures.cost_by_fate, "tokens"),
    (cost_figures.accuracy_against, "rollouts"),
    (cost_figures.accuracy_against, "tokens"),
    (course_figures.batch_over_training,),
    (course_figures.verdicts,),
    (course_figures.calibration,),
    (course_figures.replayed_cost,),
    (course_figures.wall_clock,),
    (course_figures.rounds_and_occupancy,),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Arms, one with a hostile name, one audited."""
    root = tmp_path_factory.mktemp("arms")
    arms = write_arms(root, ("verl_ds", "ds", "uniform"), steps=6)
    return {**arms, HOSTILE: write_run(root / "audited", "paper", steps=6, audits=0.3)}


@pytest.fixture(scope="module")
def runs(folders):
    return load_runs(folders)


@pytest.fixture(scope="module")
def sections(runs):
    return {build.__name__: build(runs) for build in SECTIONS}


@pytest.fixture(scope="module")
def page(folders, tmp_path_factory):
    """The HTML file of the report."""
    return write_report(folders, tmp_path_factory.mktemp("out") / "report")


class Tags(HTMLParser):
    """Collects the tags of a page, and checks that they close."""

    VOID = ("meta", "img", "link", "br")

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.attributes = [], [], []

    def handle_starttag(self, tag, attributes):
        self.seen.append(tag)
        self.attributes += attributes
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_needs_nothing_from_elsewhere(page):
    tags = Tags()
    tags.feed(page.read_text())
    assert tags.open == [] and "script" not in tags.seen and "link" not in tags.seen
    sources = [value for name, value in tags.attributes if name in ("src", "href")]
    assert len(sources) == len(FIGURES) and all(value.startswith("data:image/png;base64,") for value in sources)


def test_every_text_is_escaped(page):
    text = page.read_text()
    assert "<script" not in text and html.escape(HOSTILE) in text


def evil(place):
    return f"<img src=x onerror={place}>![i](http://x/{place}) `{place}` |"


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    """The report of two runs, one with texts of others wherever a report may show them."""
    root = tmp_path_factory.mktemp("attacked")
    folder, other = (write_run(root / name, "ds", steps=2) for name in ("run", "other"))
    ledger, log = folder / "sara" / "ledger.attempt-1.jsonl", folder / "verl.attempt-1.jsonl"
    header, *records = [json.loads(line) for line in ledger.read_text().splitlines()]
    header["options"] |= {"option": evil("option"), "preset": evil("preset")}
    header["task"] = {"train_files": evil("task")}
    trained = next(record for record in records if record.get("fate") == "trained")
    trained["slots"]["outcome"] = [1] * 8  # a problem, told with the uid
    trained["uid"] = trained["prompt_id"] = evil("prompt")
    ledger.write_text("".join(json.dumps(record) + "\n" for record in (header, *records)))
    source = json.dumps({"step": 2, "data": {f"val-core/{evil('source')}/acc/mean@4": "none"}})
    log.write_text(f"{log.read_text()}{evil('log')}\n{source}\n")
    return write_report({evil("name"): folder, "other": other}, root / "out", baselines=["other"])


@pytest.mark.parametrize("place", ["name", "option", "preset", "task", "prompt", "source", "log"])
def test_what_others_wrote_is_shown_as_text(attacked, place):
    """Names of runs and data sources, options, prompts and stray text in a log come from elsewhere."""
    page, markdown = attacked.read_text(), (attacked.parent / "report.md").read_text()
    assert f"&lt;img src=x onerror={place}" in page and f"&lt;img src=x onerror={place}" in markdown
    tags = Tags()
    tags.feed(page)
    assert tags.open == [] and "onerror" not in dict(tags.attributes)
    assert "<img src=x" not in markdown and f"](http://x/{place}" not in markdown and f" `{place}" not in markdown


def test_the_markdown_names_every_figure_and_its_tables_are_whole(page):
    text = (page.parent / "report.md").read_text()
    pictures = re.findall(r"!\[[^]]+\]\((\w+)\.png\)", text)
    assert len(pictures) == len(FIGURES)
    assert {path.stem for path in page.parent.glob("*.png")} == set(pictures)
    for block in re.findall(r"(?:^\|.*\n)+", text, re.M):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


def test_the_report_gives_the_numbers_of_the_summary(page, folders, runs):
    found = summarise(folders)
    assert runs.summary == found
    text = html.unescape(page.read_text())
    for name, arm in found["arms"].items():
        assert name in text and f"{arm['rollouts']:,}" in text and f"{arm['generated_tokens']:,}" in text
    saved = found["savings"][HOSTILE]["measured"]["ds"]["rollouts"][0]
    assert f"{100 * saved:.0f} % [" in text


def test_every_section_asks_a_question_and_has_its_tables(sections):
    for section in sections.values():
        assert section.question.endswith("?") and section.tables
        for table in section.tables:
            assert table.rows and all(len(row) == len(table.head) for row in table.rows), (section.name, table.caption)
            assert table.caption.endswith(".")


def test_the_same_runs_give_the_same_bytes(page, folders, tmp_path):
    again = write_report(folders, tmp_path)
    assert again.read_bytes() == page.read_bytes()


# ---- figures ----------------------------------------------------------------------------------


def texts_of(figure):
    return [text for axes in figure.axes for text in (axes.get_xlabel(), axes.get_ylabel(), axes.get_title(loc="left"))]


@pytest.mark.parametrize("case", FIGURES, ids=lambda case: "-".join(getattr(part, "__name__", part) for part in case))
def test_a_figure_is_labelled_and_its_texts_do_not_overlap(runs, case):
    draw, *args = case
    figure = draw(runs, *args)
    assert isinstance(figure, Figure) and any(axes.get_xlabel() for axes in figure.axes)
    check_texts(figure, draw.__name__)


def check_texts(figure, name):
    """Labels of an axis do not overlap; legend and axes lie within the figure, and apart."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    for axes in figure.axes:
        for labels in (axes.get_yticklabels(), axes.get_xticklabels()):
            boxes = [label.get_window_extent(renderer) for label in labels if label.get_text() and label.get_visible()]
            assert not any(one.overlaps(other) for one, other in pairwise(boxes)), name
    width, height = figure.canvas.get_width_height()
    for axes in figure.axes:
        box = axes.get_tightbbox(renderer)
        assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1, name
        for legend in figure.legends:
            assert not legend.get_window_extent(renderer).overlaps(axes.get_window_extent(renderer)), name


def test_drawing_leaves_the_callers_settings_alone(runs):
    before = dict(matplotlib.rcParams)
    course_figures.wall_clock(runs)
    assert dict(matplotlib.rcParams) == before


def luminance(colour):
    """Relative luminance, WCAG 2."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


# dichromats see two of the three cone responses; matrices of Vienot, Brettel and Mollon 1999, in linear RGB
DICHROMATS = {
    "protan": ((0.11238, 0.88762, 0.0), (0.11238, 0.88762, 0.0), (0.00401, -0.00401, 1.0)),
    "deutan": ((0.29275, 0.70725, 0.0), (0.29275, 0.70725, 0.0), (-0.02234, 0.02234, 1.0)),
}


def seen_by(colour, matrix):
    channels = [(int(colour[i : i + 2], 16) / 255) ** 2.2 for i in (1, 3, 5)]
    seen = [max(0.0, sum(weight * channel for weight, channel in zip(row, channels, strict=True))) for row in matrix]
    return [value ** (1 / 2.2) for value in seen]


@pytest.mark.parametrize("kind", DICHROMATS)
@pytest.mark.parametrize("palette", [ARM_COLOURS, tuple(FATE_COLOURS.values()), tuple(PHASE_COLOURS.values())])
def test_no_two_colours_of_a_palette_look_alike_to_the_colour_blind(kind, palette):
    seen = [seen_by(colour, DICHROMATS[kind]) for colour in palette]
    for i, one in enumerate(seen):
        for other in seen[:i]:
            assert max(abs(a - b) for a, b in zip(one, other, strict=True)) > 0.09


def test_arms_differ_in_marker_and_line_too():
    styles = arm_style([str(i) for i in range(7)])
    assert len({style["marker"] for style in styles.values()}) == 7
    assert len({style["color"] for style in styles.values()}) == 7


# ---- incomplete runs --------------------------------------------------------------------------


def test_a_plain_run_and_an_unreadable_one_are_reported_as_far_as_they_go(folders, tmp_path):
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "run.jsonl").write_text((folders["ds"] / "verl.attempt-1.jsonl").read_text())
    newer = write_run(tmp_path / "newer", "paper", steps=1)
    ledger = newer / "sara" / "ledger.attempt-1.jsonl"
    ledger.write_text(ledger.read_text().replace('"schema":1', '"schema":2'))
    (newer / "verl.attempt-1.jsonl").unlink()
    page = write_report({"ds": folders["ds"], "plain": plain, "newer": newer}, tmp_path / "out")
    text = html.unescape(page.read_text())
    assert "plain has no ledger: only what verl's own log supports is shown" in text
    assert "schema 2; this version reads 1" in text and "not read:" in text


def test_a_single_plain_run_alone_makes_a_report(folders, tmp_path):
    (tmp_path / "run.log").write_text("step:1 - timing_s/step:2.0 - timing_s/gen:1.0\n")
    page = write_report({"plain": tmp_path}, tmp_path / "out")
    assert "nothing to compare" not in page.read_text() and page.stat().st_size > 10_000


def test_a_run_that_has_just_begun_makes_a_report(tmp_path):
    from verl_sara.ledger import LedgerWriter

    LedgerWriter(tmp_path / "run" / "sara", "r", {"options": {"preset": "paper", "group_size": 8}}).close()
    assert write_report({"begun": tmp_path / "run"}, tmp_path / "out").exists()


def test_nothing_readable_is_an_error_that_says_why(tmp_path):
    with pytest.raises(LedgerError, match=r"x: no ledger in .*; and no log of verl in"):
        write_report({"x": tmp_path}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_seeds_are_drawn_as_a_band(tmp_path):
    runs = load_runs({f"paper/{seed}": write_run(tmp_path / str(seed), "paper", steps=6, seed=seed) for seed in (1, 2)})
    figure = cost_figures.accuracy_against(runs, "rollouts")
    (line,) = figure.axes[0].lines
    assert line.get_label() == "paper (n = 2 seeds)" and len(figure.axes[0].collections) == 1
    assert figure.axes[0].get_ylabel() == "validation accuracy\n(mean of seeds; band: range)"
    per_step = course_figures.batch_over_training(runs).axes[2].lines
    launched = [arm.history()[3]["fates"]["launched"]["rollouts"] for arm in runs.arms.values()]
    assert len(per_step) == 1 and per_step[0].get_ydata()[3] == sum(launched) / 2
    first = [arm.costs()[3]["fates"]["launched"] for arm in runs.arms.values()]
    assert len(first) == 2 and tables.measured(runs).rows == []


def test_many_arms_and_seeds_stay_readable(tmp_path):
    """Six arms with three seeds: figures grow by arm, not by run, and nothing overlaps."""
    kinds = {
        "verl_ds": {},
        "ds": {},
        "uniform": {},
        "paper": {},
        "tuned": {"tau_low": 0.3, "audits": 0.3},
        "a-long-name": {},
    }
    runs = load_runs(
        {
            f"{name}/{seed}": write_run(
                tmp_path / f"{name}{seed}", name if name in PRESETS else "paper", steps=3, seed=seed, **changes
            )
            for seed in (1, 2, 3)
            for name, changes in kinds.items()
        }
    )
    for draw, *args in FIGURES:
        figure = draw(runs, *args)
        width, height = figure.get_size_inches()
        assert width <= 10 and height <= 15, draw.__name__
        check_texts(figure, draw.__name__)
    assert len(course_figures.verdicts(runs).axes) == 3


# ---- tables -----------------------------------------------------------------------------------


def test_a_table_in_markdown_latex_and_html():
    table = Table("A & b, 5 % of x_y.", ["arm", "a|b"], [["<i>", "1 %"], ["y", "$2^3~\\{"]])
    assert table.markdown().splitlines() == [
        "| arm    |    a\\|b |",
        "| ------ | ------: |",
        "| &lt;i> |     1 % |",
        "| y      | $2^3~\\{ |",
        "",
        "*A &amp; b, 5 % of x_y.*",
    ]
    latex = table.latex()
    assert r"\caption{A \& b, 5 \% of x\_y.}" in latex and r"<i> & 1 \% \\" in latex
    assert r"y & \$2\textasciicircum{}3\textasciitilde{}\textbackslash{}\{ \\" in latex
    assert r"\begin{tabular}{lr}" in latex
    assert "<td>&lt;i&gt;</td>" in table.html() and table._repr_html_() == table.html()


def test_the_bound_is_claimed_only_where_the_prior_was_fitted_or_groups_were_audited(tmp_path):
    runs = load_runs(
        {
            "plain": write_run(tmp_path / "plain", "paper", steps=4),
            "fitted": write_run(tmp_path / "fitted", "paper", steps=4, prior_source="empirical_bayes"),
            "audited": write_run(tmp_path / "audited", "paper", steps=4, audits=0.5),
        }
    )
    rows = {row[0]: row for row in tables.reliability(runs).rows}
    assert rows["plain"][-1] == "not claimed: fixed prior, no audit" and rows["plain"][3] == "0"
    assert rows["fitted"][-1] == "under the fitted prior" and rows["fitted"][1] == "empirical bayes"
    total, mixed, rate = runs.arms["audited"].stopping.audited()["both"]
    exact = clopper_pearson(mixed, total)
    assert total > 5 and rate == exact and rows["audited"][-1] == f"audited: q at most {exact.high:.2f}"
    audited = [row for row in tables.wrong_abandons(runs).rows if row[0] == "audited, audited"]
    assert [row[1] for row in audited] == ["all-fail", "all-pass", "both"]
    assert audited[2][4] == f"{exact.value:.2f} [{exact.low:.2f}, {exact.high:.2f}]"


def test_every_table_tells_n(sections):
    for section in list(sections.values())[1:]:
        for table in section.tables:
            assert any(name.endswith(" n") for name in table.head) or table.caption.startswith(
                ("Counterfactual", "What the runs differ")
            ), table.caption


def test_kinds_of_saving_stand_in_tables_of_their_own(sections):
    found = sections["rollout_savings"].tables
    kinds = [[kind for kind in ("Measured", "Replayed", "Counterfactual") if kind in table.caption] for table in found]
    assert kinds == [["Measured"], ["Replayed"], ["Counterfactual"], []]


def test_runs_that_differ_in_setup_show_it_and_are_compared_all_the_same(tmp_path):
    runs = {}
    for name in ("grpo", "rloo"):
        runs[name] = write_run(tmp_path / name, "ds", steps=2)
        ledger = runs[name] / "sara" / "ledger.attempt-1.jsonl"
        ledger.write_text(
            ledger.read_text().replace('"options":', f'"setup":{{"adv_estimator":"{name}"}},"options":', 1)
        )
    loaded = load_runs(runs, baselines=["grpo"])
    table = tables.settings(loaded)
    assert table.head[:2] == ["run", "adv_estimator"] and [row[1] for row in table.rows] == ["grpo", "rloo"]
    assert "refused" not in loaded.summary["savings"]["rloo"]["measured"]["grpo"]
