"""Rollout collection on a Ray cluster."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from xuance_envs.engine.ray.cluster import ActorOptions, RayCluster
from xuance_envs.engine.serialization import dumps_for_worker
from xuance_envs.errors import ClosedVecEnvError, counted
from xuance_envs.rollout.agents import (
    Agent,
    check_agent,
    check_weights,
    device_of,
    on_cpu,
    weight_shapes,
)
from xuance_envs.rollout.collector import RolloutCollector
from xuance_envs.rollout.collector_actor import CollectorPlan
from xuance_envs.rollout.collector_pool import CollectorActorPool, max_cpus_per_collector
from xuance_envs.rollout.env_adapters import Scalarize
from xuance_envs.rollout.episode_statistics import max_of, merge_statistics
from xuance_envs.rollout.halves import Halves
from xuance_envs.rollout.loop_state import LoopState, generators, set_generators
from xuance_envs.rollout.results import RolloutResults, join_results, join_states
from xuance_envs.vector_envs.arguments import (
    checked_count,
    checked_recipe,
    checked_timeout,
    repeated_functions,
    seed_per_env,
)
from xuance_envs.vector_envs.options import AutoBool, InSeries
from xuance_envs.vector_envs.signatures import with_options
from xuance_envs.vector_envs.worker_settings import is_count, split_evenly

__all__ = ["RayRolloutCollector"]

logger = logging.getLogger("xuance_envs")


@with_options(None, RolloutCollector)
class RayRolloutCollector(RolloutResults):
    """Collectors on a Ray cluster, each with environments and a copy of the agent.

    Each collector is an actor. Its environments run in worker processes that share memory with it,
    or, with one CPU, in the actor itself. Only complete rollouts and the agent's weights cross the
    network. Each collector has a block of consecutive environments. The tensors have the same
    names and shapes as in one :class:`~xuance_envs.rollout.collector.RolloutCollector` with all
    environments. They are bitwise identical for any number of collectors if the agent is
    deterministic and its outputs for a state do not depend on the rest of the batch.

    Collector 0 starts with copies of this process's torch generator and of the generators that the
    agent holds (of torch, NumPy, Python and Gymnasium's spaces). The other collectors derive their
    generators from these and from their index.

    A failed collector is restarted with new seeds and the current weights. It starts new episodes
    and plays the pending rollout from its first step.

    Args:
        env_fns: callables that create one environment each, or one callable with ``num_envs``.
            Objects of ``__main__`` are pickled by value; modules must be importable on the nodes.
        agent: the agent to copy; see :class:`~xuance_envs.rollout.agents.Agent`. It must be
            picklable. :meth:`update_agent` needs its ``state_dict`` and ``load_state_dict``.
        num_collectors: number of collectors.
        steps_per_env: steps per environment and rollout.
        num_envs: number of environments, if ``env_fns`` is a single callable.
        processes: CPUs and worker processes per collector; ``"auto"`` for its share of the
            cluster's CPUs, at most one per environment.
        seed: seed of the first reset; environment i gets ``seed + i``.
        scalarize: as in :class:`~xuance_envs.rollout.collector.RolloutCollector`; a function must
            be picklable.
        env_seed: if given, callable i is called with ``env_seed=env_seed + i``.
        step_timeout: seconds per step of a worker process, including resets; None for no limit.
            With a limit, the environments always run in worker processes.
        resources: additional Ray resources per collector.
        runtime_env: Ray's runtime environment of the collectors.
        scheduling_strategy: Ray's scheduling strategy of the collectors.
        address: cluster address, as in :func:`ray.init`, if Ray is not connected yet.
        start_timeout: seconds until all collectors must have started; None for no limit.
        max_restarts: total number of collector restarts; None for no limit.

    Raises:
        ImportError: Ray is not installed, or a collector's node lacks a module.
        ValueError: an argument is out of range.
        TypeError: the agent has no ``get_actions_and_values``.
        EnvError: a callable raised or did not return an environment.
        WorkerDiedError: a collector failed while it started.
        WorkerTimeoutError: a collector did not start in time, for example because the cluster lacks
            capacity.

    Attributes:
        policy_lag (torch.Tensor): ``(T, N)`` int32: number of :meth:`update_agent` calls that sent
            newer weights than those that chose the action, before :meth:`rollout` returned.
        global_steps (int): environment steps of all collected rollouts.

    Example:
        >>> import torch
        >>> from xuance_envs import Gym_Env, RayRolloutCollector
        >>> class Still:
        ...     def get_actions_and_values(self, states, actions=None):
        ...         nothing = torch.zeros(len(states))
        ...         return torch.ones_like(nothing).int(), nothing, nothing, nothing
        >>> make_env = lambda: Gym_Env("CartPole-v1")
        >>> with RayRolloutCollector(make_env, Still(), 2, 50, num_envs=4) as collector:
        ...     collector.rollout()
        ...     collector.states.shape, int(collector.policy_lag.max())
        (torch.Size([50, 4, 4]), 0)
    """

    policy_lag: torch.Tensor

    def __init__(
        self,
        env_fns: Callable[..., Any] | Iterable[Callable[..., Any]],
        agent: Agent,
        num_collectors: int,
        steps_per_env: int,
        *,
        num_envs: int | None = None,
        processes: InSeries = "auto",
        seed: int | Sequence[int | None] | None = None,
        device: torch.device | str | None = None,
        state_dtype: torch.dtype = torch.float32,
        channels_first: AutoBool = "auto",
        window: int = 10,
        halves: Halves = 1,
        scalarize: Scalarize | None = None,
        env_seed: int | None = None,
        step_timeout: float | None = None,
        resources: Mapping[str, float] | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        scheduling_strategy: Any = "SPREAD",
        address: str | None = None,
        start_timeout: float | None = 120.0,
        max_restarts: int | None = 100,
    ) -> None:
        recipe = checked_recipe(repeated_functions(env_fns, num_envs), env_seed)
        functions = recipe.env_fns
        num_collectors = checked_count("num_collectors", num_collectors)
        if num_collectors > len(functions):
            raise ValueError(
                f"num_collectors: expected 1 to {len(functions)} (the number of environments), "
                f"got {num_collectors}"
            )
        steps_per_env = checked_count("steps_per_env", steps_per_env)
        if processes != "auto" and not is_count(processes):
            raise ValueError(
                f"processes: expected 'auto' or an int of at least 1, got {processes!r}"
            )
        step_timeout = checked_timeout("step_timeout", step_timeout)
        start_timeout = checked_timeout("start_timeout", start_timeout)
        check_agent(agent)
        self.agent = agent
        self.num_envs = len(functions)
        self.num_collectors = num_collectors
        self.steps_per_env = steps_per_env
        self.device = device_of(agent, device)
        self.global_steps = 0
        self._steps_before = 0  # global steps before the first turn
        self._split = split_evenly(self.num_envs, num_collectors)
        self._shapes = weight_shapes(agent)
        seeds = seed_per_env(seed, range(self.num_envs))
        options = {
            **{"state_dtype": state_dtype, "channels_first": channels_first, "window": window},
            **{"steps_per_env": steps_per_env, "halves": halves, "scalarize": scalarize},
        }
        packed = dumps_for_worker(on_cpu(agent))
        actor_options = ActorOptions(1, dict(resources or {}), runtime_env, scheduling_strategy)
        cluster = RayCluster(address, runtime_env)
        try:
            if processes == "auto":
                processes = max_cpus_per_collector(cluster, actor_options, num_collectors)
            count = min(int(processes), self.num_envs // num_collectors)
            plans = [
                CollectorPlan(
                    number=number,
                    envs=range(lo, hi),
                    env_fns=dumps_for_worker(functions[lo:hi]),
                    keywords=recipe.keywords[lo:hi],
                    seeds=None if seed is None else seeds[lo:hi],
                    processes=count,
                    step_timeout=step_timeout,
                    start_timeout=start_timeout,
                    agent=packed,
                    random_state=torch.get_rng_state().numpy().tobytes(),
                    options=options,
                )
                for number, (lo, hi) in enumerate(self._split)
            ]
        except BaseException:
            cluster.release()
            raise
        self._actors = CollectorActorPool(
            cluster, replace(actor_options, num_cpus=count), plans, max_restarts
        )
        self._finalizer = self._actors.register_finalizer(self)
        try:
            spaces, states = self._actors.start()
            self._set_spaces(spaces, state_dtype, channels_first, window)
            self.t_states = join_states(states, 0, self._layout, self.device)
        except BaseException:
            self.close()
            raise
        collectors = counted(num_collectors, "collector")
        each = "1 process" if count == 1 else f"{count} processes"
        logger.info("%s in %s of %s", counted(self.num_envs, "environment"), collectors, each)

    # -- rollouts ---------------------------------------------------------------------

    def rollout(self) -> None:
        """Play a rollout, or wait for the pending one, and store the results in attributes.

        After an interrupt, the next call waits for the same rollout. Errors close the collectors.

        Raises:
            EnvError: an environment failed; the message names the environment, its
                collector and its node.
            WorkerDiedError: a collector failed and no restarts are left.
            WorkerTimeoutError: a step exceeded ``step_timeout``, or a restarted collector did not
                start in time.
            ValueError: the agent's outputs are invalid, or some collectors have no action masks.
        """
        self.collect_async()
        self.drop_results()
        try:
            played = self._actors.wait_rollouts()
            self._set_results(played)
        except Exception:
            self.close()
            raise
        self._actors.next_turn()

    def collect_async(self) -> None:
        """Start the next rollout without waiting; :meth:`rollout` waits for it.

        The rollout uses the current weights. Meanwhile, you can train the agent on the previous
        rollout. The call does nothing if a rollout is already pending.

        Raises:
            ClosedVecEnvError: the collector is closed.
        """
        self._check_open()
        self._actors.play()

    def update_agent(self, state_dict: Mapping[str, Any] | None = None) -> None:
        """Send new weights to all agent copies; a pending rollout keeps the old weights.

        The weights are sent once to each machine.

        Args:
            state_dict: the weights; None for the weights of ``agent``.

        Raises:
            ClosedVecEnvError: the collector is closed.
            TypeError: the agent has no ``state_dict`` or no ``load_state_dict``.
            ValueError: a parameter is missing, unknown or of the wrong shape; the message names it.
        """
        self._check_open()
        if self._shapes is None:
            given = type(self.agent).__name__
            raise TypeError(
                f"update_agent: expected an agent with state_dict and load_state_dict, got {given}"
            )
        if state_dict is None:
            state_dict = self.agent.state_dict()  # type: ignore[attr-defined]  # it has one
        check_weights(state_dict, self._shapes)
        weights = {
            name: value.detach().cpu() if isinstance(value, torch.Tensor) else value
            for name, value in state_dict.items()
        }
        self._actors.update(dumps_for_worker(weights))

    def _check_open(self) -> None:
        if not self._finalizer.alive:
            raise ClosedVecEnvError(f"{type(self).__name__} is closed; create a new one")

    def _set_results(self, played: Sequence[Mapping[str, Any]]) -> None:
        """Store a rollout's results; after an interrupt, this can be repeated."""
        results = join_results(played, self._layout, self._reward_shape, self.device)
        lags = [self._actors.version - found["version"] for found in played]
        sizes = torch.tensor([hi - lo for lo, hi in self._split])
        lag = torch.tensor(lags, dtype=torch.int32).repeat_interleave(sizes)
        results["policy_lag"] = lag.expand(self.steps_per_env, -1).to(self.device)
        turns = self._actors.turn + 1
        results["global_steps"] = self._steps_before + turns * self.steps_per_env * self.num_envs
        statistics = merge_statistics([found["statistics"] for found in played])
        best = max_of([self.statistics.max_return, statistics["max_return"]])
        self.statistics.set_state({**statistics, "max_return": best})
        self.__dict__.update(results)

    # -- states -------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Save everything the collectors need to continue, except the agent and its optimizer.

        The dict has the format of
        :meth:`RolloutCollector.state_dict <xuance_envs.rollout.agent_loop.AgentLoop.state_dict>`,
        and also contains the generators of each collector and agent copy. Either class can load it.

        Raises:
            AlreadySteppingError: a rollout is pending; call :meth:`rollout` first.
            ClosedVecEnvError: the collector is closed.
            StateError: an environment's state cannot be saved; the message names the environment.
            WorkerDiedError: a collector failed and no restarts are left.
        """
        self._check_open()
        loop_state = LoopState.joined(self._actors.call_all("save", "state_dict"))
        best = self.statistics.max_return
        return replace(
            loop_state,
            # Of the episodes that are saved, which a restarted collector has just started.
            statistics={**loop_state.statistics, "max_return": best},
            global_steps=self.global_steps,
            generators=generators(self.device),
        ).to_dict()

    def load_state_dict(self, state: Mapping[str, Any], *, trusted: bool = False) -> None:
        """Continue from a saved state, with any number of collectors.

        With as many collectors as in the state, each collector restores its own generators, so
        stochastic policies continue identically. Otherwise, each collector derives its torch
        generator from the torch generator in the state, and the agent's own generators are not
        restored.

        Args:
            state: the result of :meth:`state_dict`, of this class or of
                :class:`~xuance_envs.rollout.collector.RolloutCollector`.
            trusted: True to allow environment states to contain classes of any module; see
                :meth:`~xuance_envs.state.env_states.EnvStates.from_bytes`.

        Raises:
            AlreadySteppingError: a rollout is pending; call :meth:`rollout` first.
            ClosedVecEnvError: the collector is closed.
            ValueError: the state has a different version or number of environments.
            StateError: the state cannot be read; nothing has changed.
            StateMismatchError: the state is from different environments; nothing has changed.
            WorkerDiedError: a collector failed and no restarts are left.
        """
        self._check_open()
        loop_state = self._read_state(state, trusted)
        before = self._actors.call_all("save", "load_state_dict")
        parts = loop_state.parts(self._split)
        try:
            self._actors.call_all("load", "load_state_dict", parts)
        except BaseException:
            self._actors.call_all("load", "load_state_dict", before)
            raise
        self.t_states = join_states([p.states for p in parts], 0, self._layout, self.device)
        self.statistics.set_state(loop_state.statistics)
        self.global_steps = loop_state.global_steps
        self._steps_before = loop_state.global_steps - self._actors.turn * (
            self.steps_per_env * self.num_envs
        )
        set_generators(loop_state.generators, self.device)

    def close(self) -> None:
        """Stop the collectors. Calling ``close`` again does nothing."""
        if self._finalizer.alive:
            self._actors.close()
        self._finalizer()
