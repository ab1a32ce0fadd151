"""Tianshou's vector environments over these groups: change the import, and nothing else.

The classes derive from Tianshou's own of the same name. What differs is listed in the
documentation, under "Tianshou".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
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
from xuance_envs.compat.env_functions import RegisteringEnvFn, custom_registrations
from xuance_envs.compat.stepping import raise_original
from xuance_envs.compat.subset_stepper import PartialStep, SubsetStepper
from xuance_envs.compat.vector_arguments import start_method
from xuance_envs.engine.group.outcome import Autoreset
from xuance_envs.engine.group.recipe import Recipe
from xuance_envs.engine.group.single_env import EnvDescription
from xuance_envs.engine.groups import Groups, LocalGroups
from xuance_envs.vector_envs.arguments import checked_recipe, env_indices
from xuance_envs.vector_envs.ray_vec_env import start_actors
from xuance_envs.vector_envs.subproc_vec_env import start_processes

__all__ = ["DummyVectorEnv", "RayVectorEnv", "ShmemVectorEnv", "SubprocVectorEnv"]

Ids = int | list[int] | NDArray[np.integer[Any]] | None
StepResult = tuple[
    NDArray[Any], NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], NDArray[np.object_]
]


class _VectorEnv(tianshou.BaseVectorEnv):  # type: ignore[misc]  # of a type that is not looked at
    """What the four classes have in common."""

    # Theirs looks at the name of every attribute for the few that it asks the environments for;
    # these are properties here.
    __getattribute__ = object.__getattribute__

    is_closed = True  # until there is something to close
    _missing_attr_default: tuple[Any, ...] = (None,)
    """What :meth:`get_env_attr` gives for what an environment has not; empty for an error."""

    _make_groups: Callable[..., Groups]
    """Starts what they live in, of what they are made from and the options of the class."""

    def __init__(
        self,
        env_fns: Iterable[Callable[[], Any]],
        wait_num: int | None = None,
        timeout: float | None = None,
        *,
        as_objects: bool = False,
        **options: Any,
    ) -> None:
        recipe = checked_recipe(env_fns, None, Autoreset.DISABLED)
        count = len(recipe)
        if wait_num is not None and not 1 <= wait_num <= count:
            raise ValueError(f"wait_num: expected from 1 to {count} or None, got {wait_num}")
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout: expected a positive number or None, got {timeout}")
        self.env_num = count
        self.wait_num = wait_num or count
        self.timeout = timeout
        self.is_async = self.wait_num != count or timeout is not None
        self.waiting_id: list[int] = []
        self.ready_id = list(range(count))
        self._every = np.arange(count)
        made = [tianshou_env_functions.TianshouEnvFn(each, as_objects) for each in recipe.env_fns]
        recipe = replace(recipe, env_fns=made)
        groups = raise_original(lambda: self._make_groups(recipe, **options))
        self._stepper = SubsetStepper(groups)
        self._has_object_space = tianshou_env_functions.has_object_space(
            groups.description.observation_space
        )
        self.is_closed = False

    def _envs_per_worker(self, in_series: int | str | None) -> int | str:
        """Environments per worker; one where some are waited for, unless told otherwise."""
        return (1 if self.is_async else "auto") if in_series is None else in_series

    def reset(self, env_id: Ids = None, **kwargs: Any) -> tuple[NDArray[Any], NDArray[np.object_]]:
        """Resets some environments, or all; none of them may be stepping.

        Args:
            env_id: an index, some of them, or None for all.
            **kwargs: for the environments' ``reset``; the seed is the same for all.

        Returns:
            Observations ``(k, *shape)``, those of Dict spaces as an array of dicts, and infos, an
            array of dicts.
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
        return _stacked(observations), _dicts(infos)

    def step(self, action: Any, id: Ids = None) -> StepResult:
        """Steps some environments, or all. Where an episode ended, reset them before the next step.

        With ``wait_num`` or ``timeout`` the environments are started, and those that are ready
        first are returned.

        Args:
            action: one for each of these environments; None only waits for those that are stepping.
            id: an index, some of them, or None for all.

        Returns:
            Observations ``(k, *shape)``, those of Dict spaces as an array of dicts, rewards,
            terminated and truncated ``(k,)``, and infos, an array of dicts, each with ``env_id``.
        """
        envs, stepper = self._envs(id, action is not None), self._stepper
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
                raise ValueError("action: expected some, as no environment is stepping, got None")
            parts = raise_original(stepper.receive, self.wait_num, self.timeout)
            arrived = [env for part in parts for env in part.envs.tolist()]
            self.waiting_id = _without(arrived, self.waiting_id)
            self.ready_id += arrived
            return self._joined(parts)
        except BaseException:  # an interrupt may have come anywhere
            self.waiting_id = stepper.in_flight.tolist()
            self.ready_id = _without(self.waiting_id, self._every.tolist())
            raise

    def get_env_attr(self, key: str, id: Ids = None) -> list[Any]:
        """An attribute of some environments, or of all, wherever in their wrappers it is."""
        arguments = key, *self._missing_attr_default
        return self._apply(self._envs(id), tianshou_env_functions.get_env_attr, *arguments)

    def set_env_attr(self, key: str, value: Any, id: Ids = None) -> None:
        """Sets an attribute of some environments, or of all, on the innermost of each."""
        self._apply(self._envs(id), tianshou_env_functions.set_env_attr, key, value)

    def seed(self, seed: int | Sequence[int | None] | None = None) -> list[Any]:
        """Seeds all environments: an int is counted up by the environment's index.

        Environments without a ``seed`` of their own are reset with it.

        Returns:
            What each ``seed`` returned, or a list of the one seed.
        """
        self._assert_is_not_closed()
        if seed is None:
            seeds: Sequence[int | None] = [None] * self.env_num
        elif isinstance(seed, int | np.integer):
            seeds = [int(seed) + env for env in range(self.env_num)]
        else:
            seeds = seed
        if len(seeds) != self.env_num:
            raise ValueError(
                f"seed: expected an int or {self.env_num} seeds, one per environment, "
                f"got {len(seeds)}"
            )
        answers = self._stepper.apply_to(
            self._every, tianshou_env_functions.seed, [(each,) for each in seeds]
        )
        by_reset = np.array([env for env, (own, _) in enumerate(answers) if not own], np.intp)
        if by_reset.size:
            given = [seeds[env] for env in by_reset.tolist()]
            raise_original(self._stepper.reset, by_reset, given, None)
        return [answer for _, answer in answers]

    def render(self, **kwargs: Any) -> list[Any]:
        """Renders all environments, none of which may be stepping."""
        self._assert_is_not_closed()
        if self.waiting_id:
            raise RuntimeError(
                f"Environments {self.waiting_id} are still stepping, cannot render them now."
            )
        return self._apply(self._every, tianshou_env_functions.render, kwargs)

    def close(self) -> None:
        """Closes the environments, and ends what they live in."""
        self._assert_is_not_closed()
        self.is_closed = True
        self._stepper.close()

    def _apply(self, envs: NDArray[np.intp], function: Callable[..., Any], *args: Any) -> list[Any]:
        return self._stepper.apply_to(envs, function, [args] * len(envs))

    def _envs(self, ids: Ids, ready: bool = True) -> NDArray[np.intp]:
        """The environments asked for, which have to be ready."""
        self._assert_is_not_closed()
        if ids is None:
            envs = self._every
        else:
            given = ids if isinstance(ids, np.ndarray) and ids.ndim else np.atleast_1d(ids)
            envs = env_indices(given, self.env_num)
        if self.waiting_id and ready:
            self._assert_id(envs.tolist())
        return envs

    def _values(self, part: PartialStep) -> tuple[Any, Any]:
        """The observations and rewards of a part."""
        if not self._has_object_space:
            return part.observations, part.rewards
        observations, rewards = zip(*part.observations, strict=True)
        return observations, rewards

    def _joined(self, parts: Sequence[PartialStep]) -> StepResult:
        """What came of some steps, as of one."""
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
        observations, rewards = self._values(part)
        infos = part.infos.dicts(part.envs, "env_id", part.envs.tolist())
        flags = part.terminated, part.truncated
        return _stacked(observations), np.asarray(rewards), *flags, _dicts(infos)


