"""Observations by their mean and variance so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from xuance_envs.engine.data.space_rows import SpaceRows
from xuance_envs.errors import EnvError
from xuance_envs.transforms.batches import Batch
from xuance_envs.transforms.learned import environment_of, moments_from, moments_of
from xuance_envs.transforms.leaves import chosen_leaves, name_of, with_leaves
from xuance_envs.transforms.moments import Moments, Room, Scale, are_finite, check_scale
from xuance_envs.transforms.observations import ObservationTransform
from xuance_envs.transforms.transform import transforms_of
from xuance_envs.vector_envs.vector_env import VecEnv

__all__ = ["NormalizeObservations"]


class _Seen(NamedTuple):
    """What is known of observations: a scale by place of a leaf, and the steps since a reset."""

    scales: Mapping[int, Scale]
    steps: int


class NormalizeObservations(ObservationTransform):
    r"""Observations by their mean and variance over all environments, since the beginning.

    .. math:: \mathrm{clip}\left(\frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}}, -c, c\right)

    Each call first counts all that it brought: every environment's observation, last observations
    of episodes and first ones in ``reset_obs`` included, each once. Then it normalizes all of it,
    so that both sides of an episode's end are on one scale. The row of a worker that was lost is
    normalized, but not counted. How they are counted is at
    :class:`~xuance_envs.transforms.moments.Moments`.

    Args:
        vec_env: the vector environment, its observations a Box of numbers, or a Dict of such.
        epsilon: added to the variance.
        clip: the largest magnitude of what is returned; ``math.inf`` for any.
        keys: of a Dict space, what is normalized; the rest stays as it is. None for all.
        keep_raw: whether ``raw_observations`` are kept from the beginning.

    Attributes:
        count (int): observations counted.
        mean: float64, of each number of an observation; for a Dict space a dict by key.
        variance: likewise, the population's; 1 before the first observation.

    Raises:
        ValueError: observations are images or no numbers, an argument is out of its range, or
            observations are normalized already.
        EnvError: an observation has NaN or infinity; from ``reset``, ``step`` and ``recv``. It is
            not counted, what the call brought is lost, and the environments stay usable: reset
            that one.

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
        leaves = chosen_leaves(name, vec_env, keys, no_images=True)
        self._names = {i: name_of(leaf) for i, leaf in leaves.items()}
        for inner in transforms_of(vec_env):
            if isinstance(inner, NormalizeObservations) and inner.parts & {*self._names.values()}:
                raise ValueError(f"{name}: the observations of {inner!r} are normalized already")
        # Arrays of one number are quicker than numbers where the others are arrays.
        self._epsilon = np.array(float(epsilon))
        self._least, self._most = np.array(-float(clip)), np.array(float(clip))
        self._rooms = {i: Room(vec_env.num_envs, leaves[i].shape) for i in leaves}
        none = {i: Scale.of(Moments.none(leaves[i].shape), self._epsilon) for i in leaves}
        bound = np.float32(clip)
        boxes = {leaf.path: spaces.Box(-bound, bound, leaf.shape) for leaf in leaves.values()}
        space = with_leaves(vec_env.observation_space, boxes)
        super().__init__(vec_env, space, _Seen(none, 0), keep_raw=keep_raw)
        self._environment = environment_of(vec_env)

    @property
    def parts(self) -> frozenset[str]:
        """The names of what is normalized: empty for observations of a Box, else keys."""
        return frozenset(self._names.values())

    @property
    def count(self) -> int:
        """How many observations have been counted."""
        return next(iter(self._moments().values())).count

    @property
    def mean(self) -> Any:
        """The mean of each number of an observation, float64; for a Dict space a dict by key."""
        return self._by_name(lambda moments: np.array(moments.mean))

    @property
    def variance(self) -> Any:
        """The population's variance, likewise."""
        return self._by_name(lambda moments: np.array(moments.variance))

    def _by_name(self, value: Callable[[Moments], Any]) -> Any:
        values = {name: value(moments) for name, moments in self._moments().items()}
        return values.get("", values)

    def _moments(self) -> dict[str, Moments]:
        scales = self._state.known.scales
        return {name: scales[i].moments for i, name in self._names.items()}

    def learned(self) -> dict[str, Any]:
        """See :meth:`~xuance_envs.transforms.learning.Learner.learned`."""
        return moments_of(self._environment, self._moments())

    def relearning(self, learned: Mapping[str, Any]) -> Callable[[], None]:
        """See :meth:`~xuance_envs.transforms.learning.Learner.relearning`."""
        name = type(self).__name__
        moments = moments_from(name, self._environment, self._moments(), learned)
        scales = {i: Scale.of(moments[part], self._epsilon) for i, part in self._names.items()}

        def learn() -> None:
            known = _Seen(scales, self._state.known.steps)
            self._state = self._state._replace(known=known)

        return learn

    def _learn(self, known: _Seen, batch: Batch, first: Any) -> _Seen:
        steps = 0 if batch.is_reset else known.steps + 1
        parts = self._given.flatten(batch.obs)
        firsts = None if first is None else self._given.flatten(first)
        for i in known.scales:
            self._check(parts[i], i, batch, None, steps)
            if firsts is not None:
                self._check(firsts[i], i, batch, batch.ended, steps)
        if not self.training:
            return _Seen(known.scales, steps)
        lost = batch.lost
        scales = {}
        for i, scale in known.scales.items():
            part, room = parts[i], self._rooms[i]
            if len(lost):
                part = np.delete(part, lost, axis=0)
            moments = scale.moments.with_samples(part, room)
            if firsts is not None:
                moments = moments.with_samples(firsts[i], room)
            scales[i] = Scale.of(moments, self._epsilon)
        return _Seen(scales, steps)

    def _check(
        self, part: NDArray[Any], i: int, batch: Batch, rows: NDArray[np.intp] | None, steps: int
    ) -> None:
        if are_finite(part):
            return
        at = np.argwhere(~np.isfinite(part))[0]
        row = int(at[0]) if rows is None else int(rows[at[0]])
        env = row if batch.envs is None else int(batch.envs[row])
        began = rows is not None or (batch.began is not None and batch.began[row])
        number, place = part[tuple(at)], self._given.leaves[i].path
        raise EnvError(
            env,
            "reset" if began else "step",
            f"{type(self).__name__}: expected numbers to normalize, got {number} at "
            f"{place}{at[1:].tolist()} of the {'first ' if began else ''}observation "
            f"in step {steps} since all were reset; nothing of that step has been counted",
        )

    def _put(self, known: _Seen, obs: Any, into: SpaceRows) -> None:
        for i, (part, out) in enumerate(zip(self._given.flatten(obs), into.parts, strict=True)):
            scale = known.scales.get(i)
            if scale is None:
                out[:] = part
                continue
            mean, deviation = scale.moments.mean, scale.deviation
            out[...] = self._rooms[i].scaled(part, mean, deviation, self._least, self._most)
