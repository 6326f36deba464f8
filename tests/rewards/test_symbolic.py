"""math-verify in its worker: a deadline that holds, a worker that is replaced, calls from any thread."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from verl_sara.rewards import math_answer, symbolic

# A tower of powers: computing it takes longer than anybody waits.
ENDLESS = ("3", "7^{7^{7^{7^{7}}}}")


@pytest.fixture(scope="module")
def pool():
    """A pool apart from the one the graders use."""
    pool = symbolic._Pool()
    yield pool
    pool.close()


def test_a_question_without_end_is_killed_and_the_worker_replaced(pool):
    assert pool.ask(r"2\sqrt{3}", r"\sqrt{12}", 30.0) is True
    first = pool.idle[0].process
    with pytest.raises(symbolic.SymbolicTimeout):
        pool.ask(*ENDLESS, 0.5)
    assert first.poll() == -signal.SIGKILL
    assert pool.idle == []
    assert pool.ask(r"2\sqrt{3}", r"\sqrt{13}", 30.0) is False


def test_a_worker_that_died_while_idle_is_replaced(pool):
    assert pool.ask("x+1", "1+x", 30.0) is True
    os.kill(pool.idle[0].process.pid, signal.SIGKILL)
    assert pool.ask("x+1", "x+2", 30.0) is False


def test_answers_come_from_threads_and_no_signal_handler_changes(pool):
    before = signal.getsignal(signal.SIGALRM)
    pairs = [("x+1", f"1+x+{n}-{n % 3}") for n in range(12)]
    with ThreadPoolExecutor(4) as threads:
        verdicts = list(threads.map(lambda pair: pool.ask(*pair, 30.0), pairs))
    assert verdicts == [n == n % 3 for n in range(12)]
    assert signal.getsignal(signal.SIGALRM) is before
    assert len(pool.idle) <= symbolic.MAX_WORKERS


def test_the_grader_reports_a_timeout_as_failure():
    def slow(_gold, _answer):
        raise symbolic.SymbolicTimeout("no symbolic verdict within 3 s")

    grade = math_answer.grade(r"\boxed{2^x}", "x^2", slow)
    assert (grade.reason, grade.acc, grade.is_failure) == ("timeout", 0, True)


def test_a_long_list_asks_a_bounded_number_of_questions():
    asked = []
    gold = ",".join(f"x^{n}" for n in range(20))
    answer = ",".join(f"y^{n}+z" for n in range(20))
    grade = math_answer.grade(f"\\boxed{{{answer}}}", gold, lambda *pair: asked.append(pair) or False)
    assert (grade.reason, len(asked)) == ("wrong", 8)


def test_a_broken_comparison_is_an_error_and_not_a_wrong_answer():
    def broken(_gold, _answer):
        raise symbolic.SymbolicError("gone")

    assert math_answer.grade(r"\boxed{2^x}", "x^2", broken).reason == "error"


def test_text_of_a_model_is_never_executed(pool, tmp_path):
    trap = tmp_path / "trap"
    code = f"__import__('pathlib').Path({str(trap)!r}).touch()"
    for answer in (code, f"${code}$", f"\\text{{{code}}}"):
        assert pool.ask("1", answer, 30.0) is False
    assert not trap.exists()


def test_a_longer_answer_than_the_limit_is_different_without_asking():
    assert symbolic.equal("x", "x+" * 400 + "0") is False


def test_missing_math_verify_is_an_error_that_says_so(tmp_path):
    """The grader still decides what the normal form decides."""
    (tmp_path / "math_verify.py").write_text("raise ImportError('no math_verify here')")
    code = (
        "from verl_sara.rewards import compute_score as c;"
        r"print(c('math', r'\boxed{1/2}', '0.5')['reason'], c('math', r'\boxed{x+1}', '(1+x)^2'))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.getcwd()])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout.startswith("ok {"), done.stderr
    assert "'reason': 'error'" in done.stdout
    assert "no math_verify here" in done.stdout


def test_importing_the_graders_needs_the_standard_library_only():
    code = (
        "import sys, verl_sara.rewards, verl_sara.data.identity, verl_sara.data.countdown;"
        "print(sorted({n.split('.')[0] for n in sys.modules} - sys.stdlib_module_names - {'verl_sara'}))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, cwd=os.getcwd())
    assert done.stdout.strip() == "['__main__']", done.stdout + done.stderr
