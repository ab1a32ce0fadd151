"""Environment wrappers in a session's worker: action repetition, info filter, limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from xuance_envs.engine.data.reward_rows import fit_reward
from xuance_envs.engine.data.space_layout import SpaceLayout, fit, shape_of_rewards
from xuance_envs.engine.group.host import DropUnpicklableInfos
from xuance_envs.engine.group.single_env import check_env_api
from xuance_envs.engine.serialization import copy_of, dumps_for_main
from xuance_envs.engine.system.current import system
from xuance_envs.env_layers import reward_space_of
from xuance_envs.multi_agent.agents_env import AgentsEnv
from xuance_envs.multi_agent.infos import original_info_key
from xuance_envs.remote.wire.bounds import ObjectBudget
from xuance_envs.remote.wire.values import drop_unsendable

InfoKeys = frozenset[str] | None  # that clients receive; None for all


@dataclass(frozen=True)
class HostedFunction(DropUnpicklableInfos):
    """Factory of one environment, which the session's worker calls."""

    make: Callable[..., Any]
    index: int
    repeating: bool
    memory_limit: int | None
    infos: InfoKeys
    objects: ObjectBudget

    def __call__(self, **keywords: Any) -> Any:
        _limit_process(self.memory_limit)
        env = check_env_api(self.make(**keywords))
        if self.repeating:
            return RepeatingEnv(env, self.index, self.infos, self.objects)
        if has_objects(SpaceLayout(env.observation_space)):
            return ObjectCounter(env, self.index, self.infos, self.objects)
        return env if self.infos is None else InfoFilter(env, self.infos)


class InfoFilter:
    """Wrapper that removes info entries that are not allowed or cannot be sent."""

    def __init__(self, env: Any, infos: InfoKeys) -> None:
        self.env = env
        self._infos = infos
        # Multi-agent infos are one dict, whose keys name the agent.
        self._key_of = original_info_key if isinstance(env, AgentsEnv) else None

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # missing while unpickling
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, **arguments: Any) -> Any:
        result = self.env.reset(**arguments)
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
            return result[0], self._filtered(result[1])
        return result

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        try:
            observation, reward, terminated, truncated, info = result
        except (TypeError, ValueError):
            return result  # reported by the code that steps this wrapper
        if not isinstance(info, dict):
            return result
        return observation, reward, terminated, truncated, self._filtered(info)

    def _filtered(self, info: dict[Any, Any]) -> dict[Any, Any]:
        names, key_of = self._infos, self._key_of
        if names is not None:
            info = {k: v for k, v in info.items() if (key_of(k) if key_of else k) in names}
        return drop_unsendable(info)


def has_objects(layout: SpaceLayout) -> bool:
    """Return whether a part of the observations has no fixed shape, such as texts and graphs."""
    return any(leaf.dtype is None for leaf in layout.leaves)


class ObjectCounter(InfoFilter):
    """Wrapper that counts the bytes of observations without a fixed shape, to limit the reply."""

    def __init__(self, env: Any, index: int, infos: InfoKeys, objects: ObjectBudget) -> None:
        super().__init__(env, infos)
        self._index = index
        self._objects = objects
        self._has_ended = False

    def __env_state__(self) -> Any:
        return self.object_bytes()

    def __set_env_state__(self, state: Any) -> None:
        self._objects.set(self._index, state)
        self._has_ended = False

    def reset(self, **arguments: Any) -> Any:
        if not self._has_ended:  # else the reply also contains the final observation
            self._objects.forget(self._index)
        self._has_ended = False
        result = super().reset(**arguments)
        self._objects.add(self._index, result)
        return result

    def step(self, action: Any) -> Any:
        self._objects.forget(self._index)
        result = super().step(action)
        self._objects.add(self._index, result)
        self._has_ended = isinstance(result, tuple) and any(result[2:4])
        return result

    def object_bytes(self) -> int:
        """Return the size of this environment's part in the last reply."""
        return self._objects.size_of(self._index)