for _key in GYM_RESERVED_KEYS:
    setattr(_VectorEnv, _key, property(partial(_VectorEnv.get_env_attr, key=_key)))


class DummyVectorEnv(_VectorEnv, tianshou.DummyVectorEnv):  # type: ignore[misc]  # as above
    """Many environments in this process, as Tianshou's ``DummyVectorEnv``.

    Args:
        env_fns: callables that make one environment each.
        wait_num: how many environments ``step`` waits for; all for None.
        timeout: seconds after which it returns those that are ready, if any are.
        as_objects: whether observations and rewards are taken as they are, whatever the spaces say:
            for several rewards a step, and for observations that differ in shape. They are without
            it where an environment is none of Gymnasium's, or its observations no single arrays.

    Raises:
        ValueError: two callables returned the same environment, or an argument is out of range.

    Example:
        .. code-block:: python

            import gymnasium
            from xuance_envs.compat.tianshou import DummyVectorEnv

            envs = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3)
            observations, infos = envs.reset()
            observations, rewards, terminated, truncated, infos = envs.step([0, 1], [0, 2])
    """

    _missing_attr_default = ()

    def _make_groups(self, recipe: Recipe) -> LocalGroups:
        return LocalGroups(recipe, _common_description)


class SubprocVectorEnv(_VectorEnv, tianshou.SubprocVectorEnv):  # type: ignore[misc]  # as above
    """Many environments in worker processes, as Tianshou's ``SubprocVectorEnv``.

    Tianshou starts a process for each environment. Here a worker steps a share of them, and there
    is one worker per CPU; but with ``wait_num`` or ``timeout``, which are for environments that
    keep each other waiting, one per environment, unless told otherwise.

    Args:
        env_fns: callables that make one environment each.
        wait_num: how many environments ``step`` waits for; all for None.
        timeout: seconds after which it returns those that are ready, if any are.
        share_memory: changes nothing: observations that are arrays always travel in shared memory.
        context: ``"fork"``, ``"spawn"``, ``"forkserver"``, or one of Python's contexts; None is
            Python's default, unless that is to fork and not safe.
        as_objects: see :class:`DummyVectorEnv`.
        in_series: environments per worker, or ``"auto"``; None is as said above.
        **ours: as :class:`~xuance_envs.vector_envs.subproc_vec_env.SubprocVecEnv` takes them:
            ``caller_steps``, ``worker_threads`` and so on.

    Raises:
        ValueError: an argument is out of range.

    Example:
        .. code-block:: python

            import gymnasium
            from xuance_envs.compat.tianshou import SubprocVectorEnv

            envs = SubprocVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3, in_series=2)
            observations, infos = envs.reset()
            observations, rewards, terminated, truncated, infos = envs.step([0, 1, 0])
    """

    def __init__(
        self,
        env_fns: Iterable[Callable[[], Any]],
        wait_num: int | None = None,
        timeout: float | None = None,
        share_memory: bool = False,
        context: Any = None,
        *,
        as_objects: bool = False,
        **ours: Any,
    ) -> None:
        options = {"as_objects": as_objects, "context": context, **ours}
        _VectorEnv.__init__(self, env_fns, wait_num, timeout, **options)

    def _make_groups(
        self,
        recipe: Recipe,
        context: Any,
        in_series: int | str | None = None,
        **ours: Any,
    ) -> Groups:
        if not (context is None or isinstance(context, str)):
            context = context.get_start_method()
        specs = custom_registrations(gymnasium.registry.values())
        prepared = [RegisteringEnvFn(function, specs) for function in recipe.env_fns]
        return start_processes(
            replace(recipe, env_fns=prepared),
            in_series=self._envs_per_worker(in_series),
            context=start_method(context),
            describe=_common_description,
            caller_busy=self.is_async,
            **ours,
        )


