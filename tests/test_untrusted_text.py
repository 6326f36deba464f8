"""What a model writes reaches graders, ledger and shell as data only; the report has its own test of escaping."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from verl_sara.ledger import read_ledger
from verl_sara.rewards import compute_score

ROOT = Path(__file__).parents[1]
SOURCES = sorted([*(ROOT / "verl_sara").rglob("*.py"), *(ROOT / "slurm").glob("*.py")])
FORBIDDEN = {
    "eval", "exec", "__import__", "os.system", "os.popen", "pickle.load", "pickle.loads", "yaml.load", "sympify",
    "parse_expr",
}  # fmt: skip
ALLOWED = {("adapters/compat.py", "__import__")}  # of names written in that file


def calls(path):
    """Yields (dotted name, call) of every call in a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_text_is_run_as_code_or_by_a_shell(path):
    for name, call in calls(path):
        place = str(path.relative_to(ROOT / "verl_sara")) if "verl_sara" in path.parts else path.name
        assert name not in FORBIDDEN or (place, name) in ALLOWED, f"{path}:{call.lineno} calls {name}"
        shells = [keyword for keyword in call.keywords if keyword.arg == "shell"]
        assert not shells, f"{path}:{call.lineno} gives {name} a shell"


def test_the_reader_of_calls_sees_what_is_forbidden(tmp_path):
    file = tmp_path / "made_up.py"
    file.write_text("import os, subprocess\nos.system('ls')\nsubprocess.run('ls', shell=True)\n")
    found = dict(calls(file))
    assert "os.system" in found and found["subprocess.run"].keywords[0].arg == "shell"


def hostile(trap):
    """Texts that touch the file `trap` if anything runs them."""
    code = f"__import__('pathlib').Path({str(trap)!r}).touch()"
    return [
        code, f"$(touch {trap})", f"`touch {trap}`", f"'; touch {trap}; '", f"\n!touch {trap}\n",
        f"{{{{ ''.__class__.__mro__[1].__subclasses__() }}}} {code}", f"\\input{{|touch {trap}}}",
        f"\\write18{{touch {trap}}}", f"lambda: {code}", f"${{oc.env:HOME}} ${{{code}}}",
    ]  # fmt: skip


@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize(
    ("source", "gold", "dress"),
    [
        ("countdown", {"target": 24, "numbers": [4, 6]}, "<answer>{}</answer>"),
        ("lighteval/MATH", "24", "\\boxed{{{}}}"),
    ],
)
def test_an_answer_that_is_code_is_wrong_and_does_nothing(tmp_path, number, source, gold, dress):
    text = hostile(tmp_path / "trap")[number]
    for response in (text, dress.format(text)):
        assert compute_score(source, response, gold)["acc"] == 0
    assert not (tmp_path / "trap").exists()


LINES = "a\nb\r\u2028\u2029\x85\x0b{}\x00\x1b[2J\"}}{{\"schema\": 1}}\n"


def test_a_name_with_line_ends_and_braces_stays_one_line_of_the_ledger(tmp_path):
    from verl_sara.ledger import LedgerWriter

    writer = LedgerWriter(tmp_path, LINES, {"options": {"preset": LINES}, "task": {}, "setup": {}})
    writer.launched(1, LINES, [0])
    writer.flush()
    writer.close()
    for path in tmp_path.glob("*.jsonl"):
        for line in path.read_bytes().split(b"\n")[:-1]:
            assert isinstance(json.loads(line), dict)
    ledger = read_ledger(tmp_path)
    assert ledger.lost_rollouts == 1
    assert [problem for problem in ledger.problems if "was not finished" not in problem] == []


def test_texts_reach_the_training_program_of_a_batch_script_as_they_are(tmp_path):
    from verl_sara.cli.launch.command import setting

    program, seen, trap = tmp_path / "program.py", tmp_path / "seen.json", tmp_path / "trap"
    program.write_text(f"import json, sys\njson.dump(sys.argv[1:], open({str(seen)!r}, 'w'))\n")
    words = [setting(f"+note.text{number}", text) for number, text in enumerate(hostile(trap))]
    environment = {
        **os.environ, "SARA_ROOT": str(ROOT), "SARA_RUNS": str(tmp_path / "runs"), "SARA_SITE": "/dev/null",
        "SARA_PYTHON": sys.executable, "SARA_TRAIN": str(program), "SARA_MIN_FREE_GB": "0",
    }  # fmt: skip
    command = ["bash", "slurm/train.sbatch", "countdown_tiny", "paper", "--", *words]
    job = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert seen.exists(), job.stderr
    assert json.loads(seen.read_text())[-len(words) :] == words
    assert not trap.exists()
