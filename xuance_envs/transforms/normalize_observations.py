"""Normalization of observations by their running mean and variance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from xuance_envs._override import override
from xuance_envs.engine.data.space_layout import replace_leaves
from xuance_envs.engine.data.space_rows import SpaceRows
from xuance_envs.errors import EnvError
from xuance_envs.transforms.moments import (
    MAX_MAGNITUDE,
    NOT_FINITE,
    MomentBuffers,
    Moments,
    check_finite,
    check_scale,
    env_id_of,
    find_worst,
    moments_from_dict,
    moments_to_dict,
)
from xuance_envs.transforms.observations import (
    ObservationTransform,
    ObservationTransformState,
    leaf_name,
    select_leaves,
)
from xuance_envs.transforms.stateful_transform import transforms_of
from xuance_envs.transforms.transform_batch import NO_ENVS, Batch
from xuance_envs.vector_envs.vector_env import VecEnv

__all__ = ["NormalizeObservations"]


class NormalizeObservations(ObservationTransform):
    r"""Normalize observations by their running mean and variance over all environments.

    .. math:: \mathrm{clip}\left(\frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}}, -c, c\right)

    While training, each call first updates the statistics with every observation that it returns,
    including the last observations of episodes and the first observations in ``reset_obs``. It then
    normalizes all of them with the updated statistics. A step that truncates an episode because a
    worker was restarted repeats the last known observation, which is normalized but not counted.
    The class :class:`~xuance_envs.transforms.moments.Moments` has the formulas.

    Args:
        vec_env: the vectorized environment; its observations are a Box of numbers or a Dict of
            these.
        epsilon: added to the variance; above 0.
        clip: largest magnitude of the result, above 0; ``math.inf`` for no limit.
        keys: keys of a Dict space to normalize; the others stay unchanged. None for all keys.
        keep_raw: as for :class:`~xuance_envs.transforms.transform.Transform`.

    Raises:
        ValueError: observations are images or not numbers, an argument is out of range, or the
            observations are already normalized.
        EnvError: in ``reset``, ``step`` or ``recv``, an observation contains NaN or infinity, or,
            while training, a number above 1e150 that is too large to square. The call's results
            are lost, and this transform does not count them. The environments stay usable: reset
            the one that the error names.

    Example:
        >>> from xuance_envs import DummyVecEnv, Gym_Env
        >>> from xuance_envs.transforms import NormalizeObservations
        >>> envs = DummyVecEnv([lambda: Gym_Env("CartPole-v1")] * 3)
        >>> with NormalizeObservations(envs) as envs:
        ...     obs, infos = envs.reset(seed=0)
        ...     for _ in range(5):
        ...         obs, *_ = envs.step([0, 1, 0])
        >>> obs.dtype, envs.count, envs.mean.shape
        (dtype('float32'), 18, (4,))
    """

    def __init__(
        self,
        vec_env: VecEnv,
        epsilon: float = 1e-8,
        clip: float = 10.0,
        *,
        keys: Iterable[str] | None = None,
        keep_raw: bool = False,
    ) -> None:
        name = type(self).__name__
        check_scale(name, epsilon, clip)
        leaves = select_leaves(name, vec_env, keys, no_images=True)
        self._names = {i: leaf_name(leaf) for i, leaf in leaves.items()}
        if len(names := list(self._names.values())) > len(set(names)):
            raise ValueError(
                f"{name}: expected distinct names (nested keys joined by dots), got {names}"
            )
        for inner in transforms_of(vec_env):
            if isinstance(inner, NormalizeObservations) and inner.parts & {*self._names.values()}:
                raise ValueError(f"{name}: the observations of {inner!r} are already normalized")
        count = vec_env.num_envs
        self._moment_buffers = {i: MomentBuffers(count, leaves[i].shape, clip) for i in leaves}
        is_box = isinstance(vec_env.observation_space, spaces.Box)
        self._buffers = self._moment_buffers[0] if is_box else None
        empty = {i: Moments.empty(leaves[i].shape, float(epsilon)) for i in leaves}
        bound = np.float32(clip)
        boxes = {leaf.path: spaces.Box(-bound, bound, leaf.shape) for leaf in leaves.values()}
        space = replace_leaves(vec_env.observation_space, boxes)
        super().__init__(vec_env, space, empty, keep_raw=keep_raw)
        self._environment = env_id_of(vec_env)

    @property
    def parts(self) -> frozenset[str]:
        """Names of the normalized parts: dotted keys for a Dict space, ``""`` for a Box."""
        return frozenset(self._names.values())

    @property
    def count(self) -> int:
        """Number of observations in the statistics, over all environments."""
        return next(iter(self._moments().values())).count

    @property
    def mean(self) -> Any:
        """Mean observation, a float64 array; for Dict spaces, a dict of arrays by dotted key."""
        return self._by_name(lambda moments: np.array(moments.mean))

    @property
    def variance(self) -> Any:
        """Population variance, with the layout of :attr:`mean`; 1 before the first observation."""
        return self._by_name(lambda moments: np.array(moments.variance))

    def _by_name(self, value: Callable[[Moments], Any]) -> Any:
        values = {name: value(moments) for name, moments in self._moments().items()}
        return values.get("", values)

    def _moments(self) -> dict[str, Moments]:
        moments = self._state.memory
        return {name: moments[i] for i, name in self._names.items()}

    @override
    def learned(self) -> dict[str, Any]:
        return moments_to_dict(self._environment, self._moments())

    @override
    def prepare_learned(self, learned: Mapping[str, Any]) -> Callable[[], None]:
        name = type(self).__name__
        moments = moments_from_dict(name, self._environment, self._moments(), learned)
        by_leaf = {i: moments[part] for i, part in self._names.items()}
        return lambda: setattr(self, "_state", self._state._replace(memory=by_leaf))

    def _transform(self, batch: Batch) -> ObservationTransformState:
        obs, buffers = batch.obs, self._buffers
        if (
            buffers is None
            or not self.training
            or batch.envs is not None
            or len(batch.ended)
            or not obs.flags.writeable
        ):
            return super()._transform(batch)
        # Fast path for ordinary steps: the interpreter's overhead is as large as the arithmetic.
        rows, into, memory = self._state
        try:
            moments = memory[0].with_samples(buffers, obs)
        except NOT_FINITE:
            raise self._error(0, batch, obs) from None
        buffers.scale(obs, moments, into.parts[0])
        copy = into.copy_flat or into.copy
        batch.obs = copy()
        return tuple.__new__(ObservationTransformState, (into, rows, {0: moments}))

    def _learn(
        self,
        memory: dict[int, Moments],
        batch: Batch,
        parts: Sequence[Any],
        firsts: Sequence[Any] | None,
    ) -> dict[int, Moments]:
        moments = {}
        lost = NO_ENVS if firsts is None else batch.lost_rows
        for i, its in memory.items():
            part, first = parts[i], None if firsts is None else firsts[i]
            try:
                if not self.training:
                    check_finite(part, first)
                    moments[i] = its
                else:
                    counted = np.delete(part, lost, axis=0) if len(lost) else part
                    moments[i] = its.with_samples(self._moment_buffers[i], counted, first)
            except NOT_FINITE:
                raise self._error(i, batch, part, first) from None
        return moments

    def _error(
        self, i: int, batch: Batch, part: NDArray[Any], first: NDArray[Any] | None = None
    ) -> EnvError:
        """Build the error for the number that cannot be normalized."""
        size, at = find_worst(part)
        is_first = False
        if first is not None and first.size and (found := find_worst(first))[0] > size:
            is_first, part, at = True, first, found[1]
        row = int(batch.ended[at[0]]) if is_first else at[0]
        began = is_first or (batch.began is not None and bool(batch.began[row]))
        number = batch.call_number_after(self._steps)
        return EnvError(
            batch.env_ids[row],
            "reset" if began else "step",
            f"{type(self).__name__}: expected finite numbers of at most {MAX_MAGNITUDE:g} in "
            f"magnitude, got {part[at]} at {self._input_layout.leaves[i].path}{list(at[1:])} of "
            f"the {'first ' if began else ''}observation in step {number} since the last full "
            "reset; this transform did not count that step",
        )

    def _put(self, memory: dict[int, Moments], parts: Sequence[Any], into: SpaceRows) -> None:
        for i, (part, out) in enumerate(zip(parts, into.parts, strict=True)):
            moments = memory.get(i)
            if moments is None:
                out[:] = part
            else:
                self._moment_buffers[i].scale(part, moments, out)
