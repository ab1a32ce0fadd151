"""Transforms of actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from xuance_envs.engine.data.space_layout import SpaceLayout
from xuance_envs.engine.data.space_rows import SpaceRows
from xuance_envs.transforms.stateful_transform import check_single_agent
from xuance_envs.transforms.transform import Transform
from xuance_envs.vector_envs.action_writer import ActionWriter
from xuance_envs.vector_envs.arguments import env_indices
from xuance_envs.vector_envs.vector_env import VecEnv

__all__ = ["ActionTransform", "ClipActions", "RescaleActions"]


class ActionTransform(Transform):
    """Base class for transforms of actions in a Box; define :meth:`_acted`.

    Args:
        vec_env: the vectorized environment.
        space: space of one action passed to the transform.
        keep_raw: as for :class:`~xuance_envs.transforms.transform.Transform`.
    """

    def __init__(self, vec_env: VecEnv, space: Space[Any], *, keep_raw: bool) -> None:
        super().__init__(vec_env, action_space=space, keep_raw=keep_raw)
        self._rows = SpaceRows.allocate(SpaceLayout(space), self.num_envs)
        self._action_writer = ActionWriter(self._rows)

    def _acted(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Return the environments' actions for k actions ``(k, *shape)``, in a new array."""
        raise NotImplementedError

    def _forward(
        self, actions: Any, env_ids: Sequence[int] | NDArray[np.integer[Any]] | None
    ) -> Any:
        envs = None if env_ids is None else env_indices(env_ids, self.num_envs)
        self._action_writer.put(actions, envs)
        (given,) = self._rows.parts
        return self._acted(given if envs is None else given[envs])


class RescaleActions(ActionTransform):
    """Rescale actions linearly from the agent's bounds to the environment's bounds.

    ``low`` maps exactly to the environment's lower bound, and ``high`` to its upper bound. Actions
    outside these bounds are extrapolated; put :class:`ClipActions` around this transform to clip
    them.

    Args:
        vec_env: the vectorized environment; its actions are a bounded Box of floats.
        low: smallest action of the agent: a number, or an array of the action's shape.
        high: largest action of the agent, in the same form.
        keep_raw: as for :class:`~xuance_envs.transforms.transform.Transform`.

    Raises:
        ValueError: the action space is not such a Box, ``low`` or ``high`` is not finite in the
            space's dtype, or ``low`` is not below ``high``.

    Example:
        >>> import numpy as np
        >>> from xuance_envs import DummyVecEnv, Gym_Env
        >>> from xuance_envs.transforms import RescaleActions
        >>> with RescaleActions(DummyVecEnv([lambda: Gym_Env("Pendulum-v1")] * 3)) as envs:
        ...     obs, infos = envs.reset(seed=0)
        ...     obs, rewards, *_ = envs.step(np.array([[-1.0], [0.0], [1.0]]))
        ...     envs.actions.ravel(), envs.action_space
        (array([-2.,  0.,  2.], dtype=float32), Box(-1.0, 1.0, (1,), float32))
    """

    def __init__(
        self,
        vec_env: VecEnv,
        low: float | NDArray[Any] = -1.0,
        high: float | NDArray[Any] = 1.0,
        *,
        keep_raw: bool = False,
    ) -> None:
        name = type(self).__name__
        space = _box(name, vec_env)
        if space.dtype.kind != "f" or not space.is_bounded():
            clips = isinstance(vec_env, ClipActions)
            hint = f"; put ClipActions around {name}, not inside it" if clips else ""
            raise ValueError(
                f"{name}: expected actions in a bounded Box of floats, got {space}{hint}"
            )
        # In the space's dtype, because the agent's smallest action must map exactly to `space.low`.
        smallest, largest = (np.full(space.shape, bound, space.dtype) for bound in (low, high))
        lowest, highest = smallest.astype(np.float64), largest.astype(np.float64)
        if not (np.isfinite(lowest) & np.isfinite(highest) & (lowest < highest)).all():
            raise ValueError(
                f"{name}: expected finite bounds with low < high in {space.dtype}, "
                f"got {low!r} and {high!r}"
            )
        self._low, self._width = lowest, highest - lowest
        self._to_low, self._to_high = space.low.astype(np.float64), space.high.astype(np.float64)
        self._dtype = space.dtype
        given = spaces.Box(smallest, largest, dtype=space.dtype)
        super().__init__(vec_env, given, keep_raw=keep_raw)

    def _acted(self, actions: NDArray[Any]) -> NDArray[Any]:
        share = (actions - self._low) / self._width
        # This form maps 0 and 1 exactly to the bounds, regardless of rounding.
        acted: NDArray[Any] = self._to_low * (1 - share) + self._to_high * share
        return acted.astype(self._dtype)


class ClipActions(ActionTransform):
    """Clip actions to the environment's bounds.

    The transform's own action space has no bounds.

    Args:
        vec_env: the vectorized environment; its actions are a Box.
        keep_raw: as for :class:`~xuance_envs.transforms.transform.Transform`.

    Raises:
        ValueError: the action space is not a Box of numbers.

    Example:
        >>> import numpy as np
        >>> from xuance_envs import DummyVecEnv, Gym_Env
        >>> from xuance_envs.transforms import ClipActions
        >>> with ClipActions(DummyVecEnv([lambda: Gym_Env("Pendulum-v1")] * 3)) as envs:
        ...     obs, infos = envs.reset(seed=0)
        ...     obs, rewards, *_ = envs.step(np.array([[-7.0], [0.5], [7.0]]))
        ...     envs.actions.ravel(), envs.action_space
        (array([-2. ,  0.5,  2. ], dtype=float32), Box(-inf, inf, (1,), float32))
    """

    def __init__(self, vec_env: VecEnv, *, keep_raw: bool = False) -> None:
        space = _box(type(self).__name__, vec_env)
        self._bounds = space.low, space.high
        low, high = -np.inf, np.inf
        if space.dtype.kind != "f":
            low, high = np.iinfo(space.dtype).min, np.iinfo(space.dtype).max
        given = spaces.Box(low, high, space.shape, space.dtype)
        super().__init__(vec_env, given, keep_raw=keep_raw)

    def _acted(self, actions: NDArray[Any]) -> NDArray[Any]:
        clipped: NDArray[Any] = np.clip(actions, *self._bounds)
        return clipped


def _box(name: str, vec_env: VecEnv) -> Any:
    space = check_single_agent(name, vec_env).action_space
    if not isinstance(space, spaces.Box) or space.dtype.kind not in "iuf":
        raise ValueError(f"{name}: expected actions in a Box of numbers, got {space}")
    return space
