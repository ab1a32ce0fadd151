"""What lives in the process of a session's environments: they repeat actions, within a limit.

What infos have that clients are not told is left out here already: it never leaves the process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from xuance_envs.engine.data.space_layout import SpaceLayout, fit
from xuance_envs.engine.group.host import DropUnpicklableInfos
from xuance_envs.engine.group.single_env import check_env_api
from xuance_envs.engine.serialization import copy_of
from xuance_envs.multi_agent.agents_env import AgentsEnv
from xuance_envs.multi_agent.infos import original_info_key
from xuance_envs.remote.wire.infos import drop_unsendable

__all__ = ["HostedFunction", "InfoFilter", "RepeatResult", "RepeatingEnv"]


@dataclass(frozen=True)
class HostedFunction(DropUnpicklableInfos):
    """Makes one environment of a session, in the process where it will live."""

    make: Callable[..., Any]
    index: int
    repeating: bool
    memory_limit: int | None
    infos: frozenset[str] | None = None
    first_in_process: bool = True

    def __call__(self, **keywords: Any) -> Any:
        """Makes it."""
        if self.first_in_process and self.index == 0:  # once is enough for the process
            _limit_process(self.memory_limit)
        env = self.make(**keywords)
        if self.repeating:
            return RepeatingEnv(check_env_api(env), self.index, self.infos)
        return env if self.infos is None else InfoFilter(check_env_api(env), self.infos)


class InfoFilter:
    """An environment whose infos are what clients are told; all else is as it is."""

    def __init__(self, env: Any, infos: frozenset[str] | None) -> None:
        self.env = env
        self._infos = infos
        # Infos of many agents come as one dict, whose keys say whose they are.
        self._key_of = original_info_key if isinstance(env, AgentsEnv) else None

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # not there yet: while it is unpickled
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, **arguments: Any) -> Any:
        """Starts a new episode."""
        result = self.env.reset(**arguments)
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
            return result[0], self._filtered(result[1])
        return result

    def step(self, action: Any) -> Any:
        """Steps the environment once."""
        result = self.env.step(action)
        try:
            observation, reward, terminated, truncated, info = result
        except (TypeError, ValueError):
            return result  # whoever asked finds out what is wrong with it
        if not isinstance(info, dict):
            return result
        return observation, reward, terminated, truncated, self._filtered(info)

    def _filtered(self, info: dict[Any, Any]) -> dict[Any, Any]:
        names, key_of = self._infos, self._key_of
        if names is not None:
            info = {
                key: value
                for key, value in info.items()
                if (key if key_of is None else key_of(key)) in names
            }
        return drop_unsendable(info)


@dataclass(frozen=True)
class RepeatResult:
    """What came of one action that an environment repeated."""

    observations: Any
    steps: int
    reward: float
    terminated: bool
    truncated: bool
    info: dict[Any, Any]


class RepeatingEnv(InfoFilter):
    """An environment that repeats an action until its episode ends, and is not reset by itself."""

    def __init__(self, env: Any, index: int, infos: frozenset[str] | None = None) -> None:
        super().__init__(env, infos)
        self._index = index
        self._layout = SpaceLayout(env.observation_space)
        self._step = -1
        self._ended: RepeatResult | None = None
        self._can_step = False
        # What its next action is chosen from, unless that is what its reset returned.
        self._last_shown: tuple[Any, dict[Any, Any]] | None = None

    def __env_state__(self) -> Any:
        """Its own state, without its index: that is its place, and stays its own."""
        return self._step, self._ended, self._can_step, self._last_shown

    def __set_env_state__(self, state: Any) -> None:
        """Takes over what another one was in."""
        self._step, self._ended, self._can_step, self._last_shown = state

    def last_shown(self) -> tuple[Any, dict[Any, Any]] | None:
        """The last observation and info; None where the last reset returned them."""
        return self._last_shown

    def reset(self, **arguments: Any) -> Any:
        """Starts a new episode."""
        self._can_step = False
        result = super().reset(**arguments)
        self._step, self._ended, self._can_step, self._last_shown = -1, None, True, None
        return result

    def repeat(self, actions: Mapping[int, Any], times: int) -> RepeatResult:
        """Repeats an action up to so many times, and stops early where the episode ends.

        An environment whose episode has ended is left alone until it is reset.
        """
        if self._ended is not None:
            return self._ended
        if not self._can_step:
            raise RuntimeError("reset the environment first: it has no episode, or failed in it")
        self._can_step = False  # should it raise
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
        terminated, truncated, self._can_step = bool(terminated), bool(truncated), True
        self._step += len(rows)
        ending = {"step": self._step, "terminated": terminated, "truncated": truncated}
        info = {**self._filtered(info), **ending}
        self._last_shown = self._layout.unflatten(rows[-1]), info
        if terminated or truncated:
            self._ended = RepeatResult(
                self._batch(rows[-1:]), 0, 0.0, terminated, truncated, copy_of(info)
            )
        return RepeatResult(self._batch(rows), len(rows), total, terminated, truncated, info)

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


def _limit_process(memory_limit: int | None) -> None:
    """Keeps an environment that allocates without end from taking the server with it."""
    os.nice(5)  # who asks and who answers goes before those who step
    with suppress(OSError):  # where memory runs out all the same, this process goes first
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    if memory_limit is None:
        return
    with suppress(ImportError, OSError, ValueError):  # not on this system, or limited more already
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (memory_limit, memory_limit))
