"""What a student's notebook uses: environments on a server, stepped several times a request."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from xuance_envs.engine.data.space_layout import BadValueError, SpaceLayout
from xuance_envs.engine.data.space_rows import ALL_ENVS, SpaceRows
from xuance_envs.engine.data.step_arrays import as_float32
from xuance_envs.errors import (
    AlreadySteppingError,
    ClosedVecEnvError,
    EnvError,
    NotSteppingError,
)
from xuance_envs.remote.client_session import (
    ApiClient,
    RemoteSession,
    Verify,
    checked_count,
    checked_seeds,
)
from xuance_envs.remote.wire.arrays import array_from_wire
from xuance_envs.remote.wire.batches import batch_from_wire, batch_to_wire
from xuance_envs.remote.wire.infos import infos_from_wire
from xuance_envs.remote.wire.spaces import space_from_wire
from xuance_envs.remote.wire.values import from_wire
from xuance_envs.state.env_states import EnvStates
from xuance_envs.vector_envs.arguments import checked_env_ids, checked_states, seed_per_env
from xuance_envs.vector_envs.last_results import checked_clones

__all__ = ["StudentGymEnvVectorized", "create_student_gym_env_vectorized"]

logger = logging.getLogger("xuance_envs.client")

Infos = list[dict[str, Any]]
Step = tuple[list[Any], NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], Infos]

STEP = "vectorized_step"

_ENDED = "ended"
"""The name under which is kept with a state whether its episode has ended."""


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
    """Makes environments on a server.

    Args:
        num_envs: how many.
        step_size: how often each repeats its action at most in one step.
        user_token: what the server knows its user by; None where it wants no token.
        base_url: the server's address.
        env_id: which environment; None for the only one the server has.
        timeout: seconds within which the server has to answer a request.
        share_frames: whether the server's status page may show what is rendered.
        verify: how the certificate of an ``https`` server is checked: by the authorities everybody
            trusts, by those in a file or folder of certificates or an SSL context, or not at all.

    Returns:
        The environments, to be reset before the first step.

    Raises:
        ValueError: ``num_envs`` or ``step_size`` is below 1, or the address is none.
        RemoteAuthenticationError: the server does not know the token.
        RemoteNotFoundError: it has no such environment.
        RemoteLimitError: it allows no more sessions or environments.
        RemoteVersionError: it speaks another version of the protocol.
        RemoteUnreachableError: it does not answer.
        ImportError: httpx, httptools or msgpack is not installed.

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
    try:
        version = connection.check_version()
        logger.info("server %s has xuance_envs %s", connection.server, version)
        session = RemoteSession(connection, share_frames, StudentGymEnvVectorized.__name__)
    except BaseException:
        connection.close()
        raise
    try:
        return StudentGymEnvVectorized(session, num_envs, step_size, env_id)
    except BaseException:
        session.close()
        raise


