"""Drop-in replacements for Tianshou's vectorized environments: only the import changes.

The classes derive from Tianshou's classes of the same name. The documentation lists the
differences under "Tianshou".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

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
from xuance_envs.vector_envs.options import ActorOptions, InSeries, ProcessOptions
from xuance_envs.vector_envs.ray_vec_env import RayVecEnv, start_actors
from xuance_envs.vector_envs.signatures import with_options
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv, start_processes
from xuance_envs.vector_envs.worker_settings import ProcessSettings, RaySettings

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["DummyVectorEnv", "RayVectorEnv", "ShmemVectorEnv", "SubprocVectorEnv"]

Ids = int | list[int] | NDArray[np.integer[Any]] | None
StepResult = tuple[
    NDArray[Any], NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], NDArray[np.object_]
]


class _VectorEnv(tianshou.BaseVectorEnv):  # type: ignore[misc]  # Tianshou is not type-checked
    """Common base of the four classes."""

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
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout: expected a positive number or None, got {timeout}")
        self.env_num = count
        self.wait_num = wait_num or count
        self.timeout = timeout
        self.is_async = self.wait_num != count or timeout is not None
        self.waiting_id: list[int] = []
        self.ready_id = list(range(count))
        self._every = np.arange(count)
        env_fns = [
            tianshou_env_functions.TianshouEnvFn(each, as_objects) for each in recipe.env_fns
        ]
        recipe = replace(recipe, env_fns=env_fns)
        groups = raise_original(lambda: self._make_groups(recipe, **self._options))
        self._stepper = SubsetStepper(groups)
        self._has_object_space = tianshou_env_functions.has_object_space(
            groups.description.observation_space
        )
        self.is_closed = False

    def _split_options(self, in_series: InSeries | None, options: Mapping[str, Any]) -> Any:
        """Add the default, one environment per worker if ``step`` does not wait for all."""
        if in_series is None:
            given = options.get("num_workers") or options.get("envs_per_worker")
            in_series = 1 if self.is_async and not given else "auto"
        return {"in_series": in_series, **options}

    def reset(self, env_id: Ids = None, **kwargs: Any) -> tuple[NDArray[Any], NDArray[np.object_]]:
        """Reset all or some environments; none of them may be stepping.

        Args:
            env_id: an index, several indices, or None for all.
            **kwargs: arguments for the environments' ``reset``; all get the same seed.

        Returns:
            Observations ``(k, *shape)`` (for Dict spaces, an array of dicts) and infos, an array of
            dicts.
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
        """Step all or some environments; those whose episode ended need a :meth:`reset` first.

        With ``wait_num`` or ``timeout``, the call starts the step and returns the environments
        that finish first.

        Args:
            action: one action per environment; None only waits for environments that are stepping.
            id: an index, several indices, or None for all.

        Returns:
            Observations ``(k, *shape)`` (for Dict spaces, an array of dicts), rewards, terminated
            and truncated ``(k,)``, and infos, an array of dicts with ``env_id``.
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
        """Return an attribute of some environments, from the outermost wrapper that has it.

        Args:
            key: name of the attribute.
            id: an index, several indices, or None for all.
        """
        arguments = key, *self._missing_attr_default
        return self._apply(self._envs(id), tianshou_env_functions.get_env_attr, *arguments)

    def set_env_attr(self, key: str, value: Any, id: Ids = None) -> None:
        """Set an attribute of some environments, on the innermost environment.

        Args:
            key: name of the attribute.
            value: value for all of these environments.
            id: an index, several indices, or None for all.
        """
        self._apply(self._envs(id), tianshou_env_functions.set_env_attr, key, value)

    def seed(self, seed: int | Sequence[int | None] | None = None) -> list[Any]:
        """Seed all environments; those without a ``seed`` method are reset with their seed.

        Args:
            seed: an int gives environment i ``seed + i``; a list has one seed per environment.

        Returns:
            The result of each environment's ``seed``, or a list with its seed.
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
        """Render all environments, none of which may be stepping."""
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
        """Return the indices of the given environments, after checking that they are ready."""
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
        """Return a part's observations and rewards."""
        if not self._has_object_space:
            return part.observations, part.rewards
        observations, rewards = zip(*part.observations, strict=True)
        return observations, rewards

    def _joined(self, parts: Sequence[PartialStep]) -> StepResult:
        """Join the results of several parts."""
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
    """Environments in this process; replaces Tianshou's ``DummyVectorEnv``.

    Args:
        env_fns: callables that make one environment each.
        wait_num: number of environments that ``step`` waits for; None for all.
        timeout: seconds after which ``step`` returns the environments that are ready, if any.
        as_objects: use observations and rewards as they are, ignoring the spaces. This allows
            several rewards per step, and observations of different shapes. It is the default for
            environments that are not Gymnasium's or whose observations are not single arrays.

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


@with_options(ProcessOptions, SubprocVecEnv)
class SubprocVectorEnv(_VectorEnv, tianshou.SubprocVectorEnv):  # type: ignore[misc]  # as above
    """Environments in worker processes; replaces Tianshou's ``SubprocVectorEnv``.

    Tianshou starts one process per environment. Here each worker steps several environments, and
    there is one worker per CPU by default. With ``wait_num`` or ``timeout``, the default is one
    worker per environment, so that slow environments do not delay others.

    Args:
        env_fns: callables that make one environment each.
        wait_num: number of environments that ``step`` waits for; None for all.
        timeout: seconds after which ``step`` returns the environments that are ready, if any.
        share_memory: has no effect: array observations always use shared memory.
        context: ``"fork"``, ``"spawn"``, ``"forkserver"``, or a ``multiprocessing`` context. None
            is Python's default, except where forking is unsafe.
        as_objects: see :class:`DummyVectorEnv`.
        in_series: environments per worker, or ``"auto"``; None for the default described above.
        **options: further arguments of
            :class:`~xuance_envs.vector_envs.subproc_vec_env.SubprocVecEnv`.

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
        in_series: InSeries | None = None,
        **options: Unpack[ProcessOptions],
    ) -> None:
        self._options = {"context": context, "in_series": in_series, **options}
        _VectorEnv.__init__(self, env_fns, wait_num, timeout, as_objects=as_objects)

    def _make_groups(
        self, recipe: Recipe, context: Any, in_series: InSeries | None, **options: Any
    ) -> Groups:
        if not (context is None or isinstance(context, str)):
            context = context.get_start_method()
        specs = custom_registrations(gymnasium.registry.values())
        prepared = [RegisteringEnvFn(function, specs) for function in recipe.env_fns]
        return start_processes(
            replace(recipe, env_fns=prepared),
            ProcessSettings(
                context=start_method(context), **self._split_options(in_series, options)
            ),
            describe=_common_description,
            caller_busy=self.is_async,
        )


