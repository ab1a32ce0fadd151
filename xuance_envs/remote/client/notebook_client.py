"""Notebook client: environments on a server, with action repeat."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.space_layout import BadValueError, SpaceLayout, shape_of_rewards
from xuance_envs.engine.data.space_rows import ALL_ENVS, SpaceRows
from xuance_envs.engine.data.step_arrays import as_float32
from xuance_envs.errors import (
    AlreadySteppingError,
    ClosedVecEnvError,
    EnvError,
    NotSteppingError,
    counted,
)
from xuance_envs.remote.client.remote_session import (
    CreatedEnvs,
    RemoteSession,
    checked_seeds,
    episode_ids_of,
    parse_results,
)
from xuance_envs.remote.wire.arrays import array_from_wire
from xuance_envs.remote.wire.batches import batch_from_wire, batch_to_wire
from xuance_envs.remote.wire.values import infos_from_wire
from xuance_envs.state.env_states import EnvStates
from xuance_envs.vector_envs.arguments import checked_env_ids, checked_states, seed_per_env
from xuance_envs.vector_envs.last_results import checked_clones

__all__ = ["StudentGymEnvVectorized"]

logger = logging.getLogger("xuance_envs.client")

Seeds = int | Sequence[int | None] | None
Infos = list[dict[str, Any]]
Start = tuple[Any, Infos]
Step = tuple[list[Any], NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], Infos]

STEP = "vectorized_step"
_ENDED = "ended"  # saved states store under this name whether the episode has ended


class StudentGymEnvVectorized:
    """Environments on a server, with action repeat and without autoreset.

    :func:`~xuance_envs.create_student_gym_env_vectorized` creates it. One request steps each
    environment up to ``step_size`` times. Use it as a context manager, or call :meth:`close`.

    If Ctrl-C or a timeout interrupts a step, repeat the ``step`` call with the same actions, or
    call :meth:`step_wait`, to get its result.

    Methods that send a request raise :class:`~xuance_envs.errors.RemoteError` if the server refuses
    it or is unreachable, :class:`~xuance_envs.errors.EnvError` if an environment raised, and
    :class:`~xuance_envs.errors.ClosedVecEnvError` after :meth:`close`. In a forked process they
    raise :class:`~xuance_envs.errors.WrongProcessError`.

    Args:
        session: session on the server; :meth:`close` closes it.
        num_envs: number of environments.
        step_size: maximum number of times each environment repeats its action per step.
        env_id: id of the environment; None if the server offers only one.

    Attributes:
        num_envs (int): number of environments.
        step_size (int): maximum number of repeated steps.
        episode_ids (list[str]): the server's ids of the environments.
        observation_space (gymnasium.Space): space of one environment's observations.
        action_space (gymnasium.Space): space of one environment's actions.
        reward_space (gymnasium.spaces.Box | None): space ``(k,)`` of one environment's vector
            rewards; None if rewards are numbers.
        max_episode_steps (int): step limit of an episode; 1000 if the environment has none.
        closed (bool): whether the environments are closed.

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
        created = session.request("create", request, CreatedEnvs.of)
        self.episode_ids = created.episode_ids
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
            dtype, and a list of dicts. For Dict and Tuple spaces, observations are a dict or tuple
            of such arrays.

        Raises:
            ValueError: a seed or the number of seeds is invalid.
        """
        return self._reset(range(self.num_envs), seed)

    def reset_specific_envs(self, ids: Sequence[int], *, seed: Seeds = None) -> Start:
        """Start a new episode in some environments; the others continue.

        Args:
            ids: indices of the environments, for example from :meth:`get_terminated_env_indices`.
            seed: as for :meth:`reset`; a sequence has one seed per index in ``ids``.

        Returns:
            ``(observations, infos)`` of these environments, in the order of ``ids``.

        Raises:
            ValueError: an index is out of range or repeated.
        """
        return self._reset(checked_env_ids(ids, self.num_envs, "ids"), seed)

    def _reset(self, envs: Sequence[int], seed: Seeds) -> Start:
        self._check_open()
        seeds = seed_per_env(seed, envs)
        if not envs:
            return self._no_observations(), []
        request = {
            "episode_ids": episode_ids_of(self.episode_ids, envs),
            "seed": None if seed is None else checked_seeds(seeds),
        }
        if self.waiting:
            with suppress(EnvError):  # the reset below recovers from it
                self._session.finish_pending()
        parse = partial(self._parse_reset, envs, False)
        result = self._session.request("vectorized_reset", request, parse)
        # Existing notebooks expect this exact message.
        logger.info("All %d environments reset successfully", len(envs))
        return result

    def _parse_reset(self, envs: Sequence[int], ended: bool | Sequence[bool], answer: Any) -> Start:
        observations = batch_from_wire(self.observation_space, answer["observations"], len(envs))
        infos = infos_from_wire(answer["infos"], len(envs))
        self._ended[list(envs)] = ended
        return observations, infos

    def step(self, actions: Any) -> Step:
        """Repeat each environment's action up to ``step_size`` times, or until its episode ends.

        An environment whose episode has ended does not step until it is reset. It returns its last
        observation, reward 0 and the same flags again.

        Args:
            actions: one action per environment, as an array with one row per environment or as a
                list. For Dict and Tuple spaces, a dict or tuple of such batches.

        Returns:
            ``(observations, rewards, terminateds, truncateds, infos)``:

            - ``observations``: a list with one array of shape ``(k, *obs_shape)`` per environment,
              with the observations of its k steps, ``1 <= k <= step_size``. For Dict and Tuple
              spaces, each entry is a dict or tuple of such arrays.
            - ``rewards``: ``(num_envs,)`` float32, each environment's sum of rewards;
              ``(num_envs, n)`` for vector rewards of n components.
            - ``terminateds``, ``truncateds``: ``(num_envs,)`` bool.
            - ``infos``: a list of dicts with ``step``, ``terminated`` and ``truncated`` of the last
              step, and the keys that the operator allows. ``step`` is the zero-based index of the
              last step in its episode.

        Raises:
            ValueError: the actions do not match the action space; no environment was stepped.
            AlreadySteppingError: a step with other actions is pending; see :meth:`step_wait`.
            RemoteConflictError: an environment was never reset.
        """
        self._check_open()
        try:
            self._actions.put(actions, ALL_ENVS, self.num_envs)
        except BadValueError as error:
            given = counted(self.num_envs, "environment")
            raise ValueError(f"actions for {given}: {error}") from None
        request = {
            "episode_ids": None,
            "actions": batch_to_wire(self.action_space, self._actions.view()),
            "steps": self.step_size,
        }
        if self.waiting and not self._session.is_pending(STEP, request):
            raise AlreadySteppingError(
                "a step with other actions is pending: call step_wait() for its result, or reset()"
            )
        return self._session.request(STEP, request, self._parse_step)

    @property
    def waiting(self) -> bool:
        """True if an interrupted step is pending."""
        return self._session.pending_path == STEP

    def step_wait(self) -> Step:
        """Return the result of a step that was interrupted by Ctrl-C or a timeout.

        The result has the form that :meth:`step` returns.

        Raises:
            NotSteppingError: no step is pending.
        """
        self._check_open()
        if not self.waiting:
            raise NotSteppingError("step_wait was called while no step is pending")
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
        return [int(env) for env in np.flatnonzero(self._ended)]

    def get_active_count(self) -> int:
        """Return the number of environments whose episode has not ended."""
        return self.num_envs - int(self._ended.sum())

    def save_state(self, env_ids: Sequence[int] | None = None) -> EnvStates:
        """Save the states of all or some environments on the server.

        It works like :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.save_state`, but returns
        handles. The server keeps a state until its handle is garbage-collected, or the session or
        the worker process ends.

        Args:
            env_ids: indices of the environments; None for all.

        Raises:
            RemoteConflictError: an environment was never reset.
            AlreadySteppingError: an interrupted step is pending; see :meth:`step_wait`.
        """
        self._check_idle()
        envs = checked_env_ids(env_ids, self.num_envs)
        if not envs:
            return EnvStates([], {})
        request = {"operation": "save", "episode_ids": episode_ids_of(self.episode_ids, envs)}
        handles = self._session.request("states", request, self._session.states.parse_handles)
        return EnvStates(handles, {}).adding(_ENDED, [bool(self._ended[env]) for env in envs])

    def load_state(self, state: EnvStates, env_ids: Sequence[int] | None = None) -> Start:
        """Load saved states, as :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.load_state` does.

        Args:
            state: result of :meth:`save_state`, with one state per environment.
            env_ids: indices of the environments; None for all.

        Returns:
            ``(observations, infos)`` in the form of :meth:`reset`: the last observation and info
            of each of these environments.

        Raises:
            ValueError: the number of states or an index is invalid.
            StateError: a state was not saved in this session.
            RemoteNotFoundError: the server no longer keeps a state.
            StateMismatchError: a state belongs to a different environment. Nothing has changed.
            AlreadySteppingError: an interrupted step is pending; see :meth:`step_wait`.
        """
        self._check_idle()
        envs = checked_env_ids(env_ids, self.num_envs)
        checked_states(state, len(envs))
        operation = {"operation": "load", "states": self._session.states.numbers(state)}
        return self._load_states(envs, state.extra(_ENDED) or (), operation)

    def clone_state(
        self, src_ids: int | Sequence[int], dst_ids: int | Sequence[int], *, fork_rng: bool = False
    ) -> Start:
        """Clone states, as :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.clone_state` does.

        Args:
            src_ids: indices of the environments to copy; one for all targets, or one per target.
            dst_ids: indices of the environments to overwrite, without duplicates.
            fork_rng: True to give each copy its own random streams, False to continue its source's
                streams.

        Returns:
            ``(observations, infos)`` in the form of :meth:`load_state`, ordered as ``dst_ids``.

        Raises:
            ValueError: an index is out of range, a target is repeated, or the number of sources is
                neither 1 nor the number of targets.
            RemoteConflictError: a source was never reset.
            AlreadySteppingError: an interrupted step is pending; see :meth:`step_wait`.
        """
        self._check_idle()
        sources, targets = checked_clones(src_ids, dst_ids, self.num_envs)
        ended = [bool(self._ended[source]) for source in sources]
        source_ids = [self.episode_ids[source] for source in sources]
        operation = {"operation": "clone", "sources": source_ids, "fork_rng": fork_rng}
        return self._load_states(targets, ended, operation)

    def _load_states(
        self, envs: Sequence[int], ended: Sequence[bool], operation: dict[str, Any]
    ) -> Start:
        if not envs:
            return self._no_observations(), []
        request = {"episode_ids": episode_ids_of(self.episode_ids, envs), **operation}
        return self._session.request("states", request, partial(self._parse_reset, envs, ended))

    def render(self, ids: Sequence[int] | None = None) -> list[Any]:
        """Render all or some environments.

        Args:
            ids: indices of the environments; None renders all.

        Returns:
            A list with the return value of each environment's ``render``.

        Raises:
            AlreadySteppingError: an interrupted step is pending; see :meth:`step_wait`.
        """
        self._check_idle()
        envs = checked_env_ids(ids, self.num_envs, "ids")
        if not envs:
            return []
        request = {"operation": "render", "episode_ids": episode_ids_of(self.episode_ids, envs)}
        return self._session.request("call", request, parse_results)

    def close(self) -> None:
        """Close the session and its environments. Calling ``close`` again does nothing."""
        self.closed = True
        self._session.close()

    def __enter__(self) -> StudentGymEnvVectorized:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        fields = f"num_envs={self.num_envs}, step_size={self.step_size}"
        state = ", closed" if self.closed else ""
        return f"{type(self).__name__}({fields}, server={self._session.server!r}{state})"

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedVecEnvError(f"{type(self).__name__} is closed; create a new one")

    def _check_idle(self) -> None:
        self._check_open()
        if self.waiting:
            text = "an interrupted step is pending: call step_wait() or reset() first"
            raise AlreadySteppingError(text)

    def _no_observations(self) -> Any:
        layout = SpaceLayout(self.observation_space)
        return layout.unflatten(SpaceRows.allocate(layout, 0).parts)
