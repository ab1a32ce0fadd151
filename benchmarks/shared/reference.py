"""Upper bounds: bare loops over ``gymnasium.make``, without a vectorized environment.

:class:`BareLoop` steps environments in this process. :class:`Limit` runs one process per core, all
at once. Each loops over its share of the environments, without communication. The slowest process
determines the figure, because a synchronous vector step also waits for the slowest worker.
"""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection
from typing import Any, Protocol

import gymnasium

from xuance_envs.engine.cpus import available_cpus
from xuance_envs.measure import sample_actions

LIMIT = "limit of the cores"
"""The name of :class:`Limit` in tables."""


class BareLoop:
    """Environments stepped in series and reset after each episode."""

    def __init__(self, env_id: str, actions: Iterable[Sequence[Any]], num_envs: int = 1) -> None:
        self.num_envs = num_envs
        self._envs = [gymnasium.make(env_id) for _ in range(num_envs)]
        self._actions = itertools.cycle([list(row) for row in actions])
        for index, env in enumerate(self._envs):
            env.reset(seed=index)

    def run(self, steps: int) -> float:
        methods = [(env.step, env.reset) for env in self._envs]
        rows = itertools.islice(self._actions, steps)
        start = time.perf_counter()
        for row in rows:
            for (step, reset), action in zip(methods, row):  # noqa: B905  # strict=True is slower
                _, _, terminated, truncated, _ = step(action)
                if terminated or truncated:
                    reset()
        return time.perf_counter() - start

    def close(self) -> None:
        for env in self._envs:
            env.close()


class Loop(Protocol):
    """Environments stepped in a loop by one process."""

    def run(self, steps: int) -> float:
        """Step every environment ``steps`` times; return the seconds."""

    def close(self) -> None:
        """Close the environments."""


LoopMaker = Callable[[str, int, int, int], Loop]
"""Function of (id, number of environments, low, high): a loop over environments low to high - 1."""


def bare_loop(env_id: str, num_envs: int, low: int, high: int) -> BareLoop:
    """Return a loop over some of the environments, with their actions."""
    with gymnasium.make(env_id) as env:
        actions = sample_actions(env.action_space, num_envs)
    return BareLoop(env_id, [row[low:high] for row in actions], high - low)


class Limit:
    """One process per core, each with a loop; idle processes block."""

    def __init__(self, env_id: str, num_envs: int, make_loop: LoopMaker = bare_loop) -> None:
        self.num_envs = num_envs
        context = multiprocessing.get_context("spawn")
        processes = min(available_cpus(), num_envs)
        bounds = [num_envs * index // processes for index in range(processes + 1)]
        self._pipes: list[Connection] = []
        self._processes = []
        for low, high in itertools.pairwise(bounds):
            pipe, child_pipe = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(child_pipe, make_loop, env_id, num_envs, low, high),
                daemon=True,
            )
            process.start()
            child_pipe.close()
            self._pipes.append(pipe)
            self._processes.append(process)
        for pipe in self._pipes:
            pipe.recv()

    def run(self, steps: int) -> float:
        """Step every environment ``steps`` times; return the seconds of the slowest process."""
        for pipe in self._pipes:
            pipe.send(steps)
        return max(float(pipe.recv()) for pipe in self._pipes)

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join()


def _serve(
    pipe: Connection, make_loop: LoopMaker, env_id: str, num_envs: int, low: int, high: int
) -> None:
    """Step environments ``low`` to ``high`` on request, until the pipe closes."""
    loop = make_loop(env_id, num_envs, low, high)
    pipe.send(None)
    while True:
        try:
            pipe.send(loop.run(pipe.recv()))
        except EOFError:
            break
    loop.close()