@with_options(None, SubprocVectorEnv)
class ShmemVectorEnv(SubprocVectorEnv, tianshou.ShmemVectorEnv):  # type: ignore[misc]  # as above
    """The same as :class:`SubprocVectorEnv`, under Tianshou's other name.

    Example:
        .. code-block:: python

            import gymnasium
            from xuance_envs.compat.tianshou import ShmemVectorEnv

            envs = ShmemVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3, wait_num=2)
            observations, infos = envs.reset()
            observations, rewards, terminated, truncated, infos = envs.step([0, 1, 0])
    """


@with_options(ActorOptions, RayVecEnv)
class RayVectorEnv(_VectorEnv, tianshou.RayVectorEnv):  # type: ignore[misc]  # as above
    """Environments in Ray actors; replaces Tianshou's ``RayVectorEnv``.

    Args:
        env_fns: callables that make one environment each; they are called in the actors.
        wait_num: number of environments that ``step`` waits for; None for all.
        timeout: seconds after which ``step`` returns the environments that are ready, if any.
        as_objects: see :class:`DummyVectorEnv`.
        in_series: environments per actor, or ``"auto"``. None is 1 with ``wait_num`` or
            ``timeout``, else ``"auto"``.
        num_cpus_per_worker: CPUs that an actor reserves in the cluster. None is 0 if each actor
            has one environment, as in Tianshou, else 1.
        **options: further arguments of
            :class:`~xuance_envs.vector_envs.ray_vec_env.RayVecEnv_Gym`.

    Raises:
        ImportError: Ray is not installed.
        ValueError: an argument is out of range.

    Example:
        .. code-block:: python

            envs = RayVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 8, address="auto")
            observations, infos = envs.reset()
    """

    def __init__(
        self,
        env_fns: Iterable[Callable[[], Any]],
        wait_num: int | None = None,
        timeout: float | None = None,
        *,
        as_objects: bool = False,
        in_series: InSeries | None = None,
        num_cpus_per_worker: float | None = None,
        **options: Unpack[ActorOptions],
    ) -> None:
        cpus = {} if num_cpus_per_worker is None else {"num_cpus_per_worker": num_cpus_per_worker}
        self._options = {"in_series": in_series, **cpus, **options}
        _VectorEnv.__init__(self, env_fns, wait_num, timeout, as_objects=as_objects)

    def _make_groups(self, recipe: Recipe, in_series: InSeries | None, **options: Any) -> Groups:
        given = self._split_options(in_series, options)
        one_each = 1 in (given["in_series"], options.get("envs_per_worker"))
        # Each worker has its own actor, because workers that share an actor reply together.
        defaults = {
            "num_cpus_per_worker": 0.0 if one_each else 1.0,
            "actors": "core" if one_each else "auto",
        }
        return start_actors(recipe, RaySettings(**{**defaults, **given}), _common_description)


def _common_description(described: Sequence[tuple[int, EnvDescription]]) -> EnvDescription:
    """Return environment 0's description; raise if another's observations differ in form."""
    (_, first), *others = described
    space = first.observation_space
    for index, other in others:
        other_space = other.observation_space
        same_kind = tianshou_env_functions.has_object_space(
            space
        ) == tianshou_env_functions.has_object_space(other_space)
        same_form = (space.shape, space.dtype) == (other_space.shape, other_space.dtype)
        if not (same_kind and same_form):
            raise RuntimeError(
                f"environment {index} has a different observation space than environment 0: "
                f"expected {space}, got {other_space}; use as_objects=True if they should differ"
            )
    return first


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


def _dicts(infos: Sequence[dict[str, Any]]) -> NDArray[np.object_]:
    return np.fromiter(infos, object, len(infos))