class ShmemVectorEnv(SubprocVectorEnv, tianshou.ShmemVectorEnv):  # type: ignore[misc]  # as above
    """The same as :class:`SubprocVectorEnv`, with the same arguments, by Tianshou's other name.

    Example:
        .. code-block:: python

            import gymnasium
            from xuance_envs.compat.tianshou import ShmemVectorEnv

            envs = ShmemVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3, wait_num=2)
            observations, infos = envs.reset()
            observations, rewards, terminated, truncated, infos = envs.step([0, 1, 0])
    """


class RayVectorEnv(_VectorEnv, tianshou.RayVectorEnv):  # type: ignore[misc]  # as above
    """Many environments in Ray actors, as Tianshou's ``RayVectorEnv``.

    Args:
        env_fns: callables that make one environment each, in the actor where it will live.
        wait_num: how many environments ``step`` waits for; all for None.
        timeout: seconds after which it returns those that are ready, if any are.
        as_objects: see :class:`DummyVectorEnv`.
        in_series: environments per actor, or ``"auto"``; None is 1 with ``wait_num`` or
            ``timeout``, and ``"auto"`` otherwise.
        num_cpus_per_worker: CPUs an actor takes of the cluster; None is 0 where each has one
            environment, as in Tianshou, and 1 otherwise.
        **ours: as :class:`~xuance_envs.vector_envs.ray_vec_env.RayVecEnv_Gym` takes them.

    Raises:
        ImportError: Ray is not installed.
        ValueError: an argument is out of range.

    Example:
        .. code-block:: python

            envs = RayVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 8, address="auto")
            observations, infos = envs.reset()
    """

    def _make_groups(
        self,
        recipe: Recipe,
        in_series: int | str | None = None,
        num_cpus_per_worker: float | None = None,
        **ours: Any,
    ) -> Groups:
        shares = self._envs_per_worker(in_series)
        cpus = num_cpus_per_worker
        if cpus is None:
            cpus = 0.0 if shares == 1 else 1.0
        # Workers of one actor that were asked together also answer together.
        given = {"in_series": shares, "actors": "core" if shares == 1 else "auto", **ours}
        return start_actors(
            recipe,
            num_cpus_per_worker=cpus,
            describe=_common_description,
            **given,
        )


