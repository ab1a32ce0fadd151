"""The contract of every vector environment.

What is done over groups of environments is in :mod:`~xuance_envs.vector_envs.grouped`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, NoReturn

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from xuance_envs.engine.data.step_infos import StepInfos
from xuance_envs.errors import AlreadySteppingError, NotSteppingError
from xuance_envs.state.env_states import EnvStates
from xuance_envs.vector_envs.statistics import WorkerStatistics
from xuance_envs.vector_envs.step_batch import StepBatch, StepResult

__all__ = ["AlreadySteppingError", "NotSteppingError", "StepBatch", "StepResult", "VecEnv"]

DEFAULT_MAX_EPISODE_STEPS = 1000
"""What ``max_episode_steps`` is where the environment states no limit, as in XuanCe."""


def _alias(name: str) -> property:
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

    To derive from it, define ``reset``, ``step_async``, ``step_wait`` and ``close_extras``, and set
    ``buf_obs`` and its like as they say. What else there is raises a :class:`NotImplementedError`
    until it is defined, too. Vector environments over groups of environments, in this process or in
    others, derive from :class:`~xuance_envs.vector_envs.grouped.GroupedVecEnv`.

    Args:
        num_envs: number of environments.
        observation_space: of one environment.
        action_space: of one environment.
        max_episode_steps: the environments' limit; None where they state none.
        render_mode: the environments'.
        metadata: the environments'.

    Attributes:
        num_envs (int): number of environments.
        observation_space (gymnasium.Space): of one environment.
        action_space (gymnasium.Space): of one environment.
        obs_shape: shape of one observation; for a Dict space a dict of shapes.
        max_episode_steps (int): the first environment's limit, 1000 where it states none.
        render_mode (str | None): the first environment's.
        metadata (dict): the first environment's.
        buf_obs: the last observations, in a writable array of their own: a new one after each step,
            so that one held from before stays as it was.
        buf_rews: the last step's rewards, as returned.
        buf_dones: the last step's ``terminated``, as returned.
        buf_truncations: the last step's ``truncated``, as returned.
        buf_infos: the last step's infos, as returned.
        checks_actions (bool): whether every action is checked to be in its space.
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

    def __init__(
        self,
        num_envs: int,
        observation_space: Space[Any],
        action_space: Space[Any],
        *,
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.num_envs = num_envs
        self.observation_space = observation_space
        self.action_space = action_space
        self.obs_shape = _shape_of(observation_space)
        limit = max_episode_steps
        self.max_episode_steps: int = DEFAULT_MAX_EPISODE_STEPS if limit is None else limit
        self.render_mode = render_mode
        self.metadata = dict(metadata or {})
        self._closed = False
        self.checks_actions = False
        self.autotuned: Any = None
        self.buf_rews: NDArray[np.float32] = np.zeros(num_envs, np.float32)
        self.buf_dones: NDArray[np.bool_] = np.zeros(num_envs, np.bool_)
        self.buf_truncations: NDArray[np.bool_] = np.zeros(num_envs, np.bool_)
        self.buf_infos: Sequence[dict[Any, Any]] = [{} for _ in range(num_envs)]

    buf_obs: Any
    buf_truncated = _alias("buf_truncations")
    buf_trunctions = _alias("buf_truncations")
    buf_terminated = _alias("buf_dones")
    buf_rewards = _alias("buf_rews")
    buf_info = _alias("buf_infos")
    max_episode_length = _alias("max_episode_steps")

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
        return self._closed

    @property
    def waiting(self) -> bool:
        """Whether a step is pending."""
        return False

    @property
    def exact_rewards(self) -> NDArray[np.float64]:
        """The last step's rewards as the environments gave them, ``(num_envs,)`` float64."""
        return self.buf_rews.astype(np.float64)

    @abstractmethod
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

    @abstractmethod
    def step_async(self, actions: Any) -> None:
        """Starts a step. See :meth:`step` for the actions and the errors."""

    @abstractmethod
    def step_wait(self) -> StepResult:
        """Waits for the step that was started. See :meth:`step` for what it returns.

        A :class:`KeyboardInterrupt` leaves the step pending.

        Raises:
            NotSteppingError: no step is pending.
        """

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
        self._not_supported("async_reset")

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
        self._not_supported("send")

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
        self._not_supported("recv")

    def action_masks(self) -> Any:
        """Which actions are allowed in the states that the next ones are chosen in.

        Where an episode ended, that is the first state of the next. An environment gives its mask
        in the info under ``"action_mask"`` or, where there is none, ``"avail_actions"``, or else by
        its method ``action_masks()``. The method is called where the environment lives, after each
        step and reset from the first call of this one on.

        Returns:
            A new array of bools each time, ``(num_envs, n)``: for Discrete one for each action, for
            MultiDiscrete ``sum(nvec)``, part by part, for MultiBinary two for each bit. For a Dict
            or Tuple of such spaces a dict or tuple of such arrays.

        Raises:
            AttributeError: an environment has no mask; says what was looked for.
            EnvError: an environment raised, or its mask has another length. The vector environment
                stays usable.
            AlreadySteppingError: a step is pending.
            ClosedVecEnvError: it is closed.

        Example:
            >>> import gymnasium
            >>> from xuance_envs import DummyVecEnv_Gym
            >>> with DummyVecEnv_Gym([lambda: gymnasium.make("Taxi-v4")] * 2) as envs:
            ...     _ = envs.reset(seed=0)
            ...     masks = envs.action_masks()
            >>> masks.shape, masks.dtype
            ((2, 6), dtype('bool'))
        """
        self._not_supported("action_masks")

    def statistics(self) -> tuple[WorkerStatistics, ...]:
        """How long the steps of each worker's environments take; can be asked for at any time.

        Raises:
            ClosedVecEnvError: it is closed.
        """
        return ()

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
        self._not_supported("call")

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
        self._not_supported("get_attr")

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
        self._not_supported("set_attr")

    def save_state(self, env_ids: Sequence[int] | None = None) -> EnvStates:
        """The state of every environment, or of some: all that what comes next depends on.

        Args:
            env_ids: the environments; None for all.

        Returns:
            A value that never changes, with one state for each, in the order of ``env_ids``.

        Raises:
            StateError: one cannot be saved; says which, what in it, and what to do.
            AlreadySteppingError: a step is pending.
            ClosedVecEnvError: it is closed.
        """
        self._not_supported("save_state")

    def load_state(
        self, state: EnvStates, env_ids: Sequence[int] | None = None
    ) -> tuple[Any, StepInfos]:
        """Makes every environment, or some, be in a state that was saved.

        From then on the same actions give the same observations, rewards, flags, infos and resets,
        bit for bit, as they did or would have there. ``buf_obs`` and its like are as they were.

        Args:
            state: of as many environments; of this vector environment or another one, of whatever
                backend, whose environments are made alike.
            env_ids: the environments to put them into, in that order; None for all.

        Returns:
            ``(obs, infos)`` as :meth:`reset` does: what their next actions are chosen from, which
            after the end of an episode is the first observation of the next, and the infos that
            belong to it.

        Raises:
            StateError: a state cannot be read. Nothing has changed then.
            StateMismatchError: one is of an environment that is not like the one it is for: says
                in what they differ. Nothing has changed then.
            ValueError: it has another number of states.
            AlreadySteppingError: a step is pending.
            ClosedVecEnvError: it is closed.
        """
        self._not_supported("load_state")

    def clone_state(
        self,
        src_ids: int | Sequence[int],
        dst_ids: int | Sequence[int],
        *,
        fork_rng: bool = False,
    ) -> tuple[Any, StepInfos]:
        """Makes some environments be in the state that others are in.

        All states are read before any is written, so environments can change places.

        Args:
            src_ids: whose state: one environment for all, or one for each of ``dst_ids``.
            dst_ids: the environments that become like them, none of them twice.
            fork_rng: whether each goes on with random streams of its own, derived from its source's
                and from its index; otherwise all draw what their source draws.

        Returns:
            As :meth:`load_state`, in the order of ``dst_ids``.

        Raises:
            StateError: a state cannot be saved. Nothing has changed then.
            StateMismatchError: two environments are not alike. Nothing has changed then.
            AlreadySteppingError: a step is pending.
            ClosedVecEnvError: it is closed.
        """
        self._not_supported("clone_state")

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
        self._not_supported("render")

    def close(self) -> None:
        """Closes every environment; again, it does nothing."""
        if not self.closed:
            self._closed = True
            self.close_extras()

    @abstractmethod
    def close_extras(self) -> None:
        """Ends whatever it holds; called once, by :meth:`close`."""

    def _not_supported(self, what: str) -> NoReturn:
        raise NotImplementedError(f"{type(self).__name__} has no {what}")

    def __enter__(self) -> VecEnv:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"{type(self).__name__}(num_envs={self.num_envs}{state})"


def _shape_of(space: Space[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: inner.shape for key, inner in space.spaces.items()}
    return space.shape
