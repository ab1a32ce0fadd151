"""Transforms of observations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces

from xuance_envs._deprecated import deprecated_aliases
from xuance_envs.engine.data.space_layout import BadValueError, Leaf, SpaceLayout
from xuance_envs.engine.data.space_rows import ALL_ENVS, SpaceRows, with_rows
from xuance_envs.engine.serialization import copy_of
from xuance_envs.errors import counted
from xuance_envs.transforms.stateful_transform import check_single_agent
from xuance_envs.transforms.transform import Transform
from xuance_envs.transforms.transform_batch import Batch
from xuance_envs.vector_envs.last_results import check_saved_observation
from xuance_envs.vector_envs.vector_env import VecEnv

__all__ = ["ObservationTransform", "ObservationTransformState", "TransformObservations"]

__getattr__ = deprecated_aliases(__name__, ObservationState="ObservationTransformState")


class ObservationTransformState(NamedTuple):
    """Last transformed observations, a buffer for the next ones, and the subclass's memory."""

    rows: SpaceRows
    spare_rows: SpaceRows
    memory: Any


class ObservationTransform(Transform):
    """Base class for transforms of observations.

    A subclass defines :meth:`_put`. A subclass that keeps data from earlier calls (a *memory*),
    such as running statistics, also defines :meth:`_learn`. Both methods receive the observations
    as ``parts``: one batch per leaf of the observation space, such as each Box in a Dict.
    ``firsts`` has the same form for the first observations after ended episodes, or is None if no
    episode ended.

    Args:
        vec_env: the vectorized environment.
        space: space of one transformed observation.
        memory: the initial memory; None for a transform without one.
        keep_raw: as for :class:`~xuance_envs.transforms.transform.Transform`.
    """

    _state: ObservationTransformState

    def __init__(
        self, vec_env: VecEnv, space: Space[Any], memory: Any = None, *, keep_raw: bool = False
    ) -> None:
        super().__init__(vec_env, observation_space=space, keep_raw=keep_raw)
        self._input_layout = SpaceLayout(vec_env.observation_space)
        self._layout = SpaceLayout(space)
        rows, spare_rows = (self._rows_of(self.num_envs) for _ in range(2))
        self._state = ObservationTransformState(rows, spare_rows, memory)

    @property
    def buf_obs(self) -> Any:
        """Latest observations of all environments, in a writable array."""
        if self._buf_obs is None:
            self._buf_obs = self._state.rows.copy_writable()
        return self._buf_obs

    @buf_obs.setter
    def buf_obs(self, batch: Any) -> None:
        self._buf_obs = batch

    def _learn(
        self, memory: Any, batch: Batch, parts: Sequence[Any], firsts: Sequence[Any] | None
    ) -> Any:
        """Return the memory updated with a batch, without modifying ``memory``."""
        return memory

    def _put(self, memory: Any, parts: Sequence[Any], into: SpaceRows) -> None:
        """Transform ``parts``, each row independently, and write the result to ``into``."""
        raise NotImplementedError

    def _put_batch(self, memory: Any, batch: Batch, parts: Sequence[Any], into: SpaceRows) -> None:
        """Transform observations; ``memory`` is already updated, ``_state`` is not."""
        self._put(memory, parts, into)

    def _transform(self, batch: Batch) -> ObservationTransformState:
        before = self._state
        parts = self._input_layout.flatten(batch.obs)
        firsts = None
        if len(batch.ended):
            firsts = batch.first_observations(self._input_layout)
        memory = self._learn(before.memory, batch, parts, firsts)
        is_whole = batch.envs is None
        into = before.spare_rows if is_whole else self._rows_of(len(batch.rewards))
        self._put_batch(memory, batch, parts, into)
        if firsts is not None:
            made = self._rows_of(len(batch.ended))
            self._put(memory, firsts, made)
            batch.set_first_observations([made.value(row) for row in range(len(made))])
        if not is_whole:
            batch.obs = into.as_batch()
            return before._replace(memory=memory)
        first = parts[0] if parts else None
        are_views = isinstance(first, np.ndarray) and not first.flags.writeable
        copy = into.view if are_views else into.copy_flat or into.copy
        batch.obs = copy()
        return ObservationTransformState(into, before.rows, memory)

    def _env_state(self, env: int) -> Any:
        return [copy_of(part[env]) for part in self._layout.flatten(self.buf_obs)]

    def _check_env_state(self, env_state: Any) -> None:
        check_saved_observation(env_state, self._state.rows.parts)

    def _restore_env_state(self, ids: Sequence[int], shares: Sequence[Any], obs: Any) -> Any:
        self._buf_obs = with_rows(self._layout, self.buf_obs, ids, shares)
        into = self._rows_of(len(ids))
        self._put_acting(ids, obs, into)
        return into.as_batch()

    def _put_acting(self, ids: Sequence[int], obs: Any, into: SpaceRows) -> None:
        """Transform ``obs``, the current observations of the loaded environments ``ids``."""
        self._put(self._state.memory, self._input_layout.flatten(obs), into)

    def _update_buf_obs(self, batch: Batch) -> None:
        parts = self._layout.flatten(batch.obs)
        values = ([part[row] for part in parts] for row in range(len(batch.env_ids)))
        self._buf_obs = with_rows(self._layout, self.buf_obs, batch.env_ids, values)

    def _rows_of(self, count: int) -> SpaceRows:
        return SpaceRows.allocate(self._layout, count)


