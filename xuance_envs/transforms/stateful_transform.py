"""Saving, loading and sharing of transforms' state and learned statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from xuance_envs.errors import StateMismatchError, counted
from xuance_envs.multi_agent.multi_agent_vec_env import MultiAgentVecEnv
from xuance_envs.multi_agent.record_layout import ObservationRecord
from xuance_envs.state.env_states import EnvStates
from xuance_envs.transforms.transform_batch import RawResults
from xuance_envs.vector_envs.arguments import checked_states
from xuance_envs.vector_envs.last_results import saved_values
from xuance_envs.vector_envs.vector_env import VecEnv
from xuance_envs.vector_envs.wrapper import VecEnvWrapper, checked_vec_env


class StatefulTransform(VecEnvWrapper):
    """Base class of transforms, which may learn statistics."""

    training: bool
    raw_results: RawResults

    def learned(self) -> dict[str, Any]:
        """Return this transform's learned statistics as numbers, strings and lists, by name."""
        return {}

    def prepare_learned(self, learned: Mapping[str, Any]) -> Callable[[], None]:
        """Check learned data and return a function that applies it.

        Args:
            learned: result of :meth:`learned`; arrays may replace its lists.

        Returns:
            A function without arguments that replaces this transform's data.

        Raises:
            ValueError: the data has the wrong shape, or comes from a different environment.
        """
        raise NotImplementedError(f"{type(self).__name__} has no statistics to load")

    def freeze(self) -> None:
        """Stop learning in this transform and all transforms inside it."""
        for transform in transforms_of(self):
            transform.training = False

    def state_dict(self) -> dict[str, Any]:
        """Return the learned statistics of this transform and those inside it.

        Returns:
            A flat dict of numbers, strings and lists of numbers, suitable for ``torch.save`` and
            ``numpy.savez``. The keys are the class and the statistic, such as
            ``NormalizeRewards.mean``.
        """
        return {
            f"{name}.{key}": value
            for name, transform in _stateful_transforms(self).items()
            for key, value in transform.learned().items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load learned data into this transform and those inside it.

        Args:
            state: the result of :meth:`state_dict`, as returned or as read by ``numpy.load``.

        Raises:
            ValueError: the data does not match the transforms, shapes or environments. Nothing has
                changed then.
        """
        given: dict[str, dict[str, Any]] = {}
        for name, value in state.items():
            transform, _, key = name.partition(".")
            given.setdefault(transform, {})[key] = value
        self._load_learned(given, exactly=True)

    def sync_from(self, other: object) -> None:
        """Copy learned data from transforms of other environments, for example to evaluate.

        Args:
            other: the outermost transform to copy from, for example around the training
                environments. It may have more transforms than this one.

        Raises:
            TypeError: ``other`` is not a transform.
            ValueError: ``other`` lacks a transform that this one has, or a transform's shape or
                environment differs. Nothing has changed then.
        """
        if not isinstance(other, StatefulTransform):
            raise TypeError(f"other: expected a transform, got {other!r}")
        others = _stateful_transforms(other).items()
        self._load_learned({name: transform.learned() for name, transform in others})

    def _load_learned(self, given: Mapping[str, Mapping[str, Any]], exactly: bool = False) -> None:
        own = _stateful_transforms(self)
        if not own.keys() <= given.keys() or (exactly and own.keys() != given.keys()):
            name = "state" if exactly else "other"
            raise ValueError(
                f"{name}: expected statistics of {_listed(own)}, got those of {_listed(given)}"
            )
        learn = [transform.prepare_learned(given[name]) for name, transform in own.items()]
        for each in learn:
            each()


def transforms_of(vec_env: VecEnv) -> list[Any]:
    """Return the transforms in a vectorized environment, outermost first."""
    found: list[Any] = []
    while isinstance(vec_env, VecEnvWrapper):
        if isinstance(vec_env, StatefulTransform):
            found.append(vec_env)
        vec_env = vec_env.vec_env
    return found


def _stateful_transforms(outermost: StatefulTransform) -> dict[str, StatefulTransform]:
    """Return the transforms that learn, named ``NormalizeRewards``, ``NormalizeRewards-2`` etc."""
    found: dict[str, StatefulTransform] = {}
    for transform in transforms_of(outermost):
        if transform.learned():
            name = type(transform).__name__
            count = sum(key.partition("-")[0] == name for key in found)
            found[f"{name}-{count + 1}" if count else name] = transform
    return found


def _listed(names: Mapping[str, Any]) -> str:
    return " and ".join(names) or "no transform"


class TransformSnapshot(NamedTuple):
    """State of one transform for one environment, saved together with the environment's state."""

    reward: float | list[float]
    exact_reward: float | list[float] | None
    info: dict[Any, Any]
    env_state: Any


def saved_by_transform(state: EnvStates, key: str) -> tuple[list[TransformSnapshot], Any]:
    """Return a transform's snapshots and learned data from saved states."""
    saved = saved_values(checked_states(state), key, TransformSnapshot)
    if saved is not None:
        return saved, state.shared_extra(key)
    position, _, name = key.partition(" ")
    inner = counted(int(position), "transform")
    raise StateMismatchError(
        -1,
        "load_state",
        f"expected states with data of {name} around {inner}, got none: use the same transforms in "
        "the same order as when saving",
        what="transforms",
        here=name,
    )


def check_single_agent(name: str, vec_env: VecEnv) -> VecEnv:
    """Return the vectorized environment if it is single-agent."""
    given: Any = vec_env
    within = given.vec_env if isinstance(given, MultiAgentVecEnv) else given
    if isinstance(within, VecEnv) and isinstance(within.observation_space, ObservationRecord):
        raise TypeError(
            f"{name}: expected environments with one agent each, got multi-agent ones: use "
            f"{name}(from_gymnasium(per_agent_rows(envs))), where each agent is one row, or wrap "
            "each environment in its env_fn"
        )
    return checked_vec_env(name, vec_env)
