"""math-verify in killable workers: a deadline for every question, no signal, no thread that waits for ever.

A worker is a process of its own, started at the first question and replaced when it was killed. Calls are
safe from any thread; at most `MAX_WORKERS` questions run at once and others wait their turn before their
deadline starts to run.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import select
import subprocess
import sys
import threading
import time
from functools import lru_cache

MAX_WORKERS = max(1, min(4, (os.cpu_count() or 2) // 2))
DEADLINE_S = 3.0
"""Seconds one question may take."""

START_S = 120.0
"""Seconds a worker may take to import math-verify; not part of any deadline."""

MAX_LENGTH = 300
"""Longest answer, in characters, that is worth a symbolic comparison; longer ones count as different."""

_REQUESTS_PER_WORKER = 5000


class SymbolicError(RuntimeError):
    """The symbolic comparison failed; nothing is known about the answer."""


class SymbolicTimeout(SymbolicError):
    """The symbolic comparison was killed at its deadline."""


def is_available() -> bool:
    """Whether math-verify can be imported here."""
    return importlib.util.find_spec("math_verify") is not None


def equal(gold: str, answer: str, deadline_s: float = DEADLINE_S) -> bool:
    """Returns whether two answers in canonical LaTeX are mathematically equal.

    Raises:
      SymbolicTimeout: If the question took longer than `deadline_s` seconds.
      SymbolicError: If math-verify is missing, or the comparison failed.
    """
    if max(len(gold), len(answer)) > MAX_LENGTH:
        return False
    return _decide(gold, answer, deadline_s)


@lru_cache(maxsize=8192)
def _decide(gold: str, answer: str, deadline_s: float) -> bool:
    return _pool().ask(gold, answer, deadline_s)


class _Worker:
    """One process and the two pipes to it."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.symbolic_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=environment,
        )
        self.num_requests = 0
        self.buffer = b""
        try:
            reply = self.read_line(START_S)
            if reply != "ready":
                raise SymbolicError(
                    f"math-verify does not start: {reply.lstrip('!')}; pip install math-verify"
                )
        except OSError as error:
            self.kill()
            raise SymbolicError(f"math-verify does not start: {error}") from error
        except BaseException:
            self.kill()
            raise

    def ask(self, gold: str, answer: str, deadline_s: float) -> bool:
        assert self.process.stdin is not None
        self.num_requests += 1
        self.process.stdin.write(json.dumps([gold, answer]).encode() + b"\n")
        reply = self.read_line(deadline_s)
        if reply.startswith("!"):
            raise SymbolicError(f"math-verify failed on {answer[:80]!r}: {reply[1:200]}")
        return reply == "1"

    def read_line(self, deadline_s: float) -> str:
        assert self.process.stdout is not None
        poll = select.poll()
        poll.register(self.process.stdout, select.POLLIN | select.POLLHUP)
        end = time.monotonic() + deadline_s
        while b"\n" not in self.buffer:
            remaining = end - time.monotonic()
            if remaining <= 0 or not poll.poll(remaining * 1000):
                raise SymbolicTimeout(f"no symbolic verdict within {deadline_s} s")
            chunk = os.read(self.process.stdout.fileno(), 4096)
            if not chunk:
                raise BrokenPipeError("the symbolic worker ended")
            self.buffer += chunk
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line.decode()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class _Pool:
    """Idle workers of one process; a worker that hung, died or is worn out is not put back."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.slots = threading.BoundedSemaphore(MAX_WORKERS)
        self.idle: list[_Worker] = []
        self.lock = threading.Lock()

    def ask(self, gold: str, answer: str, deadline_s: float) -> bool:
        with self.slots:
            for is_last_try in (False, True):
                worker = self.take()
                try:
                    verdict = worker.ask(gold, answer, deadline_s)
                except SymbolicTimeout:
                    worker.kill()
                    raise
                except SymbolicError:
                    self.put_back(worker)
                    raise
                except OSError as error:  # it died while idle, or ran out of memory on this question
                    worker.kill()
                    if is_last_try:
                        raise SymbolicError(f"the symbolic worker died on {answer[:80]!r}") from error
                except BaseException:
                    worker.kill()
                    raise
                else:
                    self.put_back(worker)
                    return verdict
        raise AssertionError("unreachable")

    def take(self) -> _Worker:
        with self.lock:
            if self.idle:
                return self.idle.pop()
        return _Worker()

    def put_back(self, worker: _Worker) -> None:
        if worker.num_requests >= _REQUESTS_PER_WORKER:
            worker.kill()
            return
        with self.lock:
            self.idle.append(worker)

    def close(self) -> None:
        if self.owner == os.getpid():
            while self.idle:
                self.idle.pop().kill()


_pool_lock = threading.Lock()
_pools: list[_Pool] = []


def _pool() -> _Pool:
    """Returns this process's pool; a forked child gets its own."""
    with _pool_lock:
        if not _pools or _pools[-1].owner != os.getpid():
            _pools[:] = [_Pool()]
        return _pools[-1]


@atexit.register
def _close() -> None:
    for pool in _pools:
        pool.close()