class TransformObservations(ObservationTransform):
    """Apply a function to observations.

    Args:
        vec_env: the vectorized environment.
        function: function of a batch of k observations, for any k: an array ``(k, *obs_shape)``,
            or a dict or tuple of arrays for Dict and Tuple spaces. It returns a batch of k
            observations in ``space``; row i may depend only on row i of the argument.
        space: space of one returned observation.
        keep_raw: as for :class:`~xuance_envs.transforms.transform.Transform`.

    Raises:
        ValueError: in ``reset``, ``step`` or ``recv``, the function did not return a batch of
            observations in ``space``.

    Example:
        >>> import numpy as np
        >>> from gymnasium.spaces import Box
        >>> from xuance_envs import DummyVecEnv, Gym_Env
        >>> from xuance_envs.transforms import TransformObservations
        >>> envs = DummyVecEnv([lambda: Gym_Env("CartPole-v1")] * 3)
        >>> positions = Box(-np.inf, np.inf, (2,), np.float32)
        >>> with TransformObservations(envs, lambda obs: obs[:, [0, 2]], positions) as envs:
        ...     obs, infos = envs.reset(seed=0)
        >>> obs.shape
        (3, 2)
    """

    def __init__(
        self,
        vec_env: VecEnv,
        function: Callable[[Any], Any],
        space: Space[Any],
        *,
        keep_raw: bool = False,
    ) -> None:
        super().__init__(vec_env, space, keep_raw=keep_raw)
        self._function = function

    def _put(self, memory: Any, parts: Sequence[Any], into: SpaceRows) -> None:
        made = self._function(self._input_layout.unflatten(parts))
        try:
            into.put(made, ALL_ENVS, len(into))
        except BadValueError as error:
            raise ValueError(
                f"{type(self).__name__}: the function returned invalid values for the observations "
                f"of {counted(len(into), 'environment')}: {error}"
            ) from None


def select_leaves(
    name: str, vec_env: VecEnv, keys: Iterable[str] | None, *, no_images: bool = False
) -> dict[int, Leaf]:
    """Return the selected leaves by index; raise unless all are Boxes of numbers."""
    space = check_single_agent(name, vec_env).observation_space
    layout = SpaceLayout(space)
    if isinstance(space, spaces.Dict):
        wanted = list(space.spaces) if keys is None else list(keys)
        if not (wanted and set(wanted) <= space.spaces.keys()):
            raise ValueError(f"{name}: keys: expected some of {list(space.spaces)}, got {wanted}")
    elif keys is not None:
        raise ValueError(f"{name}: keys requires a Dict observation space, got {space}")
    elif not layout.flat:
        raise ValueError(f"{name}: expected observations in a Box or Dict space, got {space}")
    else:
        wanted = []
    chosen = {
        i: leaf
        for i, leaf in enumerate(layout.leaves)
        if layout.flat or any(leaf.path.startswith(f"[{key!r}]") for key in wanted)
    }
    for leaf in chosen.values():
        where = f" under {leaf_name(leaf)!r}" if leaf.path else ""
        choose = "; select other keys with keys=[...]" if leaf.path else ""
        if not isinstance(leaf.space, spaces.Box) or leaf.space.dtype.kind not in "iuf":
            raise ValueError(
                f"{name}: expected observations{where} in a Box of numbers, "
                f"got {leaf.space}{choose}"
            )
        if no_images and leaf.dtype == np.uint8 and len(leaf.shape) > 1:
            raise ValueError(
                f"{name}: expected observations{where} other than images, got {leaf.space}: divide "
                f"images by 255 instead of normalizing them{choose}"
            )
    return chosen


def leaf_name(leaf: Leaf) -> str:
    """Return a leaf's keys joined by dots; an empty string for a space that is one Box."""
    return ".".join(re.findall(r"""[^\[\]'"]+""", leaf.path))
