"""Tianshou's interface, for all backends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    from tianshou import env as tianshou
    from tianshou.env.venvs import GYM_RESERVED_KEYS
except ImportError as error:
    raise ImportError(
        "xuance_envs.compat.tianshou needs Tianshou 1.2 or later: pip install tianshou"
    ) from error

from xuance_envs.compat import tianshou_env_functions
from xuance_envs.compat.stepping import as_rows, raise_original
from xuance_envs.compat.subset_stepper import PartialStep, SubsetStepper
from xuance_envs.engine.data.space_layout import shape_of_rewards
from xuance_envs.engine.group.base_env_group import AttributeSetter
from xuance_envs.engine.group.outcome import Autoreset
from xuance_envs.engine.group.single_env import EnvDescription
from xuance_envs.engine.groups import Groups
from xuance_envs.vector_envs.aliases import Uncopyable
from xuance_envs.vector_envs.arguments import (
    checked_recipe,
    checked_timeout,
    env_indices,
    seed_per_env,
)
from xuance_envs.vector_envs.options import InSeries

__all__ = ["TianshouVectorEnv", "common_description", "tianshou"]

Ids = int | list[int] | NDArray[np.integer[Any]] | None
StepResult = tuple[
    NDArray[Any], NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], NDArray[np.object_]
]


class TianshouVectorEnv(Uncopyable, tianshou.BaseVectorEnv):  # type: ignore[misc]  # Tianshou is not type-checked
    """Base class of the four classes in :mod:`xuance_envs.compat.tianshou`."""

    # Tianshou intercepts every attribute access to forward a few names to the environments. Here
    # those names are properties.
    __getattribute__ = object.__getattribute__

    is_closed = True  # until the environments exist
    _missing_attr_default: tuple[Any, ...] = (None,)
    """Default of :meth:`get_env_attr` for a missing attribute; empty to raise an error."""

    _make_groups: Callable[..., Groups]
    """Function that starts the groups from a recipe and the options."""

    _options: Mapping[str, Any] = MappingProxyType({})

    def __init__(
        self,
        env_fns: Iterable[Callable[[], Any]],
        wait_num: int | None = None,
        timeout: float | None = None,
        *,
        as_objects: bool = False,
    ) -> None:
        recipe = checked_recipe(env_fns, None, Autoreset.DISABLED)
        count = len(recipe)
        if wait_num is not None and not 1 <= wait_num <= count:
            raise ValueError(f"wait_num: expected 1 to {count}, or None, got {wait_num}")
        self.env_num = count
        self.wait_num = wait_num or count
        self.timeout = checked_timeout("timeout", timeout)
        self.is_async = self.wait_num != count or timeout is not None
        self.waiting_id: list[int] = []
        self.ready_id = list(range(count))
        self._every = np.arange(count)
        make_env = tianshou_env_functions.make_env
        env_fns = [partial(make_env, each, as_objects) for each in recipe.env_fns]
        recipe = replace(recipe, env_fns=env_fns)
        groups = raise_original(lambda: self._make_groups(recipe, **self._options))
        self._stepper = SubsetStepper(groups)
        self._has_object_space = isinstance(
            groups.description.observation_space, tianshou_env_functions.ObjectSpace
        )
        self.is_closed = False

    def split_options(self, in_series: InSeries | None, options: Mapping[str, Any]) -> Any:
        """Add ``in_series`` to the options; replace None by the default."""
        if in_series is None:
            given = options.get("num_workers") or options.get("envs_per_worker")
            in_series = 1 if self.is_async and not given else "auto"
        return {"in_series": in_series, **options}

    def reset(self, env_id: Ids = None, **kwargs: Any) -> tuple[NDArray[Any], NDArray[np.object_]]:
        """Reset all or some environments; none of them may be stepping.

        Args:
            env_id: an index, several indices, or None for all.
            **kwargs: arguments for the environments' ``reset``; all environments get the same seed.

        Returns:
            ``(observations, infos)`` of k environments, in the order of ``env_id``. Observations
            are ``(k, *shape)``; for Dict spaces, an array of dicts. Infos are an array of dicts.
        """
        envs = self._envs(env_id)
        if kwargs.keys() <= {"seed", "options"}:
            options, seed = kwargs.get("options"), kwargs.get("seed")
            seeds = [seed] * len(envs)
            observations, batch = raise_original(self._stepper.reset, envs, seeds, options)
            if self._has_object_space:
                observations = [observation for observation, _ in observations]
            infos = batch.dicts(envs)
        else:
            results = self._apply(envs, tianshou_env_functions.reset_with_arguments, kwargs)
            observations, infos = zip(*results, strict=True)
        if isinstance(observations[0], tuple):
            raise TypeError(
                "Tuple observation space is not supported. Please change it to array or dict space"
            )
        return _stacked(observations), np.fromiter(infos, object, len(infos))

    def step(self, action: Any, id: Ids = None) -> StepResult:
        """Step all or some environments; after an episode's end, call :meth:`reset` first.

        With ``wait_num`` or ``timeout``, the call starts the step and returns the results of the
        environments that finish first.

        Args:
            action: one action per environment; None to only wait for environments that are
                stepping.
            id: an index, several indices, or None for all.

        Returns:
            ``(observations, rewards, terminated, truncated, infos)`` of k environments.
            Observations are ``(k, *shape)``; for Dict spaces, an array of dicts. Rewards are
            ``(k,)`` float64, or ``(k, n)`` if ``reward_space`` is ``(n,)``. Flags are ``(k,)``
            bool. Infos are an array of dicts, each with its environment's index as ``env_id``.
        """
        envs, stepper = self._envs(id, action is not None), self._stepper
        action = as_rows(stepper.description.action_space, action)
        if self.is_async:
            return self._step_async(action, envs)
        if action is None:
            raise ValueError("action must be not-None for non-async")
        if envs is self._every or (len(envs) == self.env_num and (envs == self._every).all()):
            return self._result(raise_original(stepper.step_all, action))
        return self._result(raise_original(stepper.step, envs, action))

    def _step_async(self, action: Any, envs: NDArray[np.intp]) -> StepResult:
        stepper = self._stepper
        try:
            if action is not None:
                stepper.send(envs, action)
                sent = envs.tolist()
                self.waiting_id += sent
                self.ready_id = _without(sent, self.ready_id)
            elif not self.waiting_id:
                raise ValueError(
                    "action: expected actions, because no environment is stepping, got None"
                )
            parts = raise_original(stepper.receive, self.wait_num, self.timeout)
            arrived = [env for part in parts for env in part.envs.tolist()]
            self.waiting_id = _without(arrived, self.waiting_id)
            self.ready_id += arrived
            return self._joined(parts)
        except BaseException:  # possibly an interrupt at any point
            self.waiting_id = stepper.in_flight.tolist()
            self.ready_id = _without(self.waiting_id, self._every.tolist())
            raise

    def get_env_attr(self, key: str, id: Ids = None) -> list[Any]:
        """Return attribute ``key`` of environments, from the outermost wrapper that has it."""
        arguments = key, *self._missing_attr_default
        return self._apply(self._envs(id), tianshou_env_functions.get_env_attr, *arguments)

    def set_env_attr(self, key: str, value: Any, id: Ids = None) -> None:
        """Set attribute ``key`` of the unwrapped environments to one value."""
        setter = AttributeSetter(tianshou_env_functions.set_env_attr)
        self._apply(self._envs(id), setter, key, value)

    def seed(self, seed: int | Sequence[int | None] | None = None) -> list[Any]:
        """Seed all environments; an environment without a ``seed`` method is reset with its seed.

        Args:
            seed: an int gives environment i the seed ``seed + i``; a list has one seed per
                environment.

        Returns:
            For each environment, the result of its ``seed`` method, or a list with its seed.
        """
        self._assert_is_not_closed()
        seeds = seed_per_env(seed, range(self.env_num))
        answers = self._stepper.apply_to(
            self._every, tianshou_env_functions.seed, [(each,) for each in seeds]
        )
        by_reset = np.array([env for env, (own, _) in enumerate(answers) if not own], np.intp)
        if by_reset.size:
            given = [seeds[env] for env in by_reset.tolist()]
            raise_original(self._stepper.reset, by_reset, given, None)
        return [answer for _, answer in answers]

    def render(self, **kwargs: Any) -> list[Any]:
        """Render all environments, which must not be stepping."""
        self._assert_is_not_closed()
        if self.waiting_id:
            raise RuntimeError(
                f"Environments {self.waiting_id} are still stepping, cannot render them now."
            )
        return self._apply(self._every, tianshou_env_functions.render, kwargs)

    def close(self) -> None:
        """Close the environments and end their workers."""
        self._assert_is_not_closed()
        self.is_closed = True
        self._stepper.close()

    def _apply(self, envs: NDArray[np.intp], function: Callable[..., Any], *args: Any) -> list[Any]:
        return self._stepper.apply_to(envs, function, [args] * len(envs))

    def _envs(self, ids: Ids, ready: bool = True) -> NDArray[np.intp]:
        """Return the indices of environments; with ``ready``, raise if one of them is stepping."""
        self._assert_is_not_closed()
        envs = self._every if ids is None else env_indices(np.atleast_1d(ids), self.env_num)
        if self.waiting_id and ready:
            self._assert_id(envs.tolist())
        return envs

    def _joined(self, parts: Sequence[PartialStep]) -> StepResult:
        results = [self._result(part) for part in parts]
        if len(results) == 1:
            return results[0]
        observations, *others = zip(*results, strict=True)
        if self._has_object_space:
            joined = _stacked([row for rows in observations for row in rows])
        else:
            joined = np.concatenate(observations)
        rewards, terminated, truncated, infos = map(np.concatenate, others)
        return joined, rewards, terminated, truncated, infos

    def _result(self, part: PartialStep) -> StepResult:
        observations: Any = part.observations
        rewards: Any = part.rewards
        if self._has_object_space:
            observations, rewards = zip(*observations, strict=True)
        infos = part.infos.dicts(part.envs, "env_id", part.envs.tolist())
        flags = part.terminated, part.truncated
        info_array = np.fromiter(infos, object, len(infos))
        return _stacked(observations), np.asarray(rewards), *flags, info_array


for _key in GYM_RESERVED_KEYS:
    setattr(TianshouVectorEnv, _key, property(partial(TianshouVectorEnv.get_env_attr, key=_key)))


def common_description(described: Sequence[tuple[int, EnvDescription]]) -> EnvDescription:
    """Return environment 0's description; raise if another environment's spaces do not match."""
    (_, first), *others = described
    for index, other in others:
        for name, (form, expected) in _forms(first).items():
            other_form, given = _forms(other)[name]
            if other_form != form:
                raise RuntimeError(
                    f"environment {index} has a different {name} than environment 0: expected "
                    f"{expected}, got {given}; use as_objects=True if they should differ"
                )
    return first


def _forms(description: EnvDescription) -> dict[str, tuple[Any, Any]]:
    """Return the properties of the spaces that must be equal in all environments."""
    space, reward_space = description.observation_space, description.spaces.reward_space
    has_objects = isinstance(space, tianshou_env_functions.ObjectSpace)
    return {
        "observation space": ((has_objects, space.shape, space.dtype), space),
        "reward_space": (shape_of_rewards(reward_space), reward_space),
    }


def _without(removed: Sequence[int], envs: Sequence[int]) -> list[int]:
    removed_set = set(removed)
    return [env for env in envs if env not in removed_set]


def _stacked(observations: Any) -> NDArray[Any]:
    """Stack observations in an array; in an array of objects if their shapes differ."""
    if isinstance(observations, np.ndarray):
        return observations
    try:
        return np.stack(observations)
    except ValueError:
        return np.array(observations, dtype=object)
