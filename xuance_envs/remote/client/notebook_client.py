"""Notebook client: environments on a server, with action repeat."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from xuance_envs import errors
from xuance_envs.engine.data.space_layout import BadValueError, SpaceLayout, shape_of_rewards
from xuance_envs.engine.data.space_rows import ALL_ENVS, SpaceRows
from xuance_envs.engine.data.step_arrays import as_float32
from xuance_envs.engine.system.exclusive import exclusive
from xuance_envs.remote.client.api_client import ApiClient
from xuance_envs.remote.client.remote_session import (
    CreatedEnvs,
    RemoteSession,
    checked_seeds,
    parse_results,
)
from xuance_envs.remote.client.transport import Verify
from xuance_envs.remote.wire.nodes import array_from_wire
from xuance_envs.remote.wire.values import batch_from_wire, batch_to_wire, infos_from_wire
from xuance_envs.state.env_states import EnvStates
from xuance_envs.vector_envs.aliases import ClosedOnExit, Uncopyable
from xuance_envs.vector_envs.arguments import (
    Seeds,
    checked_count,
    checked_env_ids,
    checked_states,
    seed_per_env,
)
from xuance_envs.vector_envs.last_results import checked_clones

__all__ = ["StudentGymEnvVectorized", "create_student_gym_env_vectorized"]

logger = logging.getLogger("xuance_envs.client")

Infos = list[dict[str, Any]]
Start = tuple[Any, Infos]
Step = tuple[list[Any], NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], Infos]

STEP = "vectorized_step"
_ENDED = "ended"  # key in saved states: True if the episode has ended


class StudentGymEnvVectorized(Uncopyable, ClosedOnExit):
    """Environments on a server, with action repeat and without autoreset.

    :func:`~xuance_envs.create_student_gym_env_vectorized` creates this object. Use it as a context
    manager, or call :meth:`close`. One request steps each environment up to ``step_size`` times.
    For Dict and Tuple spaces, observations and actions are dicts or tuples of the arrays that the
    methods describe.

    If Ctrl-C or a timeout interrupts a step, repeat the ``step`` call with the same actions, or
    call :meth:`step_wait`, to get its result. Until then, requests other than resets raise
    :class:`~xuance_envs.errors.AlreadySteppingError`.

    Methods that send a request raise :class:`~xuance_envs.errors.RemoteError` if the server refuses
    it or is unreachable, :class:`~xuance_envs.errors.EnvError` if an environment raised, and
    :class:`~xuance_envs.errors.ClosedVecEnvError` after :meth:`close`. In a forked process they
    raise :class:`~xuance_envs.errors.WrongProcessError`.

    Args:
        session: session on the server; :meth:`close` closes it.
        env_id: id of the environment; None if the server offers only one.

    Attributes:
        num_envs (int): number of environments.
        step_size (int): maximum number of times each environment repeats its action per step.
        episode_ids (list[str]): the server's ids of the environments.
        observation_space (gymnasium.Space): space of one environment's observations.
        action_space (gymnasium.Space): space of one environment's actions.
        reward_space (gymnasium.spaces.Box | None): space ``(k,)`` of one environment's vector
            rewards; None if rewards are numbers.
        max_episode_steps (int): step limit of an episode; 1000 if the environment has none.
        closed (bool): whether the environments are closed.

    Example:
        >>> with Server(Settings(Catalogue.of_ids(["CartPole-v1"])), port=0) as server:
        ...     with create_student_gym_env_vectorized(2, 5, None, base_url=server.url) as env:
        ...         _ = env.reset(seed=0)
        ...         observations, rewards, terminateds, truncateds, infos = env.step([0, 1])
        ...         print([each.shape for each in observations], rewards, env.get_active_count())
        [(5, 4), (5, 4)] [5. 5.] 2
    """

    def __init__(
        self, session: RemoteSession, num_envs: int, step_size: int, env_id: str | None
    ) -> None:
        self._session = self._groups = session  # `exclusive` uses _groups
        self.closed = False
        self.num_envs = num_envs
        self.step_size = step_size
        request = {"env_id": env_id, "num_envs": num_envs, "auto_reset": False}
        created = session.request("create", request, CreatedEnvs.of)
        self.episode_ids, self._ids_of = created.episode_ids, created.ids_of
        self.observation_space, self.action_space, self.reward_space = created.description.spaces
        self.max_episode_steps = created.description.max_episode_steps
        self._ended = np.zeros(num_envs, np.bool_)
        self._actions = SpaceRows.allocate(SpaceLayout(self.action_space), num_envs)
        text = "environment %d of %d is episode %s at %s"
        for index, episode in enumerate(self.episode_ids):
            logger.info(text, index, num_envs, episode, session.server)

    def reset(self, *, seed: Seeds = None) -> Start:
        """Start a new episode in every environment.

        Args:
            seed: an int seeds environment i with ``seed + i``; a sequence has one seed per
                environment; None continues the current random streams.

        Returns:
            ``(observations, infos)``: an array of shape ``(num_envs, *obs_shape)`` in the space's
            dtype, and a list of dicts.

        Raises:
            ValueError: a seed or the number of seeds is invalid.
        """
        return self.reset_specific_envs(range(self.num_envs), seed=seed)

    @exclusive
    def reset_specific_envs(self, ids: Sequence[int], *, seed: Seeds = None) -> Start:
        """Start a new episode in some environments; the others continue.

        Args:
            ids: indices of the environments, for example from :meth:`get_terminated_env_indices`.
            seed: an int seeds environment i with ``seed + i``, as in :meth:`reset`; a sequence has
                one seed per index in ``ids``.

        Returns:
            ``(observations, infos)`` of these environments, in the order of ``ids``.

        Raises:
            ValueError: an index is out of range or repeated.
        """
        envs = checked_env_ids(ids, self.num_envs, "ids")
        self._check(idle=False)
        seeds = seed_per_env(seed, envs)
        fields = {"seed": None if seed is None else checked_seeds(seeds)}
        if envs and self.waiting:
            with suppress(errors.EnvError):  # the reset below recovers from it
                self._session.finish_pending()
        result = self._start("vectorized_reset", envs, lambda: False, fields)
        if envs:
            # Existing notebooks expect this exact message.
            logger.info("All %d environments reset successfully", len(envs))
        return result

    def _start(
        self, path: str, envs: Sequence[int], ended: Callable[[], Any], fields: dict[str, Any]
    ) -> Start:
        """Send a request that resets environments or loads their states."""
        if not envs:
            layout = SpaceLayout(self.observation_space)
            return layout.unflatten(SpaceRows.allocate(layout, 0).parts), []

        def parse(answer: Any) -> Start:
            arrays = batch_from_wire(self.observation_space, answer["observations"], len(envs))
            infos = infos_from_wire(answer["infos"], len(envs))
            self._ended[list(envs)] = ended()
            return arrays, infos

        return self._session.request(path, {"episode_ids": self._ids_of(envs), **fields}, parse)

    @exclusive
    def step(self, actions: Any) -> Step:
        """Repeat each environment's action ``step_size`` times, or fewer if its episode ends.

        An environment whose episode has ended does not step until it is reset. It returns its last
        observation, reward 0 and the same flags again.

        Args:
            actions: one action per environment, as an array with one row per environment or as a
                list.

        Returns:
            ``(observations, rewards, terminateds, truncateds, infos)``:

            - ``observations``: a list with one array of shape ``(k, *obs_shape)`` per environment,
              with the observations of its k steps, ``1 <= k <= step_size``.
            - ``rewards``: ``(num_envs,)`` float32, each environment's sum of rewards;
              ``(num_envs, n)`` for vector rewards of n components.
            - ``terminateds``, ``truncateds``: ``(num_envs,)`` bool.
            - ``infos``: a list of dicts with ``step``, ``terminated`` and ``truncated`` of the last
              step, and the keys that the operator allows. ``step`` is the zero-based index of the
              last step in its episode.

        Raises:
            ValueError: the actions do not match the action space; no environment was stepped.
            EnvError: an environment raised. All environments need a reset, because the results of
                those that had already stepped are lost.
            RemoteConflictError: an environment needs a reset.
        """
        self._check(idle=False)
        try:
            self._actions.put(actions, ALL_ENVS, self.num_envs)
        except BadValueError as error:
            given = errors.counted(self.num_envs, "environment")
            raise ValueError(f"actions for {given}: {error}") from None
        batch = batch_to_wire(self.action_space, self._actions.view())
        request = {"episode_ids": None, "actions": batch, "steps": self.step_size}
        if self.waiting and not self._session.is_pending(STEP, request):
            raise errors.AlreadySteppingError(
                "a step with other actions is pending: call step_wait() for its result, or reset()"
            )
        return self._session.request(STEP, request, self._parse_step)

    @property
    def waiting(self) -> bool:
        """True if an interrupted step is pending."""
        return self._session.is_pending(STEP)

    @exclusive
    def step_wait(self) -> Step:
        """Return the result of a :meth:`step` that was interrupted by Ctrl-C or a timeout.

        Raises:
            NotSteppingError: no step is pending.
        """
        self._check(idle=False)
        if not self.waiting:
            raise errors.NotSteppingError("step_wait was called while no step is pending")
        return cast(Step, self._session.finish_pending())

    def _parse_step(self, answer: Any) -> Step:
        def array(name: str, dtype: type[np.generic], *shape: int) -> NDArray[Any]:
            return array_from_wire(answer[name], np.dtype(dtype), (self.num_envs, *shape))

        lengths = array("lengths", np.int64).tolist()
        observations = [
            batch_from_wire(self.observation_space, node, length)
            for node, length in zip(answer["observations"], lengths, strict=True)
        ]
        rewards = array("rewards", np.float64, *shape_of_rewards(self.reward_space))
        terminated, truncated = array("terminated", np.bool_), array("truncated", np.bool_)
        infos = infos_from_wire(answer["infos"], self.num_envs)
        self._ended = terminated | truncated
        return observations, as_float32(rewards), terminated, truncated, infos

    def get_terminated_env_indices(self) -> list[int]:
        """Return the indices of environments whose episode has terminated or was truncated."""
        return np.flatnonzero(self._ended).tolist()

    def get_active_count(self) -> int:
        """Return the number of environments whose episode has not ended."""
        return self.num_envs - int(self._ended.sum())

    @exclusive
    def save_state(self, env_ids: Sequence[int] | None = None) -> EnvStates:
        """Save states, as :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.save_state` does.

        It returns handles. The server keeps a state until its handle is garbage-collected, or the
        session or the worker process ends.

        Raises:
            RemoteConflictError: an environment was never reset.
        """
        self._check()
        envs = checked_env_ids(env_ids, self.num_envs)
        if not envs:
            return EnvStates([], {})
        request = {"operation": "save", "episode_ids": self._ids_of(envs)}
        handles = self._session.request("states", request, self._session.parse_handles)
        return EnvStates(handles, {}).adding(_ENDED, [bool(self._ended[env]) for env in envs])

    @exclusive
    def load_state(self, state: EnvStates, env_ids: Sequence[int] | None = None) -> Start:
        """Load saved states, as :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.load_state` does.

        Returns:
            ``(observations, infos)`` in the form of :meth:`reset`. They are those that each
            environment had last returned when its state was saved.

        Raises:
            StateError: a state was not saved in this session.
            RemoteNotFoundError: the server has dropped one of the states.
        """
        self._check()
        envs = checked_env_ids(env_ids, self.num_envs)
        checked_states(state, len(envs))
        operation = {"operation": "load", "states": self._session.state_numbers(state)}
        ended = state.extra(_ENDED) or ()
        return self._start("states", envs, lambda: ended, operation)

    @exclusive
    def clone_state(
        self, src_ids: int | Sequence[int], dst_ids: int | Sequence[int], *, fork_rng: bool = False
    ) -> Start:
        """Clone states, as :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.clone_state` does.

        Returns:
            ``(observations, infos)`` in the form of :meth:`load_state`, ordered as ``dst_ids``.

        Raises:
            RemoteConflictError: a source was never reset.
        """
        self._check()
        sources, targets = checked_clones(src_ids, dst_ids, self.num_envs)
        # Evaluated once, when the reply is decoded: a pending reset is finished first.
        ended = cache(lambda: self._ended[sources])
        source_ids = [self.episode_ids[source] for source in sources]
        operation = {"operation": "clone", "sources": source_ids, "fork_rng": fork_rng}
        return self._start("states", targets, ended, operation)

    @exclusive
    def render(self, ids: Sequence[int] | None = None) -> list[Any]:
        """Return the results of ``render`` for the environments ``ids``, by default for all."""
        self._check()
        envs = checked_env_ids(ids, self.num_envs, "ids")
        if not envs:
            return []
        request = {"operation": "render", "episode_ids": self._ids_of(envs)}
        return self._session.request("call", request, parse_results)

    def close(self) -> None:
        """Close the session and its environments. Calling ``close`` again does nothing."""
        self.closed = True
        self._session.close()

    def __repr__(self) -> str:
        fields = f"num_envs={self.num_envs}, step_size={self.step_size}"
        state = ", closed" if self.closed else ""
        return f"{type(self).__name__}({fields}, server={self._session.server!r}{state})"

    def _check(self, *, idle: bool = True) -> None:
        if self.closed:
            raise errors.ClosedVecEnvError(f"{type(self).__name__} is closed; create a new one")
        if idle and self.waiting:
            text = "an interrupted step is pending: call step_wait() or reset() first"
            raise errors.AlreadySteppingError(text)


def create_student_gym_env_vectorized(
    num_envs: int,
    step_size: int,
    user_token: str | None,
    *,
    base_url: str = "http://127.0.0.1:8001",
    env_id: str | None = None,
    timeout: float = 120.0,
    share_frames: bool = False,
    verify: Verify = True,
) -> StudentGymEnvVectorized:
    """Create environments on a server.

    Args:
        num_envs: number of environments.
        step_size: maximum number of times each environment repeats its action per step.
        user_token: the user's token; None if the server requires none.
        base_url: the server's address.
        env_id: id of the environment; None if the server offers only one.
        timeout: seconds to wait for the reply to a request; may be infinite.
        share_frames: whether the server's status page may show rendered frames.
        verify: how to check the certificate of an ``https`` server, as for
            :class:`~xuance_envs.RemoteVecEnv`.

    Returns:
        The environments; call ``reset`` before the first step.

    Raises:
        ValueError: ``num_envs`` or ``step_size`` is below 1, or the address, token, ``timeout`` or
            ``verify`` is invalid.
        EnvError: an environment could not be created.
        RemoteError: the server refuses a request or does not reply. Each cause has a derived class,
            such as :class:`~xuance_envs.errors.RemoteNotFoundError` for an unknown ``env_id``.
        ImportError: msgpack is not installed.

    Example:
        >>> from xuance_envs import create_student_gym_env_vectorized
        >>> from xuance_envs.remote.server import Server
        >>> from xuance_envs.remote.settings import Catalogue, Settings
        >>> with Server(Settings(Catalogue.of_ids(["CartPole-v1"])), port=0) as server:
        ...     with create_student_gym_env_vectorized(2, 5, None, base_url=server.url) as env:
        ...         observations, infos = env.reset(seed=0)
        >>> observations.shape, observations.dtype
        ((2, 4), dtype('float32'))
    """
    num_envs = checked_count("num_envs", num_envs)
    step_size = checked_count("step_size", step_size)
    connection = ApiClient(base_url, user_token, timeout, verify, logging.INFO)
    session = RemoteSession(connection, share_frames, StudentGymEnvVectorized.__name__)
    try:
        return StudentGymEnvVectorized(session, num_envs, step_size, env_id)
    except BaseException:
        session.close()
        raise