RESET = 0  # request number of all resets; each request that repeats actions has its own


@dataclass(frozen=True)
class RepeatResult:
    """Result of repeated steps. The server unpickles one environment's ``info`` at a time."""

    observations: Any
    steps: int
    reward: Any
    terminated: bool
    truncated: bool
    info: bytes


class RepeatingEnv(ObjectCounter):
    """Wrapper that repeats an action; after the end of an episode, it waits for a reset."""

    def __init__(self, env: Any, index: int, infos: InfoKeys, objects: ObjectBudget) -> None:
        super().__init__(env, index, infos, objects)
        self._layout = SpaceLayout(env.observation_space)
        self._reward_shape = shape_of_rewards(reward_space_of(env))
        self._has_objects = has_objects(self._layout)
        self._step = -1
        self._ended: RepeatResult | None = None
        self._can_step = False
        self.last_shown: tuple[Any, bytes] | None = None  # last step's observation, pickled info

    def __env_state__(self) -> Any:
        return self._step, self._ended, self._can_step, self.last_shown, self.object_bytes()

    def __set_env_state__(self, state: Any) -> None:
        *own, size = state
        self._step, self._ended, self._can_step, self.last_shown = own
        self._objects.set(self._index, size)

    def reset(self, **arguments: Any) -> Any:
        self._can_step = False
        self._objects.begin(RESET)
        self._objects.forget(self._index)
        result = InfoFilter.reset(self, **arguments)
        if self._has_objects:
            self._objects.add(self._index, result)
        self._step, self._ended, self._can_step, self.last_shown = -1, None, True, None
        return result

    def repeat(self, actions: Mapping[int, Any], times: int, request: int) -> RepeatResult:
        """Repeat an action; after the episode's end, return its final result with reward 0."""
        self._objects.begin(request)
        if self._ended is not None:
            return self._ended
        if not self._can_step:
            raise RuntimeError("call reset first: no episode is running, or its last step failed")
        self._can_step = False  # in case the step raises
        rows: list[list[Any]] = []
        nothing = total = np.zeros(self._reward_shape)
        terminated = truncated = False
        info: dict[Any, Any] = {}
        while len(rows) < times and not (terminated or truncated):
            observation, reward, terminated, truncated, info = self.env.step(
                copy_of(actions[self._index])
            )
            rows.append(self._leaves(observation))
            total = total + fit_reward(reward, self._reward_shape)
        terminated, truncated, self._can_step = bool(terminated), bool(truncated), True
        self._step += len(rows)
        flags = {"terminated": terminated, "truncated": truncated}
        pickled = dumps_for_main({**self._filtered(info), "step": self._step, **flags})
        self.last_shown = self._layout.unflatten(rows[-1]), pickled
        ending = terminated, truncated, pickled
        if terminated or truncated:
            self._ended = RepeatResult(self._batch(rows[-1:]), 0, nothing, *ending)
        return RepeatResult(self._batch(rows), len(rows), total, *ending)

    def _leaves(self, observation: Any) -> list[Any]:
        """Copy an observation's leaves, because the environment may reuse its arrays."""
        leaves = []
        for leaf, value in zip(self._layout.leaves, self._layout.flatten(observation), strict=True):
            if leaf.dtype is None:
                self._objects.add(self._index, value)
                leaves.append(copy_of(value))
            else:
                leaves.append(np.array(fit(value, leaf.dtype, leaf.shape)))
        return leaves

    def _batch(self, rows: list[list[Any]]) -> Any:
        parts = [
            list(column) if leaf.dtype is None else np.stack(column)
            for leaf, column in zip(self._layout.leaves, zip(*rows, strict=True), strict=True)
        ]
        return self._layout.unflatten(parts)


@cache  # once per process
def _limit_process(memory_limit: int | None) -> None:
    system.lower_priority()  # the server and its clients take precedence
    system.kill_first_without_memory()
    if memory_limit is not None:
        system.limit_memory(memory_limit)
