"""What lives in the process of a session's environments: they repeat actions, within a limit."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from xuance_envs.engine.data.space_layout import SpaceLayout, fit
from xuance_envs.engine.serialization import copy_of

__all__ = ["HostedFunction", "Repeated", "RepeatingEnv"]


@dataclass(frozen=True)
class HostedFunction:
    """Makes one environment of a session, in the process where it will live.

    Attributes:
        make: makes the environment.
        index: its place among the session's environments that were made together.
        repeating: whether it is stepped by :meth:`RepeatingEnv.repeat`.
        memory_limit: bytes of data the process may have; None for no limit.
    """

    make: Callable[..., Any]
    index: int
    repeating: bool
    memory_limit: int | None

    def __call__(self, **keywords: Any) -> Any:
        """Makes it."""
        if self.index == 0:  # once is enough for the process
            _confine(self.memory_limit)
        env = self.make(**keywords)
        return RepeatingEnv(env, self.index) if self.repeating else env


@dataclass(frozen=True)
class Repeated:
    """What came of one action that an environment repeated.

    Attributes:
        observations: a batch of one observation per repetition, or the last one again.
        steps: how often the action was repeated; 0 where the episode had ended before.
        reward: the sum of the rewards.
        terminated: whether the episode has terminated, in this call or before.
        truncated: whether it was truncated.
        info: the last repetition's, with ``step``, ``terminated`` and ``truncated``.
    """

    observations: Any
    steps: int
    reward: float
    terminated: bool
    truncated: bool
    info: dict[Any, Any]


class RepeatingEnv:
    """An environment that repeats an action until its episode ends, and is not reset by itself.

    Args:
        env: the environment.
        index: its place among those that are asked together.
    """

    def __init__(self, env: Any, index: int) -> None:
        self.env = env
        self._index = index
        self.observation_space = env.observation_space
        self.action_space = env.action_space
        self.metadata = getattr(env, "metadata", {})
        self.render_mode = getattr(env, "render_mode", None)
        self.spec = getattr(env, "spec", None)
        self.max_episode_steps = getattr(env, "max_episode_steps", None)
        self._layout = SpaceLayout(env.observation_space)
        self._step = -1
        self._ended: Repeated | None = None
        self._fresh = False

    def reset(self, **arguments: Any) -> Any:
        """Starts a new episode."""
        self._fresh = False
        result = self.env.reset(**arguments)
        self._step, self._ended, self._fresh = -1, None, True
        return result

    def step(self, action: Any) -> Any:
        """Steps the environment once."""
        return self.env.step(action)

    def repeat(self, actions: Mapping[int, Any], times: int) -> Repeated:
        """Repeats an action up to so many times, and stops early where the episode ends.

        An environment whose episode has ended is left alone until it is reset.

        Args:
            actions: one for each environment that is asked, by its index.
            times: at least 1.

        Raises:
            RuntimeError: the environment has not been reset, or failed since.
        """
        if self._ended is not None:
            return self._ended
        if not self._fresh:
            raise RuntimeError("reset the environment first: it has no episode, or failed in it")
        self._fresh = False  # should it raise
        rows: list[list[Any]] = []
        total = 0.0
        terminated = truncated = False
        info: dict[Any, Any] = {}
        while len(rows) < times and not (terminated or truncated):
            observation, reward, terminated, truncated, info = self.env.step(
                copy_of(actions[self._index])
            )
            rows.append(self._leaves(observation))
            total += float(reward)
        terminated, truncated, self._fresh = bool(terminated), bool(truncated), True
        self._step += len(rows)
        ending = {"step": self._step, "terminated": terminated, "truncated": truncated}
        info = {**info, **ending}
        if terminated or truncated:
            self._ended = Repeated(
                self._batch(rows[-1:]), 0, 0.0, terminated, truncated, copy_of(info)
            )
        return Repeated(self._batch(rows), len(rows), total, terminated, truncated, info)

    def render(self, *mode: Any) -> Any:
        """Renders the environment."""
        return self.env.render(*mode)

    def close(self) -> None:
        """Closes the environment."""
        if hasattr(self.env, "close"):
            self.env.close()

    def _leaves(self, observation: Any) -> list[Any]:
        """Copies of an observation's leaves: the environment may use its arrays again."""
        return [
            copy_of(value) if leaf.dtype is None else np.array(fit(value, leaf.dtype, leaf.shape))
            for leaf, value in zip(
                self._layout.leaves, self._layout.flatten(observation), strict=True
            )
        ]

    def _batch(self, rows: list[list[Any]]) -> Any:
        columns = zip(*rows, strict=True)
        return self._layout.unflatten(
            [
                list(column) if leaf.dtype is None else np.stack(column)
                for leaf, column in zip(self._layout.leaves, columns, strict=True)
            ]
        )


def _confine(memory_limit: int | None) -> None:
    """Keeps an environment that allocates without end from taking the server with it."""
    os.nice(5)  # who asks and who answers goes before those who step
    with suppress(OSError):  # where memory runs out all the same, this process goes first
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    if memory_limit is None:
        return
    with suppress(ImportError, OSError, ValueError):  # not on this system, or limited more already
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (memory_limit, memory_limit))
