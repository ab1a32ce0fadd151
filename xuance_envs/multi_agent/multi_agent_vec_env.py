"""Vectorized multi-agent environments: ``MultiAgentVecEnv``."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from xuance_envs._deprecated import accept_old_names
from xuance_envs._override import Unpack
from xuance_envs.multi_agent.adapters import agents_env
from xuance_envs.multi_agent.agent_actions import AgentActions
from xuance_envs.multi_agent.record_layout import ObservationRecord, RecordLayout
from xuance_envs.multi_agent.step import MultiAgentStep, StepReader
from xuance_envs.multi_agent.team import Groups, Team
from xuance_envs.state.env_states import EnvStates
from xuance_envs.tuning import backend_class, backend_for
from xuance_envs.vector_envs.aliases import ClosedOnExit, Uncopyable
from xuance_envs.vector_envs.arguments import checked_recipe, env_indices
from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv
from xuance_envs.vector_envs.options import AutoBool, BackendName, RecordOptions, did_you_mean
from xuance_envs.vector_envs.signatures import with_options
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv
from xuance_envs.vector_envs.vector_env import VecEnv
from xuance_envs.vector_envs.worker_settings import RaySettings
from xuance_envs.vector_envs.wrapper import VecEnvDelegate

__all__ = ["MultiAgentVecEnv"]

BACKENDS = ("auto", "dummy", "thread", "subproc", "ray")


@with_options(RecordOptions, SubprocVecEnv, RaySettings)
class MultiAgentVecEnv(VecEnvDelegate, Uncopyable, ClosedOnExit):
    """Vectorized multi-agent environment.

    It supports PettingZoo's parallel environments, parallelizable turn-based ones, and XuanCe's
    ``RawMultiAgentEnv``. Other classes with the same attributes and methods work, too. PettingZoo
    is imported only to convert turn-based environments.

    Each step steps every environment once with the actions of its active agents. A PettingZoo
    episode ends when no agent is left. A XuanCe episode ends when all agents are terminated or the
    episode is truncated. The environment is then reset in the same step, and the first observations
    of the next episode are in the step's ``first``.

    Args:
        env_fns: callables that create one environment each, in its worker.
        env_seed: if given, callable i is called with ``env_seed=env_seed + i``.
        backend: ``"dummy"`` steps the environments in this process, ``"thread"`` in threads,
            ``"subproc"`` in worker processes, ``"ray"`` on a Ray cluster. ``"auto"`` finds out in
            about a second whether ``"dummy"`` or ``"subproc"`` is faster, and reports the result in
            ``autotuned``. It measures with random actions and ignores action masks. If such a step
            raises, the backend is chosen without a measurement.
        groups: the agents of each group, by group name. The agents of a group share arrays. By
            default, agents with equal spaces form a group, which is named after its first agent,
            without the agent's number. If all spaces are equal, results and actions are not
            grouped: they are plain arrays.
        state: whether to return the environments' ``state()``: True, False, or ``"auto"`` for
            environments that have a ``state_space``. If ``state()`` fails after an episode's last
            step, the state before that step is returned.
        action_masks: whether to return action masks. Environments provide them under the key
            ``"action_mask"`` of an agent's observation or info, or as XuanCe's ``avail_actions``.
            ``"auto"`` returns masks if any environment provided one at its first reset. Until all
            environments have been reset, it returns masks in any case.
        check_actions: True to check that the action of every active agent is in its space.
        allow_threads: as for :func:`~xuance_envs.making.make_vec`.
        in_series: environments per worker, as for the class of the backend.
        actors: as for :class:`~xuance_envs.vector_envs.ray_vec_env.RayVecEnv_Gym`.
        num_cpus_per_worker: as for :class:`~xuance_envs.vector_envs.ray_vec_env.RayVecEnv_Gym`.
        resources: as for :class:`~xuance_envs.vector_envs.ray_vec_env.RayVecEnv_Gym`.
        runtime_env: as for :class:`~xuance_envs.vector_envs.ray_vec_env.RayVecEnv_Gym`.
        scheduling_strategy: as for :class:`~xuance_envs.vector_envs.ray_vec_env.RayVecEnv_Gym`.
        address: as for :class:`~xuance_envs.vector_envs.ray_vec_env.RayVecEnv_Gym`.
        **options: options of the backend's class. ``"auto"`` chooses a backend that supports them.

    Attributes:
        agents (tuple): ids of the agents, in the order of ``possible_agents``.
        num_agents (int): number of agents, including inactive ones.
        groups (dict[str, tuple]): agents of each group.
        num_envs (int): number of environments.
        observation_space (dict): observation space of each agent.
        action_space (dict): action space of each agent.
        state_space (gymnasium.Space | None): space of an environment's state; None if it has none.
        reward_space (gymnasium.spaces.Box | None): space ``(k,)`` of each agent's vector rewards,
            which environments declare in ``reward_spaces``; None if rewards are numbers.
        vec_env (VecEnv): the underlying vectorized environment, whose observations are records.
        record (RecordLayout): memory layout of the records.
        autotuned (Autotuned | None): measurements of ``backend="auto"``.
        max_episode_steps (int): step limit of the first environment; 1000 if it has none.
        render_mode (str | None): render mode of the first environment.
        metadata (dict): metadata of the first environment.

    Raises:
        EnvError: a callable raised or did not return a multi-agent environment; or the environment
            has unsupported spaces (the message names the agent), or does not fit ``groups``,
            ``state`` or ``action_masks``.
        ValueError: there is no such backend, ``env_fns`` is empty, two callables returned the same
            object, or no backend has all the options.
        TypeError: an entry of ``env_fns`` is not callable, does not accept ``env_seed``, or cannot
            be pickled for another process; or an option is unknown.
        RuntimeError: the environments' agents or spaces differ.

    Example:
        >>> import numpy as np
        >>> from mpe2 import simple_spread_v3
        >>> from xuance_envs import MultiAgentVecEnv
        >>> with MultiAgentVecEnv([simple_spread_v3.parallel_env] * 4, backend="dummy") as envs:
        ...     step = envs.reset(seed=0)
        ...     while step.first is None:
        ...         step = envs.step(np.ones((4, 3), int))
        >>> step.obs.shape, step.rewards.shape, step.state.shape
        ((4, 3, 18), (4, 3), (4, 54))
        >>> step.truncated[0], step.alive[0], step.first.alive[0]
        (array([ True,  True,  True]), array([False, False, False]), array([ True,  True,  True]))
    """

    def __init__(
        self,
        env_fns: Iterable[Callable[..., Any]],
        env_seed: int | None = None,
        *,
        backend: BackendName = "auto",
        groups: Groups | None = None,
        state: AutoBool = "auto",
        action_masks: AutoBool = "auto",
        check_actions: bool = False,
        allow_threads: bool = False,
        **options: Unpack[RecordOptions],
    ) -> None:
        if backend not in BACKENDS:
            expected = ", ".join(map(repr, BACKENDS))
            hint = did_you_mean(str(backend), BACKENDS) or "."
            raise ValueError(
                f"backend: expected one of {expected}, got {backend!r}{hint} For environments on a "
                "server, use MultiAgentVecEnv.of(RemoteVecEnv(...))"
            )
        name: str = backend
        given: Any = options
        recipe = checked_recipe(env_fns, env_seed)
        if groups is not None:
            groups = {name: tuple(agents) for name, agents in groups.items()}
        makers = [partial(agents_env, fn, groups, state, action_masks) for fn in recipe.env_fns]
        tuned = None
        if backend == "auto":
            make_env = partial(makers[0], **recipe.keywords[0])
            tuned = backend_for(make_env, len(makers), options=given, allow_threads=allow_threads)
            name, given = tuned.choice.backend, tuned.choice.options
        vec_env = backend_class(name)(makers, env_seed=env_seed, **given)
        vec_env.autotuned = tuned
        self._attach(vec_env, action_masks, check_actions)

    @classmethod
    @accept_old_names
    def of(
        cls, vec_env: VecEnv, *, action_masks: AutoBool = "auto", check_actions: bool = False
    ) -> MultiAgentVecEnv:
        """Wrap a vectorized environment whose observations are records of several agents.

        Args:
            vec_env: vectorized environment created from functions that return
                :func:`agents_env(...) <xuance_envs.multi_agent.adapters.agents_env>`, or a
                :class:`~xuance_envs.RemoteVecEnv` of a server that was started with
                ``--multi-agent``. Closing the wrapper closes ``vec_env``.
            action_masks: as for the class.
            check_actions: as for the class.

        Raises:
            TypeError: ``vec_env`` is not such an environment: its observations are not records.
        """
        envs = cls.__new__(cls)
        envs._attach(vec_env, action_masks, check_actions)
        return envs

    def _attach(self, vec_env: VecEnv, action_masks: AutoBool, check_actions: bool) -> None:
        space = vec_env.observation_space
        if not isinstance(space, ObservationRecord):
            raise TypeError(
                "vec_env: expected a vectorized environment of multi-agent records, got "
                f"observations in {space}"
            )
        self.vec_env = vec_env
        self._team: Team = space.team
        self.record = RecordLayout(self._team)
        self.num_envs = vec_env.num_envs
        self.agents = self._team.agents
        self.num_agents = len(self.agents)
        self.groups = {group.name: group.agents for group in self._team.groups}
        self.observation_space: dict[Any, Space[Any]] = dict(self._team.observation_spaces)
        self.action_space: dict[Any, Space[Any]] = dict(self._team.action_spaces)
        self.state_space = self._team.state_space
        self.reward_space = self._team.reward_space
        self.autotuned = vec_env.autotuned
        self.max_episode_steps = vec_env.max_episode_steps
        self.render_mode = vec_env.render_mode
        self.metadata = vec_env.metadata
        self._reader = StepReader(self.record, self.num_envs, action_masks)
        check_actions = check_actions or vec_env.checks_actions
        self._actions = AgentActions(self.record, self._reader.alive, check_actions)

    @property
    def exact_rewards(self) -> NDArray[np.float64]:
        """Unrounded rewards of the last step, ``(num_envs, A)`` or ``(num_envs, A, k)`` float64."""
        return self._reader.rewards.copy()

    @property
    def is_one(self) -> bool:
        """True if results are arrays of all agents, False if they are dicts by group."""
        return self._team.is_one

    @property
    def is_parallel(self) -> bool:
        """True for PettingZoo environments, False for XuanCe environments."""
        return self._team.infos_by_agent

    @property
    def agent_mask(self) -> NDArray[np.bool_]:
        """Active agents of the last step, ``(num_envs, A)`` bool, like ``agent_mask`` in XuanCe.

        In XuanCe environments, the mask marks the agents that are active after the step. After an
        episode's last step, it still describes that episode. In PettingZoo environments, it marks
        the agents that acted in the step; after a reset, the active agents.
        """
        return self._reader.agent_mask.copy()

    @property
    def environments(self) -> list[Any]:
        """The environments of ``backend="dummy"``; empty with other backends and once closed."""
        vec_env = self.vec_env
        return [env.source_env for env in vec_env.envs] if isinstance(vec_env, DummyVecEnv) else []

    # -- synchronous stepping ---------------------------------------------------------

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
        env_ids: Sequence[int] | None = None,
    ) -> MultiAgentStep:
        """Start a new episode in all or some environments.

        Args:
            seed: an int gives environment i the seed ``seed + i``; a sequence gives one seed per
                environment; None continues the random streams.
            options: passed to each environment's ``reset``, if given.
            env_ids: indices of the environments to reset; None for all.

        Returns:
            The first observations of the reset environments, in the order of ``env_ids``. Rewards
            are 0, and ``acted`` and all flags are False.

        Raises:
            VecEnvError: as for :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.reset`.
            ValueError: the number of seeds or an environment index is invalid.
        """
        envs = None if env_ids is None else env_indices(env_ids, self.num_envs)
        if envs is not None and self.waiting:
            self.step_wait()  # the other environments' agents may have changed
        records, infos = self.vec_env.reset(seed=seed, options=options, env_ids=env_ids)
        return self._reader.start(records, infos, envs)

    def step(self, actions: Any) -> MultiAgentStep:
        """Step every environment once.

        Args:
            actions: an array ``(num_envs, A, *action_shape)`` with the agents in order; with
                groups, a dict of such arrays by group; or a list with one dict ``{agent: action}``
                per environment. Dicts may omit inactive agents, whose actions are passed on only to
                XuanCe environments.

        Returns:
            The results of all environments, in their order.

        Raises:
            ValueError: an action is invalid or missing. The step was not started.
            VecEnvError: as for :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.step`.
        """
        self.step_async(actions)
        return self.step_wait()

    def sample_actions(self, rng: np.random.Generator | int | None = None) -> list[dict[Any, Any]]:
        """Sample one random action per agent and environment, in a form that ``step`` accepts.

        Args:
            rng: generator, or a seed. None continues the random streams of ``action_space``.

        Returns:
            A list with one dict ``{agent: action}`` per environment. Action masks are not
            considered.
        """
        spaces = self.action_space
        if rng is not None:
            spaces, rng = copy.deepcopy(spaces), np.random.default_rng(rng)
            for space in spaces.values():
                space.seed(int(rng.integers(2**31)))
        return [
            {agent: space.sample() for agent, space in spaces.items()} for _ in range(self.num_envs)
        ]

    def step_async(self, actions: Any) -> None:
        """Start a step without waiting for it; see :meth:`step` for the actions and errors."""
        self._actions.put(actions)
        self.vec_env.step_async(self._actions.records)

    def step_wait(self) -> MultiAgentStep:
        """Wait for the pending step; raise NotSteppingError without one. See :meth:`step`."""
        records, _, terminated, truncated, infos = self.vec_env.step_wait()
        return self._reader.step(records, terminated, truncated, infos)

    # -- asynchronous stepping --------------------------------------------------------

    def send(self, actions: Any, env_ids: Sequence[int] | NDArray[np.integer[Any]]) -> None:
        """Send actions to some environments, in any form that :meth:`step` accepts.

        The actions are in the order of ``env_ids``; :meth:`recv` returns the results. Errors are
        those of :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.send`.
        """
        envs = env_indices(env_ids, self.num_envs)
        self._actions.put(actions, envs)
        self.vec_env.send(self._actions.records[envs], envs)

    def recv(self, min_envs: int | None = None, timeout: float | None = None) -> MultiAgentStep:
        """Receive the results of the environments that are ready; ``env_ids`` lists them.

        Arguments and errors are those of :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.recv`.
        """
        batch = self.vec_env.recv(min_envs, timeout)
        return self._reader.step(
            batch.obs, batch.terminated, batch.truncated, batch.infos, batch.env_ids
        )

    # -- states -----------------------------------------------------------------------

    def load_state(self, state: EnvStates, env_ids: Sequence[int] | None = None) -> MultiAgentStep:
        """Restore saved states; see :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.load_state`.

        Returns:
            The environments' last results before saving, in the order of ``env_ids``. If the last
            step before saving ended an episode, the result is the start of the next episode.
            ``first`` is None. The agents in ``alive`` act next.

        Raises:
            VecEnvError, TypeError, ValueError: as for that method.
        """
        envs = env_indices(env_ids, self.num_envs)
        return self._reader.start(*self.vec_env.load_state(state, env_ids), envs)

    def clone_state(
        self, src_ids: int | Sequence[int], dst_ids: int | Sequence[int], *, fork_rng: bool = False
    ) -> MultiAgentStep:
        """Copy states; see :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.clone_state`.

        Returns:
            The results of the source environments as :meth:`load_state` returns them, in the order
            of ``dst_ids``.

        Raises:
            VecEnvError, ValueError: as for that method.
        """
        results = self.vec_env.clone_state(src_ids, dst_ids, fork_rng=fork_rng)
        return self._reader.start(*results, np.atleast_1d(np.asarray(dst_ids, np.intp)))

    def close(self) -> None:
        """Close all environments and release resources. Calling ``close`` again does nothing."""
        self.vec_env.close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return (
            f"{type(self).__name__}(num_envs={self.num_envs}, num_agents={self.num_agents}{state})"
        )
