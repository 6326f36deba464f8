"""The rollout worker without Ray: what is sampled again, what is graded again, and who gets the next prompts."""

import asyncio
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.verl


class EngineDeadError(Exception):
    """As vLLM's."""


TOO_LONG = ValueError("prompt of 5000 tokens is longer than max_model_len")
DEAD_ENGINE = EngineDeadError("engine core died")


def in_a_task(cause):
    """What a caller sees of an error inside a Ray actor."""
    from ray.exceptions import RayTaskError

    return RayTaskError("generate", "traceback", cause).as_instanceof_cause()


def dead_actor():
    from ray.exceptions import ActorDiedError

    return ActorDiedError()


def make_worker(run):
    """A worker whose rollouts are `run`."""
    from verl_sara.adapters.agent_loop import SaraAgentLoopWorker

    worker = object.__new__(SaraAgentLoopWorker)
    worker.sara = SimpleNamespace(mode="collect", rollout_timeout_s=60.0, max_retries=2)
    worker.generated, worker._run_agent_loop = {}, run
    return worker


@pytest.mark.parametrize(
    ("make_error", "status", "num_attempts", "text"),
    [
        (lambda: in_a_task(TOO_LONG), "error", 1, f"ValueError: {TOO_LONG}"),
        (lambda: in_a_task(DEAD_ENGINE), "lost", 3, f"EngineDeadError: {DEAD_ENGINE}"),
        (lambda: ConnectionResetError("peer"), "lost", 3, "ConnectionResetError: peer"),
        (dead_actor, "lost", 3, "ActorDiedError: "),
        (lambda: KeyError("tool"), "error", 1, "KeyError: 'tool'"),
    ],
)
def test_only_the_loss_of_a_server_or_worker_is_sampled_again(make_error, status, num_attempts, text):
    attempts = []

    async def run(*args, session_id, **kwargs):
        attempts.append(session_id)
        raise make_error()

    result = asyncio.run(make_worker(run)._rollout(3, {"uid": "u"}, {}, {}, False))
    assert (result.slot, result.status.value, attempts) == (3, status, [3] * num_attempts)
    assert result.passed is None and result.error.startswith(text)


def test_a_rollout_that_succeeds_after_a_loss_counts_as_any_other():
    failures = [dead_actor()]

    async def run(*args, **kwargs):
        if failures:
            raise failures.pop()
        return True

    result = asyncio.run(make_worker(run)._rollout(0, {"uid": "u"}, {}, {}, False))
    assert (result.status.value, result.passed) == ("ok", True)


@pytest.mark.parametrize("make_error", [dead_actor, lambda: in_a_task(ValueError("no gold"))])
def test_a_response_is_graded_twice_and_then_given_up(monkeypatch, make_error):
    from verl_sara.adapters.agent_loop import GradingError
    from verl_sara.adapters.compat import plain_worker_class

    graded = []

    async def grade(self, outputs, kwargs):
        graded.append(outputs)
        raise make_error()

    monkeypatch.setattr(plain_worker_class(), "_compute_score", grade)
    with pytest.raises(GradingError, match=r"reward function: (ActorDiedError|ValueError)"):
        asyncio.run(make_worker(None)._compute_score(["response"], {}))
    assert graded == [["response"]] * 2


def test_a_failure_is_told_in_one_bounded_line_without_control_characters():
    from verl_sara.adapters.agent_loop import MAX_ERROR_CHARS, in_one_line

    text = in_one_line(in_a_task(ValueError("no number in \x1b]0;owned\x07\r\n\u202e" + "x" * 100_000)))
    assert text.startswith("ValueError: no number in ?]0;owned? ?xxx")
    assert text.isprintable() and len(text) == MAX_ERROR_CHARS


@pytest.mark.parametrize(
    ("num_prompts", "orders"),
    [(1, ["abc", "bca", "cab"]), (2, ["abc", "cab", "bca"]), (4, ["abc", "cab", "bca"]), (9, ["abc", "abc"])],
)
def test_workers_take_turns(monkeypatch, num_prompts, orders):
    """Of three workers, one prompt is served by one, two and four prompts by two, nine by all."""
    import torch
    from tensordict import NonTensorData, TensorDict
    from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ

    from verl_sara.adapters.agent_loop import SaraAgentLoopManager

    seen = []
    monkeypatch.setattr(
        AgentLoopManagerTQ, "generate_sequences", lambda self, prompts: seen.append("".join(self.agent_loop_workers))
    )
    manager = object.__new__(SaraAgentLoopManager)
    manager.agent_loop_workers = list("abc")
    prompts = TensorDict({"index": torch.zeros(num_prompts)}, batch_size=num_prompts)
    prompts["validate"] = NonTensorData(True, batch_size=num_prompts)
    assert len(prompts.chunk(3)) == min(3, -(-num_prompts // -(-num_prompts // 3)))
    for _ in orders:
        manager.generate_sequences(prompts)
    assert seen == orders