def _common_description(described: Sequence[tuple[int, EnvDescription]]) -> EnvDescription:
    """Environment 0's description, where the others' observations are laid out as its are.

    Raises:
        RuntimeError: one has observations of another shape or dtype.
    """
    (_, first), *others = described
    space = first.observation_space
    for index, other in others:
        theirs = other.observation_space
        kinds = (
            tianshou_env_functions.has_object_space(space),
            tianshou_env_functions.has_object_space(theirs),
        )
        if kinds[0] != kinds[1] or (space.shape, space.dtype) != (theirs.shape, theirs.dtype):
            raise RuntimeError(
                f"environment {index} has another kind of observations than environment 0: "
                f"expected {space}, got {theirs}; with as_objects=True they may differ"
            )
    return first


def _without(some: Sequence[int], envs: Sequence[int]) -> list[int]:
    taken = set(some)
    return [env for env in envs if env not in taken]


def _stacked(observations: Any) -> NDArray[Any]:
    """The observations of some environments in one array, of objects where they differ in shape."""
    if isinstance(observations, np.ndarray):
        return observations
    try:
        return np.stack(observations)
    except ValueError:
        return np.array(observations, dtype=object)


def _dicts(infos: Sequence[dict[str, Any]]) -> NDArray[np.object_]:
    return np.fromiter(infos, object, len(infos))
