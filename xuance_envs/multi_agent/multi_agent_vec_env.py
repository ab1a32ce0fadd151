"""Many environments with many agents each, stepped as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from xuance_envs.multi_agent.adapters import agents_env
from xuance_envs.multi_agent.agent_actions import AgentActions
from xuance_envs.multi_agent.record_layout import ObservationRecord, RecordLayout
from xuance_envs.multi_agent.step import MultiAgentStep, StepReader
from xuance_envs.multi_agent.team import Groups, Team
from xuance_envs.state.env_states import EnvStates
from xuance_envs.tuning import backend_class, backend_for
from xuance_envs.vector_envs.arguments import checked_env_ids, checked_recipe, env_indices
from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv
from xuance_envs.vector_envs.vector_env import VecEnv
from xuance_envs.vector_envs.wrapper import VecEnvDelegate

__all__ = ["MultiAgentVecEnv"]

BACKENDS = ("auto", "dummy", "subproc", "ray")


class MultiAgentVecEnv(VecEnvDelegate):
    """Many environments with many agents each.

    The environments are PettingZoo's parallel ones, its turn-based ones where their agents can act
    at the same time, or those of XuanCe's ``RawMultiAgentEnv``. Nothing of these libraries is
    imported: an environment needs their attributes and methods only.

    A step steps every environment once, with the actions of the agents that live. An episode ends
    when no agent is left; for XuanCe's environments, when all are terminated or the episode is
    truncated. Such an environment is reset in the same step, and ``first`` of what the step returns
    has the first observations of its next episode.

    Args:
        env_fns: callables that make one environment each, where it will live.
        env_seed: if given, callable i is called with ``env_seed=env_seed + i``.
        backend: ``"dummy"`` steps them in this process, ``"subproc"`` in worker processes,
            ``"ray"`` on a Ray cluster; ``"auto"`` measures for about a second which of the first
            two is faster, and keeps what it found in ``autotuned``. It draws actions for that
            without regard to masks; if an environment refuses one, processes are taken unmeasured.
        groups: by name, which agents are together in one array. None puts those with equal spaces
            together, under what their names begin with; if these are all, there are no groups in
            what is given and returned.
        state: whether the environments' ``state()`` is carried: True, False, or ``"auto"`` for
            those that have a ``state_space``.
        action_mask: whether masks of actions are carried, which environments give as
            ``"action_mask"`` in an agent's observation or info, or as XuanCe's ``avail_actions``:
            True, False, or ``"auto"`` for those that have given one when they are first reset.
        check_actions: whether the action of every agent that lives is checked to be in its space.
        **backend_kwargs: for the backend's class:
            :class:`~xuance_envs.vector_envs.dummy_vec_env.DummyVecEnv`,
            :class:`~xuance_envs.vector_envs.subproc_vec_env.SubprocVecEnv` or
            :class:`~xuance_envs.vector_envs.ray_vec_env.RayVecEnv_Gym`.

    Attributes:
        agents (tuple): the agents' ids, as ``possible_agents`` has them.
        num_agents (int): how many there are.
        groups (dict[str, tuple]): the agents of each group.
        num_envs (int): number of environments.
        observation_space (dict): of each agent.
        action_space (dict): of each agent.
        state_space (gymnasium.Space | None): of an environment's state; None where none is carried.
        vec_env (VecEnv): what steps the environments; its observations and actions are records.
        record (Record): how these are laid out.
        autotuned (Autotuned | None): what ``backend="auto"`` found out.
        max_episode_steps (int): the first environment's limit, 1000 where it states none.
        render_mode (str | None): the first environment's.
        metadata (dict): the first environment's.

    Raises:
        EnvError: a callable raised, or what it returned is no environment with many agents, or has
            spaces that cannot be carried: its ``__cause__`` says which agent.
        ValueError: there is no such backend, no callable, or two of them returned the same object.
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
        backend: str = "auto",
        groups: Groups | None = None,
        state: bool | str = "auto",
        action_mask: bool | str = "auto",
        check_actions: bool = False,
        **backend_kwargs: Any,
    ) -> None:
        if backend not in BACKENDS:
            expected = ", ".join(map(repr, BACKENDS))
            raise ValueError(
                f"backend: expected one of {expected}, got {backend!r}; environments on a server "
                "have their functions there: MultiAgentVecEnv.of(RemoteVecEnv(...))"
            )
        recipe = checked_recipe(env_fns, env_seed)
        if groups is not None:
            groups = {name: tuple(agents) for name, agents in groups.items()}
        makers = [partial(agents_env, fn, groups, state, action_mask) for fn in recipe.env_fns]
        tuned = None
        if backend == "auto":
            if backend_kwargs:
                raise ValueError(
                    "expected no options with backend='auto', which finds them out itself, got "
                    f"{backend_kwargs}"
                )
            tuned = backend_for(partial(makers[0], **recipe.keywords[0]), len(makers))
            backend, backend_kwargs = tuned.choice.backend, dict(tuned.choice.options)
        vec_env = backend_class(backend)(makers, env_seed=env_seed, **backend_kwargs)
        vec_env.autotuned = tuned
        self._attach(vec_env, action_mask, check_actions)

    @classmethod
    def of(
        cls, vec_env: VecEnv, *, action_mask: bool | str = "auto", check_actions: bool = False
    ) -> MultiAgentVecEnv:
        """Many agents in a vector environment of records, wherever it has its environments.

        Args:
            vec_env: a vector environment of
                :func:`~xuance_envs.multi_agent.adapters.agents_env`, or a
                :class:`~xuance_envs.remote.remote_vec_env.RemoteVecEnv` of what a server has with
                ``--multi-agent``; closed with this one.
            action_mask: as above.
            check_actions: as above.

        Raises:
            TypeError: its observations are no records.
        """
        envs = cls.__new__(cls)
        envs._attach(vec_env, action_mask, check_actions)
        return envs

    def _attach(self, vec_env: VecEnv, action_mask: bool | str, check_actions: bool) -> None:
        space = vec_env.observation_space
        if not isinstance(space, ObservationRecord):
            raise TypeError(
                "expected a vector environment whose observations are records of agents, got one "
                f"of {space}"
            )
        self.vec_env = vec_env
        self._team: Team = space.team
        self.record = RecordLayout(self._team)
        self.num_envs = vec_env.num_envs
        self.agents = self._team.agents
        self.num_agents = len(self.agents)
        self.groups = {group.name: group.agents for group in self._team.groups}
        self.observation_space: dict[Any, Space[Any]] = dict(
            zip(self.agents, self._team.observation_spaces, strict=True)
        )
        self.action_space: dict[Any, Space[Any]] = dict(
            zip(self.agents, self._team.action_spaces, strict=True)
        )
        self.state_space = self._team.state_space
        self.autotuned = vec_env.autotuned
        self.max_episode_steps = vec_env.max_episode_steps
        self.render_mode = vec_env.render_mode
        self.metadata = vec_env.metadata
        self._reader = StepReader(self.record, self.num_envs, action_mask)
        check_actions = check_actions or vec_env.checks_actions
        self._actions = AgentActions(self.record, self.num_envs, check_actions)

    @property
    def exact_rewards(self) -> NDArray[np.float64]:
        """The last step's rewards as the environments gave them, ``(num_envs, A)`` float64."""
        return self._reader.rewards.copy()

    @property
    def is_one(self) -> bool:
        """Whether arrays are of all agents, and not by group."""
        return self._team.is_one

    @property
    def is_parallel(self) -> bool:
        """Whether the environments are PettingZoo's, not XuanCe's."""
        return self._team.infos_by_agent

    @property
    def agent_mask(self) -> NDArray[np.bool_]:
        """Who was alive in the last step, ``(num_envs, A)`` bool, as XuanCe's infos have it.

        For XuanCe's environments it is what they said after the step, also at an episode's end; for
        PettingZoo's who acted in the step, or is alive after a reset.
        """
        return self._reader.agent_mask.copy()

    @property
    def environments(self) -> list[Any]:
        """The environments, where they are in this process; none elsewhere, or once closed."""
        vec_env = self.vec_env
        return [env.source_env for env in vec_env.envs] if isinstance(vec_env, DummyVecEnv) else []

    # -- all at a time ----------------------------------------------------------------

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
        env_ids: Sequence[int] | None = None,
    ) -> MultiAgentStep:
        """Starts a new episode in every environment, or in some of them.

        Args:
            seed: an int gives environment i the seed ``seed + i``; a sequence gives each
                environment its own; None lets each go on with its random stream.
            options: passed to each environment's ``reset`` if given.
            env_ids: the environments to reset; None for all.

        Returns:
            What they start from: rewards are 0, no agent has acted, and no flag is set.

        Raises:
            VecEnvError: as :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.reset` raises them.
            ValueError: a wrong number of seeds, or an environment that does not exist.
        """
        records, infos = self.vec_env.reset(seed=seed, options=options, env_ids=env_ids)
        envs = None
        if env_ids is not None:
            envs = np.array(checked_env_ids(env_ids, self.num_envs), np.intp)
        return self._reader.start(records, infos, envs)

    def step(self, actions: Any) -> MultiAgentStep:
        """Steps every environment once.

        Args:
            actions: an array ``(num_envs, A, *action_shape)`` of the agents in order; a dict of
                such arrays by group, where there are groups; or a list with a dict ``{agent:
                action}`` for each environment. Those of agents that do not live are ignored, and
                may be missing in dicts.

        Raises:
            ValueError: the actions do not fit, or one is missing; nothing has happened then.
            VecEnvError: as :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.step` raises them.
        """
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Starts a step. See :meth:`step` for the actions and the errors."""
        self._actions.put(actions, self._reader.alive)
        self.vec_env.step_async(self._actions.records)

    def step_wait(self) -> MultiAgentStep:
        """Waits for the step that was started.

        Raises:
            NotSteppingError: no step is pending.
        """
        records, _, terminated, truncated, infos = self.vec_env.step_wait()
        return self._reader.step(records, terminated, truncated, infos)

    # -- some at a time ---------------------------------------------------------------

    def send(self, actions: Any, env_ids: Sequence[int] | NDArray[np.integer[Any]]) -> None:
        """Gives some environments their actions; :meth:`recv` brings what comes of them.

        Args:
            actions: as :meth:`step` takes them, for the environments of ``env_ids`` in that order.
            env_ids: the environments.

        Raises:
            ValueError: the actions do not fit, or an environment does not exist.
            AlreadySteppingError: one of them has been sent and not received since.
        """
        envs = env_indices(env_ids, self.num_envs)
        self._actions.put(actions, self._reader.alive, envs)
        self.vec_env.send(self._actions.records[envs], envs)

    def recv(self, min_envs: int | None = None, timeout: float | None = None) -> MultiAgentStep:
        """Receives the environments that have answered: those of ``env_ids``, in that order.

        Args:
            min_envs: how many to wait for; None for any.
            timeout: seconds to wait; None for as long as it takes.

        Raises:
            VecEnvError: as :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.recv` raises them.
        """
        batch = self.vec_env.recv(min_envs, timeout)
        return self._reader.step(
            batch.obs, batch.terminated, batch.truncated, batch.infos, batch.env_ids
        )

    # -- states -----------------------------------------------------------------------

    def load_state(self, state: EnvStates, env_ids: Sequence[int] | None = None) -> MultiAgentStep:
        """As :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.load_state`.

        Returns:
            What was last seen of the environments when they were saved, in the order of
            ``env_ids``: who is ``alive`` in it acts next.
        """
        envs = np.array(checked_env_ids(env_ids, self.num_envs), np.intp)
        return self._reader.start(*self.vec_env.load_state(state, env_ids), envs)

    def clone_state(
        self,
        src_ids: int | Sequence[int],
        dst_ids: int | Sequence[int],
        *,
        fork_rng: bool = False,
    ) -> MultiAgentStep:
        """As :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.clone_state`.

        Returns:
            What was last seen of the environments, in the order of ``dst_ids``.
        """
        seen = self.vec_env.clone_state(src_ids, dst_ids, fork_rng=fork_rng)
        return self._reader.start(*seen, np.atleast_1d(np.asarray(dst_ids, np.intp)))

    # -- the end ----------------------------------------------------------------------

    def close(self) -> None:
        """Closes every environment; again, it does nothing."""
        self.vec_env.close()

    def __enter__(self) -> MultiAgentVecEnv:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return (
            f"{type(self).__name__}(num_envs={self.num_envs}, num_agents={self.num_agents}{state})"
        )
