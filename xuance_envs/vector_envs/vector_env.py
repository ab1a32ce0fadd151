"""The interface of all vectorized environments: ``VecEnv``."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from xuance_envs.engine.data.space_layout import shape_of_observations, shape_of_rewards
from xuance_envs.engine.data.step_infos import StepInfos
from xuance_envs.errors import AlreadySteppingError, NotSteppingError
from xuance_envs.state.env_states import EnvStates
from xuance_envs.vector_envs.aliases import VecEnvAliases
from xuance_envs.vector_envs.arguments import EnvIds, Seeds
from xuance_envs.vector_envs.statistics import WorkerStatistics
from xuance_envs.vector_envs.step_batch import StepBatch, StepResult

__all__ = ["AlreadySteppingError", "NotSteppingError", "StepBatch", "StepResult", "VecEnv"]


class VecEnv(VecEnvAliases, ABC):
    """Vectorized environment: several environments that are stepped together.

    :meth:`step` steps every environment once. An environment whose episode ends is reset in the
    same step. The step returns that episode's last observation. ``infos[i]["reset_obs"]`` is the
    first observation of the next episode, and the next action belongs to that episode. All backends
    return bitwise identical results if the environments use only their own random generators.

    Used as a context manager, a vectorized environment is closed on exit. After :meth:`close`,
    operations on the environments raise a :class:`~xuance_envs.errors.ClosedVecEnvError`. While a
    step is pending, they raise an :class:`~xuance_envs.errors.AlreadySteppingError`, except
    :meth:`reset`, :meth:`statistics` and :meth:`close`. :meth:`step_wait` finishes a step that
    :meth:`step_async` started. :meth:`recv` finishes the steps of :meth:`send`; until then,
    :meth:`send` to other environments and :meth:`async_reset` are allowed.

    Arguments named ``env_ids`` are sequences of distinct indices from 0 to ``num_envs - 1``, or
    None for all environments. Other values raise a :class:`ValueError`, and nothing is done. An
    exception of an environment in :meth:`call`, :meth:`get_attr`, :meth:`set_attr` or
    :meth:`render` raises an :class:`~xuance_envs.errors.EnvError`. Values that cannot be pickled
    for a worker raise a :class:`TypeError`. In both cases, the vec env stays usable. The vec env is
    closed if an environment raises while its state is saved or loaded. If a worker fails in an
    operation other than stepping, resetting or loading states, the operation raises an error. If
    the worker is restarted, the error's ``restarted`` is True, and the vec env stays usable.

    Subclasses define :meth:`reset`, :meth:`step_async`, :meth:`step_wait` and :meth:`close_extras`,
    and set ``buf_obs`` and the other buffers. The constructor sets the remaining attributes. Most
    other methods raise a :class:`NotImplementedError` unless overridden.

    Attributes:
        num_envs (int): number of environments.
        observation_space (gymnasium.Space): observation space of a single environment.
        action_space (gymnasium.Space): action space of a single environment.
        obs_shape: ``observation_space.shape``; for a Dict space, a dict of the shapes by key.
        max_episode_steps (int): step limit of the first environment; 1000 if it has none.
        render_mode (str | None): render mode of the first environment.
        metadata (dict): metadata of the first environment.
        reward_space (gymnasium.spaces.Box | None): space ``(k,)`` of vector rewards, if any.
        buf_obs: the latest observations, in writable arrays; each step or reset sets new ones.
        buf_rews: ``rewards`` of the last step.
        buf_dones: ``terminated`` of the last step.
        buf_truncations: ``truncated`` of the last step.
        buf_infos: ``infos`` of the last step.
        checks_actions (bool): True if every action is checked against the action space.
        autotuned (Autotuned | None): measurements by which ``make_vec`` chose this backend.

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
        reward_space: spaces.Box | None = None,
    ) -> None:
        self.num_envs = num_envs
        self.observation_space = observation_space
        self.action_space = action_space
        self.obs_shape = shape_of_observations(observation_space)
        # XuanCe's value for environments without a limit.
        self.max_episode_steps = 1000 if max_episode_steps is None else max_episode_steps
        self.render_mode = render_mode
        self.metadata = dict(metadata or {})
        self._closed = self.checks_actions = False
        self.autotuned: Any = None
        self.reward_space = reward_space
        rewards_shape = num_envs, *shape_of_rewards(reward_space)
        self.buf_rews: NDArray[np.float32] = np.zeros(rewards_shape, np.float32)
        self.buf_dones: NDArray[np.bool_] = np.zeros(num_envs, np.bool_)
        self.buf_truncations: NDArray[np.bool_] = np.zeros(num_envs, np.bool_)
        self.buf_infos: Sequence[dict[Any, Any]] = [{} for _ in range(num_envs)]

    autoreset_mode = "reset_obs"  #: The info key of the next episode's first observation.
    buf_obs: Any

    @property
    def closed(self) -> bool:
        """True once the vectorized environment is closed."""
        return self._closed

    @property
    def waiting(self) -> bool:
        """True while a step that :meth:`step_async` started is pending."""
        return False

    @property
    def exact_rewards(self) -> NDArray[np.float64]:
        """Unrounded rewards of the last step, ``(num_envs,)`` or ``(num_envs, k)`` float64."""
        return self.buf_rews.astype(np.float64)

    @abstractmethod
    def reset(
        self, *, seed: Seeds = None, options: dict[str, Any] | None = None, env_ids: EnvIds = None
    ) -> tuple[Any, StepInfos]:
        """Start a new episode in all or some environments.

        A pending step is completed first, and its result is discarded.

        Args:
            seed: an int gives environment i the seed ``seed + i``; a sequence gives one seed per
                environment; None continues the random streams.
            options: passed to each environment's ``reset``, if given.
            env_ids: indices of the environments to reset; None for all.

        Returns:
            ``(obs, infos)`` of the k reset environments, in the order of ``env_ids``: an array
            ``(k, *obs_shape)`` in the form that ``step`` returns, and a sequence of k dicts.

        Raises:
            EnvError, WorkerDiedError, WorkerTimeoutError: an environment raised or a worker failed,
                and ``on_worker_failure`` did not restart the worker; the vec env is then closed.
            ValueError: a seed, the number of seeds or an index is invalid; nothing has been reset.
        """

    def step(self, actions: Any) -> StepResult:
        """Step every environment once: ``step_async`` followed by ``step_wait``.

        Args:
            actions: one action per environment: an array with ``num_envs`` rows, a list of actions,
                a dict of batches for a Dict space, or a tuple of batches for a Tuple space. If
                ``num_envs`` is 1, a single action without the leading axis is accepted, too.

        Returns:
            ``(obs, rewards, terminated, truncated, infos)``:

            - ``obs``: ``(num_envs, *obs_shape)`` in the space's dtype; a dict or tuple of such
              arrays for Dict and Tuple spaces; a tuple of objects for spaces without a fixed shape.
              Where an episode ended, the row is its last observation.
            - ``rewards``: ``(num_envs,)`` float32; ``(num_envs, k)`` for vectors of k components.
            - ``terminated``, ``truncated``: ``(num_envs,)`` bool.
            - ``infos``: sequence of ``num_envs`` dicts. Where an episode ended, the dict also has
              ``"reset_obs"`` and ``"reset_info"``, the next episode's first observation and info.
              ``infos.column(key)`` returns the key's values of all environments in an array, and a
              bool mask of the environments that have the key.

        Raises:
            ValueError: the actions are invalid. The step was not started.
            NotResetError: an environment has never been reset or loaded. The step was not started.
            EnvError, WorkerDiedError, WorkerTimeoutError: as for ``reset``.
        """
        self.step_async(actions)
        return self.step_wait()

    @abstractmethod
    def step_async(self, actions: Any) -> None:
        """Start a step without waiting for it; see ``step`` for the actions and errors."""

    @abstractmethod
    def step_wait(self) -> StepResult:
        """Wait for the pending step; see ``step`` for the results and errors.

        Without a pending step, the method raises :class:`~xuance_envs.errors.NotSteppingError`. A
        :class:`KeyboardInterrupt` leaves the step pending.
        """

    def sample_actions(self, rng: np.random.Generator | int | None = None) -> Any:
        """Sample one random action per environment, in a form that ``step`` accepts.

        Args:
            rng: generator, or a seed. None continues the random stream of ``action_space``.

        Returns:
            An array ``(num_envs, *shape)`` in the dtype of ``action_space``, or a list of
            ``num_envs`` actions if they are neither arrays nor numbers. Action masks are not
            considered.
        """
        space = self.action_space
        if rng is not None:
            space = copy.deepcopy(space)
            space.seed(int(np.random.default_rng(rng).integers(2**31)))
        actions = [space.sample() for _ in range(self.num_envs)]
        return np.stack(actions) if isinstance(actions[0], (np.ndarray, np.generic)) else actions

    def async_reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> None:
        """Start a new episode in every environment; the arguments are those of :meth:`reset`.

        :meth:`recv` then returns the first observations. Results that have not been received yet
        are discarded. A wrong number of seeds raises a :class:`ValueError`.
        """
        self._not_supported("async_reset")

    def send(self, actions: Any, env_ids: Sequence[int] | NDArray[np.integer[Any]]) -> None:
        """Send actions to some environments; :meth:`recv` returns their results.

        A worker steps its environments as soon as all of them have received an action.

        Args:
            actions: one action per environment in ``env_ids``, in that order and in any form that
                ``step`` accepts.
            env_ids: indices of the environments.

        Raises:
            ValueError: the actions or an environment index are invalid; nothing has been sent.
            AlreadySteppingError: an environment's previous result has not been received.
            NotResetError: one of the environments has never been reset or loaded.
        """
        self._not_supported("send")

    def recv(self, min_envs: int | None = None, timeout: float | None = None) -> StepBatch:
        """Receive the results of the environments that are ready.

        Args:
            min_envs: number of environments to wait for; None for at least one.
            timeout: seconds after which fewer environments are returned; None for no limit.

        Returns:
            ``(obs, rewards, terminated, truncated, infos, env_ids)`` of at least ``min_envs``
            environments, or of at least one after ``timeout``. The arrays are new, even with
            ``copy=False``. ``buf_obs`` and the other buffers do not change.

        Raises:
            WorkerTimeoutError: no environment was ready within ``timeout`` (``recv`` may be called
                again); or, as for ``reset``, a worker exceeded ``step_timeout``.
            EnvError, WorkerDiedError: as for ``reset``.
            NotSteppingError: no environment is stepping or resetting.
            ValueError: ``min_envs`` is below 1 or above the number of pending environments.
        """
        self._not_supported("recv")

    def action_masks(self) -> Any:
        """Return the action masks for the next actions.

        If an episode has just ended, its environment's mask is for the first state of the next
        episode. An environment provides its mask in its info under ``"action_mask"``, or else under
        ``"avail_actions"``, or else by its method ``action_masks()``. After the first request for
        masks, workers call the environment's method after each step and reset.

        Returns:
            A new bool array ``(num_envs, n)``. n is the number of actions for Discrete,
            ``sum(nvec)`` for MultiDiscrete (its components' masks, concatenated), and two per bit
            for MultiBinary. For Dict and Tuple spaces, a dict or tuple of such arrays.

        Raises:
            AttributeError: an environment has no mask; the message lists the places searched.
            EnvError: an environment raised, or its mask is invalid. The vec env stays usable.
        """
        self._not_supported("action_masks")

    def statistics(self) -> tuple[WorkerStatistics, ...]:
        """Return timing statistics of each worker, and of the main process's share."""
        return ()

    def call(self, name: str, *args: Any, env_ids: EnvIds = None, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of all or some environments, or of their wrappers; return a tuple.

        Args:
            name: name of the method.
            *args: positional arguments for the method.
            env_ids: indices of the environments, in the order of the results; None for all.
            **kwargs: keyword arguments for the method.

        Raises:
            AttributeError: an environment has no such method.
        """
        self._not_supported("call")

    def get_attr(self, name: str, env_ids: EnvIds = None) -> tuple[Any, ...]:
        """Return an attribute of all or some environments, or of their wrappers, as a tuple.

        Args:
            name: name of the attribute.
            env_ids: indices of the environments, in the order of the values; None for all.

        Raises:
            AttributeError: an environment has no such attribute.
        """
        self._not_supported("get_attr")

    def set_attr(self, name: str, values: Any, env_ids: EnvIds = None) -> None:
        """Set an attribute of all or some environments.

        The outermost wrapper with the attribute is changed, or else the innermost environment.

        Args:
            name: name of the attribute.
            values: a list or tuple of one value per environment, or a single value for all of them.
            env_ids: indices of the environments; None for all.

        Raises:
            ValueError: the list or tuple has the wrong length.
        """
        self._not_supported("set_attr")

    def save_state(self, env_ids: EnvIds = None, *, verify: bool = False) -> EnvStates:
        """Save the complete state of all or some environments, as an immutable value.

        Args:
            env_ids: indices of the environments, in the order of the states; None for all.
            verify: True to test first whether states restore exactly; warns if the test cannot run.

        Raises:
            StateError: a state cannot be saved, or verification found a difference.
            EnvError: an environment raised; the vec env is then closed.
        """
        self._not_supported("save_state")

    def load_state(self, state: EnvStates, env_ids: EnvIds = None) -> tuple[Any, StepInfos]:
        """Restore saved states into all or some environments.

        From then on, the same actions give observations, rewards, flags, infos and resets that are
        bitwise identical to those after saving. ``buf_obs`` and the other buffers are restored too.

        Args:
            state: one state per environment, saved with any backend from environments that were
                created in the same way.
            env_ids: environments to restore, in the order of the states; None for all.

        Returns:
            ``(obs, infos)`` in the form of :meth:`reset`: the observations for the next actions and
            their infos. If the last step before saving ended an episode, they belong to the start
            of the next episode.

        Raises:
            StateError: a state cannot be read. Nothing has changed.
            StateMismatchError: a state belongs to a different environment. Nothing has changed.
            TypeError, ValueError: ``state`` is not an ``EnvStates`` with one state per environment.
        """
        self._not_supported("load_state")

    def clone_state(
        self, src_ids: int | Sequence[int], dst_ids: int | Sequence[int], *, fork_rng: bool = False
    ) -> tuple[Any, StepInfos]:
        """Copy the states of some environments to others, after saving the states of all sources.

        Args:
            src_ids: source environments: one for all targets, or one per target.
            dst_ids: target environments, without duplicates.
            fork_rng: True to give each target new random streams, derived from its source's streams
                and the target's index; False to continue the source's random streams.

        Returns:
            ``(obs, infos)`` as :meth:`load_state` returns them, in the order of ``dst_ids``.

        Raises:
            StateError: a state cannot be saved. Nothing has changed.
            StateMismatchError: a source and its target were made differently. Nothing has changed.
            ValueError: an index is out of range, a target is repeated, or the number of sources is
                neither 1 nor the number of targets.
        """
        self._not_supported("clone_state")

    def render(self, mode: str | None = None, env_ids: EnvIds = None) -> list[Any]:
        """Render all or some environments; return a list of the results of their ``render``.

        Args:
            mode: passed to environments whose ``render`` accepts a mode, unless it is None.
            env_ids: indices of the environments, in the order of the results; None for all.
        """
        self._not_supported("render")

    def close(self) -> None:
        """Close all environments and release resources. Calling ``close`` again does nothing."""
        if not self.closed:
            self._closed = True
            self.close_extras()

    @abstractmethod
    def close_extras(self) -> None:
        """Release the subclass's resources; ``close`` calls this method once."""

    def _not_supported(self, name: str) -> NoReturn:
        raise NotImplementedError(f"{type(self).__name__} does not support {name}")