class StudentGymEnvVectorized:
    """Environments on a server: each repeats its action, and is reset when it is told to.

    Made by :func:`create_student_gym_env_vectorized`. One request steps all of them, up to
    ``step_size`` times each. It is a context manager: leaving it closes it.

    A step that is cut short, by Ctrl-C or a timeout, is not lost: the same step again returns its
    result, and so does :meth:`step_wait`. In a process that is forked from this one, everything but
    :meth:`close` is a :class:`~xuance_envs.errors.WrongProcessError`.

    Args:
        session: on the server, freed by :meth:`close`.
        num_envs: how many environments.
        step_size: how often each repeats its action at most.
        env_id: which environment; None for the only one the server has.

    Attributes:
        num_envs (int): number of environments.
        step_size (int): as above.
        episode_ids (list[str]): what the server calls them.
        observation_space (gymnasium.Space): of one environment.
        action_space (gymnasium.Space): of one environment.
        max_episode_steps (int): the limit of an episode, 1000 where there is none.
        closed (bool): whether it has been closed.

    Example:
        >>> from xuance_envs import create_student_gym_env_vectorized
        >>> from xuance_envs.remote.server import Server
        >>> from xuance_envs.remote.settings import Catalogue, Settings
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
        self._session = session
        self.closed = False
        self.num_envs = num_envs
        self.step_size = step_size
        request = {"env_id": env_id, "num_envs": num_envs, "auto_reset": False}
        session.request("create", request, self._parse_description)
        self._ended = np.zeros(num_envs, np.bool_)
        layout = SpaceLayout(self.action_space)
        parts: list[Any] = [
            [None] * num_envs
            if leaf.dtype is None
            else np.zeros((num_envs, *leaf.shape), leaf.dtype)
            for leaf in layout.leaves
        ]
        self._actions = SpaceRows(layout, parts, num_envs)
        for index, episode in enumerate(self.episode_ids):
            logger.info(
                "environment %d of %d is episode %s at %s", index, num_envs, episode, session.server
            )

    def _parse_description(self, answer: Any) -> None:
        self.episode_ids: list[str] = list(map(str, answer["episode_ids"]))
        self.observation_space: Space[Any] = space_from_wire(answer["observation_space"])
        self.action_space: Space[Any] = space_from_wire(answer["action_space"])
        self.max_episode_steps = int(answer["max_episode_steps"])

    def reset(self, *, seed: int | Sequence[int | None] | None = None) -> tuple[Any, Infos]:
        """Starts a new episode in every environment.

        Args:
            seed: an int gives environment i the seed ``seed + i``; a sequence gives each its own;
                None lets each go on with its random stream.

        Returns:
            ``(observations, infos)``: an array of shape ``(num_envs, *obs_shape)``, in a dict or
            tuple for a Dict or Tuple space, and a list of dicts.

        Raises:
            EnvError: an environment raised.
            RemoteError: the server refused, or could not be reached.
            ClosedVecEnvError: it is closed.
        """
        return self._reset(range(self.num_envs), seed)

    def reset_specific_envs(
        self, ids: Sequence[int], *, seed: int | Sequence[int | None] | None = None
    ) -> tuple[Any, Infos]:
        """Starts a new episode in some environments, and leaves the others as they are.

        Args:
            ids: their indices, as from :meth:`get_terminated_env_indices`.
            seed: as for :meth:`reset`, one per environment that is reset.

        Returns:
            ``(observations, infos)`` of these environments, in the order of ``ids``.

        Raises:
            ValueError: there is no such environment, or it is there twice.
            EnvError: an environment raised.
            RemoteError: the server refused, or could not be reached.
            ClosedVecEnvError: it is closed.
        """
        return self._reset(checked_env_ids(ids, self.num_envs), seed)

    def _reset(
        self, envs: Sequence[int], seed: int | Sequence[int | None] | None
    ) -> tuple[Any, Infos]:
        self._check_open()
        seeds = seed_per_env(seed, envs)
        if not envs:
            return self._no_observations(), []
        request = {
            "episode_ids": self._episode_ids_of(envs),
            "seed": None if seed is None else checked_seeds(seeds),
        }

        def parse(answer: Any) -> tuple[Any, Infos]:
            result = self._parse_reset(envs, answer)
            self._ended[list(envs)] = False
            return result

        if self._session.pending_path == STEP:
            with suppress(EnvError):  # which a reset mends
                self._session.finish_pending()
        reset = self._session.request("vectorized_reset", request, parse)
        # As the notebooks that this client is for have always said it.
        logger.info("All %d environments reset successfully", len(envs))
        return reset

    def _parse_reset(self, envs: Sequence[int], answer: Any) -> tuple[Any, Infos]:
        observations = batch_from_wire(self.observation_space, answer["observations"], len(envs))
        return observations, infos_from_wire(answer["infos"], len(envs))

    def _episode_ids_of(self, envs: Sequence[int]) -> list[str] | None:
        """The episodes of some environments; None for all of them."""
        everything = list(envs) == list(range(self.num_envs))
        return None if everything else [self.episode_ids[env] for env in envs]

    def step(self, actions: Any) -> Step:
        """Has every environment repeat its action, until its episode ends or ``step_size`` times.

        An environment whose episode ended before is left alone until it is reset: its observation
        is its last one again, its reward 0, and its flags are still set.

        Args:
            actions: one per environment: an array whose rows they are, a list of them, a dict of
                batches for a Dict space or a tuple of batches for a Tuple space.

        Returns:
            ``(observations, rewards, terminateds, truncateds, infos)``:

            - ``observations``: a list with an array ``(k, *obs_shape)`` per environment, the k
              observations of its steps in order, ``1 <= k <= step_size``; in a dict or tuple for a
              Dict or Tuple space.
            - ``rewards``: ``(num_envs,)`` float32, the sums over the steps.
            - ``terminateds``, ``truncateds``: ``(num_envs,)`` bool.
            - ``infos``: a list of dicts, the last step's, each with ``step``, the index of that
              step in its episode counted from 0, ``terminated`` and ``truncated``, and with what
              else the server's operator lets through.

        Raises:
            ValueError: the actions do not fit, or one is not in the space; nothing has happened
                then.
            AlreadySteppingError: a step with other actions was cut short; see :meth:`step_wait`.
            EnvError: an environment raised.
            RemoteConflictError: an environment was not reset before.
            RemoteError: the server refused, or could not be reached.
            ClosedVecEnvError: it is closed.
        """
        self._check_open()
        try:
            self._actions.put(actions, ALL_ENVS, self.num_envs)
        except BadValueError as error:
            raise ValueError(f"actions for {self.num_envs} environments: {error}") from None
        request = {
            "episode_ids": None,
            "actions": batch_to_wire(self.action_space, self._actions.view()),
            "steps": self.step_size,
        }
        if self.waiting and not self._session.is_pending(STEP, request):
            raise AlreadySteppingError(
                "a step with other actions was cut short: step_wait() returns its result, "
                "reset() throws it away"
            )
        return self._session.request(STEP, request, self._parse_step)

    @property
    def waiting(self) -> bool:
        """Whether a step was cut short, so that its result has not been returned."""
        return self._session.pending_path == STEP

    def step_wait(self) -> Step:
        """Returns the result of a step that was cut short, by Ctrl-C or a timeout.

        Raises:
            NotSteppingError: none was.
            EnvError: an environment raised.
            RemoteError: the server refused, or could not be reached.
            ClosedVecEnvError: it is closed.
        """
        self._check_open()
        if not self.waiting:
            raise NotSteppingError("step_wait was called, but no step was cut short")
        result: Step = self._session.finish_pending()
        return result

    def _parse_step(self, answer: Any) -> Step:
        shape = (self.num_envs,)
        lengths = array_from_wire(answer["lengths"], np.dtype(np.int64), shape)
        observations = [
            batch_from_wire(self.observation_space, node, length)
            for node, length in zip(answer["observations"], lengths.tolist(), strict=True)
        ]
        rewards = array_from_wire(answer["rewards"], np.dtype(np.float64), shape)
        terminated = array_from_wire(answer["terminated"], np.dtype(np.bool_), shape)
        truncated = array_from_wire(answer["truncated"], np.dtype(np.bool_), shape)
        infos = infos_from_wire(answer["infos"], self.num_envs)
        self._ended = terminated | truncated
        return observations, as_float32(rewards), terminated, truncated, infos

    def get_terminated_env_indices(self) -> list[int]:
        """The environments whose episode has ended, for either reason, and that await a reset."""
        return [int(env) for env in np.flatnonzero(self._ended)]

    def get_active_count(self) -> int:
        """How many environments are within an episode that has not ended."""
        return self.num_envs - int(self._ended.sum())

    def save_state(self, env_ids: Sequence[int] | None = None) -> EnvStates:
        """The states of all environments, or of some, kept by the server.

        It is as :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.save_state`, and so are the
        other two: what is returned is handles, and the server keeps each state until nobody holds
        its handle any more, or the session ends.

        Raises:
            RemoteConflictError: an environment was not reset before.
            AlreadySteppingError: a step was cut short; see :meth:`step_wait`.
        """
        self._check_idle()
        envs = checked_env_ids(env_ids, self.num_envs)
        if not envs:
            return EnvStates([], {})
        request = {"operation": "save", "episode_ids": self._episode_ids_of(envs)}
        parse_handles = self._session.request("states", request, self._session.states.parse_handles)
        return EnvStates(parse_handles, {}).adding(_ENDED, [bool(self._ended[env]) for env in envs])

    def load_state(
        self, state: EnvStates, env_ids: Sequence[int] | None = None
    ) -> tuple[Any, Infos]:
        """As :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.load_state`.

        Returns:
            ``(observations, infos)`` of these environments: the last ones of each.
        """
        self._check_idle()
        envs = checked_env_ids(env_ids, self.num_envs)
        checked_states(state, len(envs))
        numbers = self._session.states.numbers(state)
        return self._load_states(
            envs, state.extra(_ENDED) or (), {"operation": "load", "states": numbers}
        )

    def clone_state(
        self,
        src_ids: int | Sequence[int],
        dst_ids: int | Sequence[int],
        *,
        fork_rng: bool = False,
    ) -> tuple[Any, Infos]:
        """As :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.clone_state`.

        Returns:
            As :meth:`load_state`, in the order of ``dst_ids``.
        """
        self._check_idle()
        sources, targets = checked_clones(src_ids, dst_ids, self.num_envs)
        ended = [bool(self._ended[source]) for source in sources]
        named = [self.episode_ids[source] for source in sources]
        operation = {"operation": "clone", "sources": named, "fork_rng": fork_rng}
        return self._load_states(targets, ended, operation)

    def _load_states(
        self, envs: Sequence[int], ended: Sequence[bool], operation: dict[str, Any]
    ) -> tuple[Any, Infos]:
        if not envs:
            return self._no_observations(), []

        def parse(answer: Any) -> tuple[Any, Infos]:
            result = self._parse_reset(envs, answer)
            self._ended[list(envs)] = ended
            return result

        request = {"episode_ids": self._episode_ids_of(envs), **operation}
        return self._session.request("states", request, parse)

    def render(self, ids: Sequence[int] | None = None) -> list[Any]:
        """Renders every environment, or some.

        Args:
            ids: their indices; None for all.

        Returns:
            What each one's ``render`` returned.

        Raises:
            AlreadySteppingError: a step was cut short; see :meth:`step_wait`.
            EnvError: an environment raised.
            RemoteError: the server refused, or could not be reached.
            ClosedVecEnvError: it is closed.
        """
        self._check_idle()
        envs = checked_env_ids(ids, self.num_envs)
        if not envs:
            return []
        request = {"operation": "render", "episode_ids": self._episode_ids_of(envs)}
        return self._session.request("call", request, _parse_results)

    def close(self) -> None:
        """Frees the session, and with it the environments; again, it does nothing."""
        self.closed = True
        self._session.close()

    def __enter__(self) -> StudentGymEnvVectorized:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return (
            f"{type(self).__name__}(num_envs={self.num_envs}, step_size={self.step_size}, "
            f"server={self._session.server!r}{state})"
        )

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedVecEnvError(f"{type(self).__name__} is closed; make another one")

    def _check_idle(self) -> None:
        self._check_open()
        if self.waiting:
            raise AlreadySteppingError(
                "a step was cut short: finish it with step_wait() or reset()"
            )

    def _no_observations(self) -> Any:
        layout = SpaceLayout(self.observation_space)
        return layout.unflatten(
            [
                [] if leaf.dtype is None else np.zeros((0, *leaf.shape), leaf.dtype)
                for leaf in layout.leaves
            ]
        )


def _parse_results(answer: Any) -> list[Any]:
    return [from_wire(result) for result in answer["results"]]
