"""The contract of every vector environment, and its state checks.

Backends differ only in the drivers they give to :class:`VecEnv`: which groups of environments
there are, and where each of them lives.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from xuance_envs.engine.driver import Driver
from xuance_envs.engine.env_group import DONE, Autoreset, Outcome
from xuance_envs.engine.infos import StepInfos
from xuance_envs.engine.single_env import EnvDescription, common_description
from xuance_envs.engine.space_layout import BadValueError
from xuance_envs.engine.space_rows import EVERY, read_only
from xuance_envs.engine.step_arrays import StepArrays, as_float32
from xuance_envs.engine.waiting import PolledWaiter, Waiter
from xuance_envs.errors import (
    AlreadySteppingError,
    ClosedVecEnvError,
    NotSteppingError,
    WorkerDiedError,
    WorkerTimeoutError,
    name_envs,
)
from xuance_envs.vector_envs.arguments import checked_env_ids, env_indices, seeds_of
from xuance_envs.vector_envs.first_ready import FirstReady, StepBatch
from xuance_envs.vector_envs.forks import Elsewhere, stays_behind
from xuance_envs.vector_envs.results import Results
from xuance_envs.vector_envs.statistics import WorkerStatistics

__all__ = ["AlreadySteppingError", "NotSteppingError", "VecEnv"]

DEFAULT_MAX_EPISODE_STEPS = 1000
"""What ``max_episode_steps`` is where the environment states no limit, as in XuanCe."""

_Ask = tuple[int, Any]
"""The place of a driver, and what it packed to be asked."""

StepResult = tuple[Any, NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], StepInfos]


def _also(name: str) -> property:
    """Another name for an attribute."""
    return property(
        attrgetter(name),
        lambda vec_env, value: setattr(vec_env, name, value),
        doc=f"A name that XuanCe has for ``{name}``.",
    )


class VecEnv(ABC):
    """Many environments stepped as one.

    ``step`` steps every environment once. An environment whose episode ends is reset at once:
    the observation returned is the last one of the finished episode, and the first one of the
    next episode is in that environment's info, as ``reset_obs``. The next action belongs to
    the new episode.

    A vector environment is a context manager: leaving it closes it.

    Args:
        drivers: the groups of environments, in the environments' order, with their arrays.
        description: of the first environment.
        arrays: the arrays of all groups.
        copy: whether the arrays returned belong to the caller; otherwise they are read-only
            views that the next step overwrites.
        check_actions: whether every action is checked to be in its space.
        waiter: how ``recv`` waits for the first group that answers; None polls the drivers'
            descriptors.

    Attributes:
        num_envs (int): number of environments.
        observation_space (gymnasium.Space): of one environment.
        action_space (gymnasium.Space): of one environment.
        obs_shape: shape of one observation; for a Dict space a dict of shapes.
        max_episode_steps (int): the first environment's limit, 1000 where it states none.
        render_mode (str | None): the first environment's.
        metadata (dict): the first environment's.
        closed (bool): whether it has been closed.
        waiting (bool): whether a step is pending.
        buf_rews: the last step's rewards, as returned.
        buf_dones: the last step's ``terminated``, as returned.
        buf_truncations: the last step's ``truncated``, as returned.
        buf_infos: the last step's infos, as returned.
        autotuned (Autotuned | None): what :func:`~xuance_envs.making.make_vec` found out before it
            chose this backend by itself.

    Example:
        >>> from xuance_envs import Gym_Env, SubprocVecEnv_Gym, VecEnv
        >>> with SubprocVecEnv_Gym([lambda: Gym_Env("CartPole-v1")] * 3) as envs:
        ...     obs, infos = envs.reset(seed=0)
        ...     for _ in range(10):  # in an episode's last step, obs is its last observation
        ...         obs, rewards, terminated, truncated, infos = envs.step([1, 1, 1])
        >>> isinstance(envs, VecEnv), obs.shape, rewards.dtype
        (True, (3, 4), dtype('float32'))
        >>> terminated, "reset_obs" in infos[2]
        (array([False, False,  True]), True)
    """

    # Whether its environments are all in this process, and copied with it by a fork.
    _is_copied_by_forks = False

    # For other libraries' interfaces, which promise other things.
    _autoreset = Autoreset.SAME_STEP
    _common_description = staticmethod(common_description)

    def __init__(
        self,
        drivers: Sequence[Driver],
        description: EnvDescription,
        arrays: StepArrays,
        *,
        copy: bool = True,
        check_actions: bool = False,
        waiter: Waiter | None = None,
    ) -> None:
        self._drivers = list(drivers)
        # A group in this process works only when it is asked for its result: before waiting.
        self._finish_order = sorted(
            enumerate(drivers), key=lambda item: not hasattr(item[1], "group")
        )
        self._arrays = arrays
        self._copy = copy
        self._check_actions = check_actions
        self._tag = 0
        self.num_envs: int = drivers[-1].hi
        self.observation_space = description.observation_space
        self.action_space = description.action_space
        self.obs_shape = _shape_of(description.observation_space)
        limit = description.max_episode_steps
        self.max_episode_steps: int = DEFAULT_MAX_EPISODE_STEPS if limit is None else limit
        self.render_mode = description.render_mode
        self.metadata = description.metadata
        self.closed = False
        self.waiting = False
        self._elsewhere: Elsewhere | None = None
        self.autotuned: Any = None

        self._results = Results(self._drivers, arrays)
        self._first_ready = FirstReady(
            self._drivers, PolledWaiter(self._drivers, 0.0) if waiter is None else waiter
        )
        self._flat_actions = arrays.actions.flat
        observations = arrays.observations
        self._copy_observations = observations.copy_flat or observations.copy
        self._writable_observations = observations.copy_flat or observations.copy_writable
        self._all_asked = True
        self._packed_actions: dict[Driver, Any] | None = None
        # Drivers that were asked for something else than a step, and whose answers have not
        # been taken in: not empty after an interrupt.
        self._unfinished: list[Driver] = []

        self._buf_obs = self._writable_observations()
        # Big batches are copied for buf_obs only if somebody reads it. Until then: the batch that
        # was returned, and whether the arrays still hold the same.
        self._defers_buf_obs = copy and observations.are_big_arrays
        self._returned_obs: Any = None
        self._arrays_are_last = False
        self.buf_rews: NDArray[np.float32] = np.zeros(self.num_envs, np.float32)
        self.buf_dones: NDArray[np.bool_] = np.zeros(self.num_envs, np.bool_)
        self.buf_truncations: NDArray[np.bool_] = np.zeros(self.num_envs, np.bool_)
        self.buf_infos: Sequence[dict[Any, Any]] = [{} for _ in range(self.num_envs)]
        if not copy:
            self._rewards = np.zeros(self.num_envs, np.float32)
            self._views = tuple(
                read_only(array) for array in (self._rewards, arrays.terminated, arrays.truncated)
            )
        if not self._is_copied_by_forks:
            stays_behind(self)

    @property
    def buf_obs(self) -> Any:
        """The last observations, in an array of their own that may be written to.

        It is a new one after each step, so that one held from before stays as it was.
        """
        if self._buf_obs is None:
            observations = self._arrays.observations
            if self._arrays_are_last:
                self._buf_obs = observations.copy_writable()
            else:  # in the middle of a step
                self._buf_obs = observations.copy_of_batch(self._returned_obs)
            self._defers_buf_obs = False  # who reads it once reads it again
            self._returned_obs = None
        return self._buf_obs

    @buf_obs.setter
    def buf_obs(self, batch: Any) -> None:
        self._buf_obs = batch

    buf_truncated = _also("buf_truncations")
    buf_trunctions = _also("buf_truncations")
    buf_terminated = _also("buf_dones")
    buf_rewards = _also("buf_rews")
    buf_info = _also("buf_infos")
    max_episode_length = _also("max_episode_steps")

    @property
    def actions(self) -> Any:
        """A copy of the last action of each environment, as one batch; zeros where none was given.

        An action of a space without a fixed shape is None before the first.
        """
        return self._arrays.actions.copy()

    @property
    def exact_rewards(self) -> NDArray[np.float64]:
        """The last step's rewards as the environments gave them, ``(num_envs,)`` float64."""
        return self._arrays.rewards.copy()

    # -- reset ------------------------------------------------------------------------

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
        env_ids: Sequence[int] | None = None,
    ) -> tuple[Any, StepInfos]:
        """Starts a new episode in every environment, or in some of them.

        A step that is pending is waited for, and its result thrown away.

        Args:
            seed: an int gives environment i the seed ``seed + i``; a sequence gives each
                environment its own; None lets each go on with its random stream.
            options: passed to each environment's ``reset`` if given.
            env_ids: the environments to reset; None for all.

        Returns:
            ``(obs, infos)`` of the environments reset, in the order of ``env_ids``: arrays of
            shape ``(len(env_ids), *obs_shape)`` in the space's own dtype, and a sequence of
            dicts.

        Raises:
            EnvError: an environment raised; the vector environment is then closed.
            WorkerDiedError: a worker ended; the vector environment is then closed.
            ClosedVecEnvError: it is closed.
            ValueError: a wrong number of seeds, or an environment that does not exist.
        """
        self._check_open()
        ids = checked_env_ids(env_ids, self.num_envs)
        seeds = seeds_of(seed, ids)
        asks = self._packed_resets(ids, seeds, [options] * len(ids))
        if self.waiting:
            self.step_wait()
        before = None if env_ids is None else self.buf_obs
        self._arrays_are_last = False
        try:
            self._drop_what_is_in_flight()
            outcomes = self._ask(asks)
        except Exception:
            self._fail()
            raise
        envs = None if env_ids is None else np.array(ids, dtype=np.intp)
        infos = self._results.infos(outcomes, envs)
        self._unfinished = []
        observations = self._arrays.observations
        if envs is not None:
            self._buf_obs = observations.copy_updating(before, envs)
            return observations.copy(envs), infos
        obs = observations.copy() if self._copy else observations.view()
        if self._defers_buf_obs:
            self._defer_buf_obs(obs)
        else:
            self._buf_obs = self._writable_observations()
        return obs, infos

    def _defer_buf_obs(self, obs: Any) -> None:
        self._buf_obs, self._returned_obs, self._arrays_are_last = None, obs, True

    def _packed_resets(
        self, ids: Sequence[int], seeds: Sequence[int | None], options: Sequence[Any]
    ) -> list[_Ask]:
        asks = []
        for k, driver in enumerate(self._drivers):
            mine = [
                (env - driver.lo, *how)
                for env, *how in zip(ids, seeds, options, strict=True)
                if driver.lo <= env < driver.hi
            ]
            if mine:
                asks.append((k, driver.pack("reset", mine)))
        return asks

    # -- step -------------------------------------------------------------------------

    def step(self, actions: Any) -> StepResult:
        """Steps every environment once: :meth:`step_async`, then :meth:`step_wait`.

        Args:
            actions: one action per environment: an array whose rows they are, a list of
                them, a dict of batches for a Dict space or a tuple of batches for a Tuple
                space. With one environment also that environment's bare action.

        Returns:
            ``(obs, rewards, terminated, truncated, infos)``:

            - ``obs``: ``(num_envs, *obs_shape)`` in the space's own dtype; a dict or tuple of
              such arrays for Dict and Tuple spaces; a tuple of objects for spaces without a
              fixed shape. Where an episode ended, its last observation.
            - ``rewards``: ``(num_envs,)`` float32.
            - ``terminated``, ``truncated``: ``(num_envs,)`` bool.
            - ``infos``: a sequence of num_envs dicts. Where an episode ended, also
              ``"reset_obs"``, the first observation of the next, and ``"reset_info"``.

        Raises:
            ValueError: the actions do not fit; nothing has happened then.
            EnvError: an environment raised; the vector environment is then closed.
            WorkerDiedError: a worker ended; the vector environment is then closed.
            AlreadySteppingError: a step is pending.
            ClosedVecEnvError: it is closed.
        """
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Starts a step. See :meth:`step` for the actions and the errors."""
        if self.waiting or self.closed or self._unfinished or self._first_ready.active:
            self._check_idle("step_async")
        self._put_actions(actions)
        if self._flat_actions is None and self._arrays.actions.layout.has_objects:
            self._packed_actions = {driver: self._packed(driver) for driver in self._drivers}
        self._start_every_step()

    def _start_every_step(self) -> None:
        self._tag += 1
        self._arrays_are_last = self._all_asked = False
        self.waiting = True
        for driver in self._drivers:
            self._start_step(driver)
        self._all_asked = True

    def step_wait(self) -> StepResult:
        """Waits for the step that was started. See :meth:`step` for what it returns.

        A :class:`KeyboardInterrupt` leaves the step pending.

        Raises:
            NotSteppingError: no step is pending.
        """
        if not self.waiting:
            self._check_open()
            raise NotSteppingError("step_wait was called without a step_async before it")
        return self._step_result(self._finish_step())

    def _finish_step(self) -> list[tuple[int, Outcome]]:
        """Waits for every group's step; by group, what it left besides the arrays, if anything."""
        outcomes = []
        try:
            if not self._all_asked:  # an interrupt came before they were
                for driver in self._drivers:
                    if driver.tag != self._tag:
                        self._start_step(driver)
            for k, driver in self._finish_order:
                outcome = driver.result()
                if outcome is not DONE:
                    outcomes.append((k, outcome))
        except Exception:
            self._fail()
            raise
        return outcomes

    def _put_actions(self, actions: Any, envs: NDArray[np.intp] | None = None) -> None:
        flat = self._flat_actions
        if (
            flat is not None
            and type(actions) is np.ndarray
            and actions.dtype == flat.dtype
            and actions.shape == (flat.shape if envs is None else (len(envs), *flat.shape[1:]))
            and not self._check_actions
        ):
            flat[... if envs is None else envs] = actions
        else:
            self._put_any_actions(actions, envs)

    def _put_any_actions(self, actions: Any, envs: NDArray[np.intp] | None) -> None:
        storage = self._arrays.actions
        ids = range(self.num_envs) if envs is None else envs.tolist()
        try:
            storage.put(actions, EVERY if envs is None else envs, len(ids))
        except BadValueError as error:
            raise ValueError(f"actions for {len(ids)} environments: {error}") from None
        if self._check_actions:
            values = storage.reader()()
            for i in ids:
                if not self.action_space.contains(values[i]):
                    raise ValueError(
                        f"the action for environment {i}: expected one in {self.action_space}, "
                        f"got {values[i]!r}"
                    )

    def _packed(self, driver: Driver) -> Any:
        lists = self._arrays.actions.objects
        try:
            return driver.pack_actions([values[driver.lo : driver.hi] for values in lists])
        except Exception as error:
            raise ValueError(
                f"the actions for environments {driver.lo} to {driver.hi - 1} cannot be sent to "
                f"their process, because they cannot be pickled: {error}"
            ) from error

    def _start_step(self, driver: Driver) -> None:
        packed = self._packed_actions
        driver.ask_step(self._tag, None if packed is None else packed[driver])

    def _step_result(self, outcomes: Sequence[tuple[int, Outcome]]) -> StepResult:
        arrays = self._arrays
        infos = self._results.infos(outcomes)
        if self._copy:
            obs = self._copy_observations()
            rewards = as_float32(arrays.rewards)
            terminated, truncated = arrays.terminated.copy(), arrays.truncated.copy()
        else:
            obs = arrays.observations.view()
            self._rewards[:] = as_float32(arrays.rewards)
            rewards, terminated, truncated = self._views
        if self._defers_buf_obs:
            self._defer_buf_obs(obs)
        else:
            self._buf_obs = self._writable_observations()
        self.buf_rews = rewards
        self.buf_dones = terminated
        self.buf_truncations = truncated
        self.buf_infos = infos
        self.waiting = False
        return obs, rewards, terminated, truncated, infos

    # -- first ready ------------------------------------------------------------------

    def async_reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        """Starts a new episode in every environment, for :meth:`recv` to receive.

        What has been sent and not received is waited for, and its result thrown away.

        Args:
            seed: as for :meth:`reset`.
            options: as for :meth:`reset`.

        Raises:
            AlreadySteppingError: a ``step_async`` is pending.
            ClosedVecEnvError: it is closed.
            ValueError: a wrong number of seeds.
        """
        self._check_not_stepping("async_reset")
        ids = range(self.num_envs)
        asks = self._packed_resets(ids, seeds_of(seed, ids), [options] * len(ids))
        try:
            self._drop_what_is_in_flight()
        except Exception:
            self.close()
            raise
        self._tag += 1
        self._arrays_are_last = False
        tag = self._tag
        self._first_ready.send(
            np.arange(self.num_envs),
            {k: (tag, partial(self._drivers[k].ask, tag, packed)) for k, packed in asks},
        )

    def send(self, actions: Any, env_ids: Sequence[int] | NDArray[np.integer[Any]]) -> None:
        """Gives some environments their actions; :meth:`recv` brings what comes of them.

        The environments of a worker are stepped together, once all of them have been sent.

        Args:
            actions: one per environment of ``env_ids``, in that order and in any form
                :meth:`step` takes.
            env_ids: the environments.

        Raises:
            ValueError: the actions do not fit, or an environment does not exist; nothing has
                been sent then.
            AlreadySteppingError: one of them has been sent and not received since, or a
                ``step_async`` is pending.
            ClosedVecEnvError: it is closed.
        """
        self._check_not_stepping("send")
        envs = env_indices(env_ids, self.num_envs)
        flying = self._first_ready.in_flight[envs]
        if flying.any():
            raise AlreadySteppingError(
                f"send: {name_envs(envs[flying].tolist())} have been sent before and not received "
                "since: receive them with recv first"
            )
        self._put_actions(actions, envs)
        groups = self._first_ready.completed_by(envs)
        packed = None
        if self._arrays.actions.layout.has_objects:
            packed = {k: self._packed(self._drivers[k]) for k in groups}
        self._tag += 1
        self._arrays_are_last = False
        tag = self._tag
        asks = {}
        for k in groups:
            ask = self._drivers[k].ask_step
            asks[k] = tag, partial(ask, tag, None if packed is None else packed[k])
        self._first_ready.send(envs, asks)

    def recv(self, min_envs: int | None = None, timeout: float | None = None) -> StepBatch:
        """Receives the environments that have answered.

        Args:
            min_envs: how many to wait for; None for any.
            timeout: seconds to wait; then those that have answered are returned, if there are
                any. None waits for as long as it takes.

        Returns:
            ``(obs, rewards, terminated, truncated, infos, env_ids)`` of at least ``min_envs``
            environments. Arrays are the caller's, also with ``copy=False``; ``buf_obs`` and its
            like stay as they are.

        Raises:
            WorkerTimeoutError: none has answered in time; ``recv`` may be called again. Or a
                worker took longer than ``step_timeout``; it is then closed.
            NotSteppingError: nothing has been sent that could answer.
            ValueError: fewer than ``min_envs`` environments can answer.
            EnvError: an environment raised; the vector environment is then closed.
            WorkerDiedError: a worker ended; the vector environment is then closed.
            AlreadySteppingError: a ``step_async`` is pending.
            ClosedVecEnvError: it is closed.
        """
        self._check_not_stepping("recv")
        first_ready = self._first_ready
        wanted = first_ready.wanted(min_envs)
        try:
            ready = first_ready.wait(wanted, timeout)
        except Exception:
            self.close()
            raise
        if not ready:
            assert timeout is not None
            raise WorkerTimeoutError(first_ready.started(), None, timeout, "recv")
        arrays = self._arrays
        envs = first_ready.envs_of(ready)
        infos = self._results.infos(ready.items(), envs)
        batch = StepBatch(
            arrays.observations.copy(envs),
            as_float32(arrays.rewards[envs]),
            arrays.terminated[envs],
            arrays.truncated[envs],
            infos,
            envs,
        )
        first_ready.receive(envs)
        return batch

    def _drop_what_is_in_flight(self) -> None:
        if self._first_ready.active:
            self._results.forget(self._first_ready.finish().items())

    def _check_not_stepping(self, what: str) -> None:
        if self.waiting:
            raise AlreadySteppingError(
                f"{what} was called while a step_async is pending: finish it with step_wait "
                "first; send and recv are another way of stepping"
            )
        self._check_open()

    def statistics(self) -> tuple[WorkerStatistics, ...]:
        """How long the steps of each worker's environments take; can be asked for at any time.

        Raises:
            ClosedVecEnvError: it is closed.
        """
        if self.closed:
            self._check_open()
        return tuple(map(WorkerStatistics.of, self._drivers))

    # -- single environments ----------------------------------------------------------

    def call(
        self, name: str, *args: Any, env_ids: Sequence[int] | None = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """Calls a method of every environment, or of some; reaches through wrappers.

        Args:
            name: the method.
            *args: its arguments.
            env_ids: the environments; None for all.
            **kwargs: its keyword arguments.

        Returns:
            What each returned, in the order of ``env_ids``.

        Raises:
            AttributeError: an environment has no such method.
            EnvError: the method raised. The vector environment stays usable.
            AlreadySteppingError: a step is pending.
            ClosedVecEnvError: it is closed.
        """
        self._check_idle("call")
        return self._each("call", env_ids, lambda _: (name, args, kwargs))

    def get_attr(self, name: str, env_ids: Sequence[int] | None = None) -> tuple[Any, ...]:
        """Reads an attribute of every environment, or of some; reaches through wrappers.

        Args:
            name: the attribute.
            env_ids: the environments; None for all.

        Returns:
            Each one's value, in the order of ``env_ids``.

        Raises:
            AttributeError: an environment has no such attribute.
            AlreadySteppingError: a step is pending.
            ClosedVecEnvError: it is closed.
        """
        self._check_idle("get_attr")
        return self._each("get_attr", env_ids, lambda _: (name,))

    def set_attr(self, name: str, values: Any, env_ids: Sequence[int] | None = None) -> None:
        """Sets an attribute of every environment, or of some.

        It is set on the outermost wrapper that has it, or else on the innermost environment.

        Args:
            name: the attribute.
            values: a list or tuple gives each environment its own; anything else goes to all.
            env_ids: the environments; None for all.

        Raises:
            ValueError: a list or tuple of the wrong length.
            AlreadySteppingError: a step is pending.
            ClosedVecEnvError: it is closed.
        """
        self._check_idle("set_attr")
        ids = checked_env_ids(env_ids, self.num_envs)
        if not isinstance(values, list | tuple):
            values = [values] * len(ids)
        if len(values) != len(ids):
            raise ValueError(
                f"set_attr({name!r}): expected {len(ids)} values, one per environment, "
                f"got {len(values)}"
            )
        value_of = dict(zip(ids, values, strict=True))
        self._each("set_attr", ids, lambda envs: (name, [value_of[env] for env in envs]))

    def render(self, mode: str | None = None, env_ids: Sequence[int] | None = None) -> list[Any]:
        """Renders every environment, or some.

        Args:
            mode: passed to those environments whose ``render`` takes a mode.
            env_ids: the environments; None for all.

        Returns:
            What each one's ``render`` returned, in the order of ``env_ids``.

        Raises:
            EnvError: an environment raised. The vector environment stays usable.
            AlreadySteppingError: a step is pending.
            ClosedVecEnvError: it is closed.
        """
        self._check_idle("render")
        return list(self._each("render", env_ids, lambda _: (mode,)))

    def _each(
        self,
        command: str,
        env_ids: Sequence[int] | None,
        arguments: Callable[[Sequence[int]], Any],
    ) -> tuple[Any, ...]:
        """Asks the groups of some environments, and puts their answers in the order asked for."""
        ids = checked_env_ids(env_ids, self.num_envs)
        asks = []
        asked: list[int] = []
        for k, driver in enumerate(self._drivers):
            mine = [env for env in ids if driver.lo <= env < driver.hi]
            if mine:
                places = [env - driver.lo for env in mine]
                asks.append((k, driver.pack(command, places, *arguments(mine))))
                asked += mine
        try:
            answers = self._ask(asks)
        except (WorkerDiedError, WorkerTimeoutError) as error:
            if not error.restarted:
                self.close()
            raise
        result_of = dict(
            zip(asked, (value for _, values in answers for value in values), strict=True)
        )
        self._unfinished = []
        return tuple(result_of[env] for env in ids)

    def _ask(self, asks: Sequence[_Ask]) -> list[tuple[int, Any]]:
        """Gives some groups a command each, and waits for all of them.

        Raises:
            Exception: the first one that failed; the others have finished by then.
        """
        self._start(asks)
        return self._finish({k for k, _ in asks})

    def _start(self, asks: Sequence[_Ask]) -> None:
        """Gives some groups a command each."""
        self._tag += 1
        self._unfinished = [self._drivers[k] for k, *_ in asks]
        for k, packed in asks:
            self._drivers[k].ask(self._tag, packed)

    def _finish(self, asked: Collection[int]) -> list[tuple[int, Any]]:
        """Waits for the groups that were given a command. See :meth:`_ask`."""
        results: dict[int, Any] = {}
        failures: dict[int, Exception] = {}
        for k, driver in self._finish_order:
            if k in asked:
                try:
                    results[k] = driver.result()
                except Exception as error:
                    failures[k] = error
        if failures:
            self._unfinished = []
            fatal = [k for k in failures if not getattr(failures[k], "restarted", True)]
            raise failures[min(fatal or failures)]
        return [(k, results[k]) for k in sorted(results)]

    # -- the end ----------------------------------------------------------------------

    def close(self) -> None:
        """Closes every environment; again, it does nothing."""
        if not self.closed:
            self.closed = True
            self.waiting = False
            self.close_extras()

    def _fail(self) -> None:
        """Deals with an error in a step or a reset."""
        self.close()

    def _leave_to(self, owner: int) -> None:
        """Leaves it to the process that this one was just forked from: it is closed here."""
        if self.closed:
            return
        elsewhere = self._elsewhere = Elsewhere(type(self).__name__, owner)
        self._drivers[:] = [elsewhere] * len(self._drivers)
        self._finish_order = list(enumerate(self._drivers))
        self._unfinished = []
        self._first_ready.active = self.waiting = False
        self.closed = True

    @abstractmethod
    def close_extras(self) -> None:
        """Ends whatever the backend holds; called once, by :meth:`close`."""

    def __enter__(self) -> VecEnv:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"{type(self).__name__}(num_envs={self.num_envs}{state})"

    # -- checks -----------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._elsewhere is not None:
            self._elsewhere.refuse()
        if self.closed:
            raise ClosedVecEnvError(f"{type(self).__name__} is closed; make another one")
        while self._unfinished:
            driver = self._unfinished[-1]
            outcome = driver.discard()
            if isinstance(outcome, Outcome):
                self._results.forget([(self._drivers.index(driver), outcome)])
            self._unfinished.pop()

    def _check_idle(self, what: str) -> None:
        if self.waiting:
            raise AlreadySteppingError(
                f"{what} was called while a step is pending: finish it with step_wait first"
            )
        if self._first_ready.active and not self.closed:
            (envs,) = self._first_ready.in_flight.nonzero()
            raise AlreadySteppingError(
                f"{what} was called while {name_envs(envs.tolist())} have been sent and not "
                "received: receive them with recv first"
            )
        self._check_open()


def _shape_of(space: Space[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: inner.shape for key, inner in space.spaces.items()}
    return space.shape
