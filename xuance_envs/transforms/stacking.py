"""Stacking of consecutive observations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from xuance_envs.engine.data.space_layout import Leaf, replace_leaves
from xuance_envs.engine.data.space_rows import SpaceRows
from xuance_envs.transforms.observations import ObservationTransform, select_leaves
from xuance_envs.transforms.transform_batch import Batch
from xuance_envs.vector_envs.arguments import checked_count
from xuance_envs.vector_envs.vector_env import VecEnv

__all__ = ["StackObservations"]

FirstObservations = dict[int, list[Any]]
"""For each environment whose last step began an episode: its first observation, as leaves.

An empty list means that an error discarded it. The next observation then counts as the first.
"""


class StackObservations(ObservationTransform):
    """Concatenate the latest observations of an episode along the last axis, oldest first.

    A stack never crosses an episode boundary: an episode's first stack, also in ``reset_obs``, has
    ``num_stack`` copies of the first observation. The step that truncates an episode because a
    worker was restarted returns the environment's last stack unchanged.

    Args:
        vec_env: the vectorized environment; its observations are a Box with at least one axis, or a
            Dict of them.
        num_stack: number of observations in a stack.
        n: alias of ``num_stack``.
        keys: keys of a Dict space to stack; the others stay unchanged. None for all keys.
        keep_raw: as for :class:`~xuance_envs.transforms.transform.Transform`.

    Raises:
        ValueError: ``num_stack`` is below 1, ``keys`` is invalid, or observations cannot be
            concatenated.
        TypeError: both or neither of ``num_stack`` and ``n`` are given.

    Example:
        >>> from xuance_envs import DummyVecEnv, Gym_Env
        >>> from xuance_envs.transforms import StackObservations
        >>> with StackObservations(DummyVecEnv([lambda: Gym_Env("CartPole-v1")] * 3), 2) as envs:
        ...     first, infos = envs.reset(seed=0)
        ...     second, *_ = envs.step([0, 1, 0])
        >>> first.shape, (first[:, :4] == first[:, 4:]).all(), (second[:, :4] == first[:, 4:]).all()
        ((3, 8), np.True_, np.True_)
    """

    def __init__(
        self,
        vec_env: VecEnv,
        num_stack: int | None = None,
        *,
        n: int | None = None,
        keys: Iterable[str] | None = None,
        keep_raw: bool = False,
    ) -> None:
        name = type(self).__name__
        given = [value for value in (num_stack, n) if value is not None]
        if len(given) != 1:
            got = "both" if given else "neither"
            raise TypeError(f"{name}: expected num_stack or its alias n, got {got}")
        count = checked_count(f"{name}: num_stack", *given)
        leaves = select_leaves(name, vec_env, keys)
        for leaf in leaves.values():
            if not leaf.shape:
                raise ValueError(
                    f"{name}: expected observations with at least one axis, got {leaf.space}"
                )
        self._widths = {i: leaf.shape[-1] for i, leaf in leaves.items()}
        boxes = {leaf.path: _stacked(leaf, count) for leaf in leaves.values()}
        space = replace_leaves(vec_env.observation_space, boxes)
        super().__init__(vec_env, space, {}, keep_raw=keep_raw)

    def _learn(
        self,
        memory: FirstObservations,
        batch: Batch,
        parts: Sequence[Any],
        firsts: Sequence[Any] | None,
    ) -> FirstObservations:
        if not memory and firsts is None:
            return memory
        envs = batch.env_ids
        stepped = set(envs)
        kept = {env: first for env, first in memory.items() if env not in stepped}
        if firsts is not None:
            for number, row in enumerate(batch.ended.tolist()):
                kept[envs[row]] = [part[number] for part in firsts]
        return kept

    def _put(self, memory: FirstObservations, parts: Sequence[Any], into: SpaceRows) -> None:
        for i, (part, out) in enumerate(zip(parts, into.parts, strict=True)):
            if i in self._widths:
                _fill(out, part)
            else:
                out[:] = part

    def _put_batch(self, memory: Any, batch: Batch, parts: Sequence[Any], into: SpaceRows) -> None:
        if batch.began is not None and batch.began.all():
            self._put(memory, parts, into)
            return
        before, firsts = self._state.rows, self._state.memory
        lost = batch.lost_rows.tolist()
        began = [] if batch.began is None else batch.began.nonzero()[0].tolist()
        for i, (part, out) in enumerate(zip(parts, into.parts, strict=True)):
            width = self._widths.get(i)
            if width is None:
                out[:] = part
                continue
            old = before.parts[i]
            if batch.envs is not None:
                old = old[batch.envs]
            out[..., :-width] = old[..., width:]
            out[..., -width:] = part
            for row in lost:
                out[row] = old[row]
            for row, env in enumerate(batch.env_ids) if firsts else ():
                if (first := firsts.get(env)) is not None:
                    stack = out[row] if row in lost else out[row, ..., :-width]
                    _fill(stack, first[i] if first else part[row])
            for row in began:
                if row not in lost:
                    _fill(out[row], part[row])

    def _env_state(self, env: int) -> Any:
        stacks = [self._state.rows.parts[i][env].copy() for i in self._widths]
        first = self._state.memory.get(env)
        return super()._env_state(env), stacks, None if first is None else list(first)

    def _check_env_state(self, env_state: Any) -> None:
        super()._check_env_state(env_state[0])

    def _restore_env_state(self, ids: Sequence[int], shares: Sequence[Any], obs: Any) -> Any:
        self._buf_obs = self.buf_obs  # copied before the rows change
        rows, memory = self._state.rows, dict(self._state.memory)
        for env, (_, stacks, first) in zip(ids, shares, strict=True):
            for i, stack in zip(self._widths, stacks, strict=True):
                rows.parts[i][env] = stack
            memory.pop(env, None)
            if first is not None:
                memory[env] = first
        self._state = self._state._replace(memory=memory)
        return super()._restore_env_state(ids, [share for share, _, _ in shares], obs)

    def _restart_episodes(self, envs: NDArray[np.intp]) -> None:
        memory = {**self._state.memory, **{env: [] for env in envs.tolist()}}
        self._state = self._state._replace(memory=memory)

    def _put_acting(self, ids: Sequence[int], obs: Any, into: SpaceRows) -> None:
        super()._put_acting(ids, obs, into)
        for i in self._widths:
            for row, env in enumerate(ids):
                if env not in self._state.memory:
                    into.parts[i][row] = self._state.rows.parts[i][env]

    def _merge_partial(self, batch: Batch) -> None:
        _ = self.buf_obs  # copy the current rows before they change
        parts = self._layout.flatten(batch.obs)
        for i in self._widths:
            self._state.rows.parts[i][batch.at] = parts[i]


def _fill(out: NDArray[Any], part: NDArray[Any]) -> None:
    """Fill each stack with copies of one observation."""
    width = part.shape[-1]
    if out.size:
        stacks = out.reshape(*part.shape[:-1], out.shape[-1] // width, width)
        stacks[...] = part[..., np.newaxis, :]


def _stacked(leaf: Leaf, count: int) -> spaces.Box:
    assert isinstance(leaf.space, spaces.Box)
    low, high = (np.concatenate([b] * count, axis=-1) for b in (leaf.space.low, leaf.space.high))
    return spaces.Box(low, high, dtype=leaf.space.dtype)
