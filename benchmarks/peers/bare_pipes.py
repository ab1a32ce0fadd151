"""The upper bound for Tianshou's interface: a bare loop over pipes.

Each process steps a share of the environments and writes the results to shared memory. Only a few
bytes go through the pipes. There are no checks, and errors and interrupts are not handled. Actions
must be ints, observations single arrays, and infos empty.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import select
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

RESET = 128
"""Added to an environment's number in reset requests and in the replies to them."""

SPIN = 500e-6
"""Maximum seconds for which a process spins before it blocks, if each process has a CPU."""

MOST_BYTES = 1 << 12


class BarePipes:
    """Bare loop that steps and resets environments through Tianshou's interface.

    Args:
        env_fns: callables that make one environment each, fewer than 128.
        wait_num: number of environments that ``step`` waits for.
        processes: number of processes that share the environments.
        spins: True if processes spin before they block.
    """

    is_async = True

    def __init__(
        self, env_fns: Sequence[Callable[[], Any]], wait_num: int, processes: int, spins: bool
    ) -> None:
        count = len(env_fns)
        self._wait_num = wait_num
        self._every = np.arange(count)
        with env_fns[0]() as env:
            shape = env.observation_space.shape
        context = multiprocessing.get_context("spawn")
        memory = context.RawArray("d", (4 + int(np.prod(shape))) * count)
        self._arrays = _arrays(memory, count, shape)
        bounds = [count * k // processes for k in range(processes + 1)]
        shares = list(itertools.pairwise(bounds))
        self._process_of = [k for k, share in enumerate(shares) for _ in range(*share)]
        self._processes = []
        self._requests: list[Connection] = []
        self._replies: list[Connection] = []
        self._poll = select.poll()
        self._ready: list[int] = []
        for lo, hi in shares:
            theirs, requests = context.Pipe(duplex=False)
            replies, answers = context.Pipe(duplex=False)
            mine = dict(enumerate(env_fns[lo:hi], lo))
            given = theirs, answers, mine, memory, count, shape, spins
            process = context.Process(target=_serve, args=given, daemon=True)
            process.start()
            theirs.close()
            answers.close()
            self._poll.register(replies.fileno(), select.POLLIN)
            self._processes.append(process)
            self._requests.append(requests)
            self._replies.append(replies)

    def reset(self, env_id: Any = None) -> None:
        wanted = {RESET + env for env in (self._every if env_id is None else env_id).tolist()}
        self._ask(wanted)
        while wanted:
            arrived = self._receive()
            self._ready += [env for env in arrived if env < RESET]
            wanted.difference_update(arrived)

    def step(self, actions: Any, ids: Any) -> tuple[Any, ...]:
        given, observations, rewards, terminated, truncated = self._arrays
        given[ids] = actions
        self._ask(ids.tolist())
        ready = self._ready
        while len(ready) < self._wait_num:
            ready += self._receive()
        self._ready = []
        envs = np.array(ready)
        infos = np.empty(len(ready), object)
        infos[:] = [{"env_id": env} for env in ready]
        return observations[envs], rewards[envs], terminated[envs] > 0, truncated[envs] > 0, infos

    def close(self) -> None:
        for pipe in self._requests:
            pipe.close()
        for process in self._processes:
            process.join()
        for pipe in self._replies:
            pipe.close()

    def _ask(self, numbers: Any) -> None:
        messages: dict[int, list[int]] = {}
        for number in numbers:
            messages.setdefault(self._process_of[number % RESET], []).append(number)
        for k, message in messages.items():
            os.write(self._requests[k].fileno(), bytes(message))

    def _receive(self) -> list[int]:
        return [env for fd, _ in self._poll.poll() for env in os.read(fd, MOST_BYTES)]


def _arrays(memory: Any, count: int, shape: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
    """Return views of the memory: actions, observations, rewards, and the two flags."""
    numbers = np.frombuffer(memory)
    observations = numbers[4 * count :].reshape(count, *shape)
    actions, rewards, terminated, truncated = numbers[: 4 * count].reshape(4, count)
    return [actions, observations, rewards, terminated, truncated]


def _serve(
    requests: Connection,
    replies: Connection,
    env_fns: dict[int, Callable[[], Any]],
    memory: Any,
    count: int,
    shape: tuple[int, ...],
    spins: bool,
) -> None:
    actions, observations, rewards, terminated, truncated = _arrays(memory, count, shape)
    envs = {number: env_fn() for number, env_fn in env_fns.items()}
    poll = select.poll()
    poll.register(requests.fileno(), select.POLLIN)
    while True:
        end = time.perf_counter() + SPIN * spins
        while time.perf_counter() < end and not poll.poll(0):
            os.sched_yield()
        message = os.read(requests.fileno(), MOST_BYTES)
        if not message:
            return
        for number in message:
            env = number % RESET
            if number >= RESET:
                observations[env], _ = envs[env].reset()
            else:
                step = envs[env].step(int(actions[env]))
                observations[env], rewards[env], terminated[env], truncated[env], _ = step
        os.write(replies.fileno(), message)
