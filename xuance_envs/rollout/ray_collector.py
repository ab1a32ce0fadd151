"""Rollouts played where the environments are: collectors on the machines of a Ray cluster."""

from __future__ import annotations

import copy
import logging
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from gymnasium import Space

from xuance_envs.engine.ray.cluster import ActorOptions, LostError, RayCluster
from xuance_envs.engine.serialization import dumps_for_worker, unpack_error
from xuance_envs.errors import ClosedVecEnvError, WorkerDiedError, WorkerTimeoutError
from xuance_envs.rollout.agents import ActionLayout, Agent, device_of
from xuance_envs.rollout.collecting import STACKED, CollectingActor, CollectorPlan
from xuance_envs.rollout.episode_statistics import EpisodeFigures, EpisodeStatistics
from xuance_envs.rollout.results import RolloutResults
from xuance_envs.rollout.states import StateLayout
from xuance_envs.rollout.transfer import Transfer
from xuance_envs.vector_envs.arguments import (
    checked_functions,
    checked_positive,
    seeds_of,
    shares,
)

__all__ = ["RayRolloutCollector"]

logger = logging.getLogger("xuance_envs")

PATIENCE = 5.0
"""Seconds collectors have to close their environments before they are killed."""

C = TypeVar("C", bound="RayRolloutCollector")


class _ClusterCollector(CollectingActor):
    """A collector in a Ray actor."""

    def spaces(self) -> tuple[Space[Any], Space[Any]]:
        """Of one environment: of observations and of actions."""
        assert self._collector is not None
        return self._collector.state_space, self._collector.action_space

    def _where(self) -> str:
        import ray

        context = ray.get_runtime_context()
        return f"node {ray.util.get_node_ip_address()} (id {context.get_node_id()})"


class RayRolloutCollector(RolloutResults, EpisodeFigures):
    """Has copies of an agent play on the machines of a Ray cluster, and keeps what happens.

    Each collector is an actor with environments of its own and a copy of the agent; its
    environments are in worker processes, which share memory with it, or where it has one CPU in
    its own. What crosses the network is a rollout at a time, and the agent's weights. The
    collectors have consecutive environments, and the tensors are those of
    :class:`~xuance_envs.rollout.collector.RolloutCollector` over all of them: with an agent that
    does not draw, and answers for a state whatever stands beside it, bit for bit, for any number
    of collectors.

    Generators are told apart: collector 0 begins with the caller's state of torch's generator and
    with the generators of torch and NumPy among the agent's attributes as they are; the others
    begin with ones derived from these and their number.

    A collector that is lost is made anew, with new seeds and the current weights, and plays the
    rollout that it owed; its environments begin new episodes.

    Args:
        env_fns: callables that make one environment each, or one of them and ``num_envs``. What is
            defined in ``__main__`` travels by value; modules have to be there.
        agent: what is copied; see :class:`~xuance_envs.rollout.agents.Agent`. It has to be
            picklable, and with ``state_dict`` and ``load_state_dict`` to be given other weights.
        num_collectors: how many.
        steps_per_env: steps of each environment in a rollout.
        num_envs: how many environments one callable makes.
        processes: CPUs that each collector asks for, and processes its environments are in;
            ``"auto"`` for its share of the cluster's CPUs, but no more than environments.
        seed: of the first reset: environment i of all gets ``seed + i``.
        device: where the tensors are; None for the agent's own.
        state_dtype: see :class:`~xuance_envs.rollout.collector.RolloutCollector`, here and below.
        channels_first: whether images become (C, H, W).
        window: how many finished episodes of each environment the statistics are about.
        halves: whether environments step in halves in each collector.
        env_seed: if given, callable i is called with ``env_seed=env_seed + i``.
        resources: what else a collector takes, by Ray's names for it.
        runtime_env: the code and variables a collector needs, as Ray describes them.
        scheduling_strategy: how Ray spreads the collectors over the nodes.
        address: where to connect to, as :func:`ray.init` takes it, if there is no connection.
        start_timeout: seconds until the collectors have to be there; None for any time.
        max_restarts: how many lost collectors may be made anew in all; None for any number.

    Raises:
        ImportError: Ray is not installed.
        ValueError: an argument is out of its range.
        EnvError: a callable raised, or what it returned is no environment.
        WorkerTimeoutError: a collector was not there in time, as where there is no room for it.

    Attributes:
        policy_lag (torch.Tensor): ``(T, N)`` int32, by how many calls of :meth:`update_agent` the
            policy that acted was behind when the rollout was taken.
        global_steps (int): environment steps of the rollouts that were taken.

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
        processes: int | str = "auto",
        seed: int | Sequence[int | None] | None = None,
        device: torch.device | str | None = None,
        state_dtype: torch.dtype = torch.float32,
        channels_first: bool | str = "auto",
        window: int = 10,
        halves: int | str = 1,
        env_seed: int | None = None,
        resources: Mapping[str, float] | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        scheduling_strategy: Any = "SPREAD",
        address: str | None = None,
        start_timeout: float | None = 120.0,
        max_restarts: int | None = 100,
    ) -> None:
        functions, keywords = checked_functions(_functions(env_fns, num_envs), env_seed)
        if not 1 <= num_collectors <= len(functions):
            raise ValueError(
                f"num_collectors: expected from 1 to {len(functions)}, for so many environments "
                f"there are, got {num_collectors}"
            )
        if steps_per_env < 1:
            raise ValueError(f"steps_per_env: expected at least 1, got {steps_per_env}")
        if processes != "auto" and not (isinstance(processes, int) and processes >= 1):
            raise ValueError(f"processes: expected 'auto' or at least 1, got {processes!r}")
        checked_positive(start_timeout=start_timeout)
        self.agent = agent
        self.num_envs = len(functions)
        self.num_collectors = num_collectors
        self.steps_per_env = steps_per_env
        self.device = device_of(agent, device)
        self.global_steps = 0
        self.statistics = EpisodeStatistics(self.num_envs, window)
        self._split = shares(self.num_envs, "auto", num_collectors)
        self._start_timeout = start_timeout
        self._restarts_left = max_restarts
        self._version = 0
        self._shapes = _shapes_of(agent)
        seeds = seeds_of(seed, range(self.num_envs))
        makers = [partial(f, **k) if k else f for f, k in zip(functions, keywords, strict=True)]
        options = {
            **{"state_dtype": state_dtype, "channels_first": channels_first},
            **{"steps_per_env": steps_per_env, "window": window, "halves": halves},
        }
        packed = dumps_for_worker(_on_cpu(agent))
        self._cluster = RayCluster(address, runtime_env)
        try:
            if processes == "auto":
                processes = self._cluster.cpus() // num_collectors
            size = min(hi - lo for lo, hi in self._split)
            count = max(1, min(int(processes), size))
            self._plans = [
                CollectorPlan(
                    number,
                    lo,
                    dumps_for_worker(makers[lo:hi]),
                    None if seed is None else seeds[lo:hi],
                    count,
                    packed,
                    None,
                    torch.get_rng_state().numpy().tobytes(),
                    0,
                    options,
                )
                for number, (lo, hi) in enumerate(self._split)
            ]
        except BaseException:
            self._cluster.release()
            raise
        self._options = ActorOptions(count, dict(resources or {}), runtime_env, scheduling_strategy)
        self._actors: list[Any] = []
        # Of the rollout that is being played: by collector, what to get it by, and the version of
        # the weights that it is played with.
        self._pending: dict[int, tuple[Any, int]] = {}
        self._played: dict[int, tuple[Any, int]] = {}
        self._updates: dict[int, Any] = {}
        self._end = weakref.finalize(self, _end, self._cluster, self._actors, os.getpid())
        try:
            self._actors.extend(map(self._start, self._plans))
            calls = [self._cluster.call(actor.build) for actor in self._actors]
            for number, call in enumerate(calls):
                self._get(number, call, self._start_timeout, "construct")
            spaces = self._cluster.get(self._cluster.call(self._actors[0].spaces), None)
            self.state_space, self.action_space = spaces
            self._layout = StateLayout(
                self.state_space, state_dtype, channels_first, Transfer(self.device)
            )
            self._action_layout = ActionLayout(self.action_space)
            self.state_shape: Any = self._layout.shape
            self.action_dtype = self._action_layout.dtype
        except BaseException:
            self.close()
            raise
        logger.info(
            "%d environments in %d collectors of %d processes each",
            *(self.num_envs, num_collectors, count),
        )

    # -- rollouts ---------------------------------------------------------------------

    def rollout(self) -> None:
        """Plays a rollout, or takes the one that is being played; see the attributes.

        After an interrupt the next call takes it.

        Raises:
            EnvError: an environment failed; says which, in which collector, and where.
            WorkerDiedError: a collector was lost, and there may be no more restarts.
            ValueError: the agent's answer is not in order.
        """
        self.collect_async()
        self.drop_results()
        while len(self._played) < self.num_collectors:
            number = next(k for k in range(self.num_collectors) if k not in self._played)
            ref, version = self._pending[number]
            try:
                found = self._get(number, ref, None, "rollout")
            except LostError as error:
                self._replace(number, error)
                continue
            except Exception:
                self.close()
                raise
            self._played[number] = found, version
        played = [self._played[number] for number in range(self.num_collectors)]
        self._show([found for found, _ in played], [version for _, version in played])
        self._pending, self._played = {}, {}

    def collect_async(self) -> None:
        """Has the next rollout played, and does not wait for it: :meth:`rollout` takes it.

        Meanwhile one may learn from the last. It is played with the weights there are now. While
        one is being played, this does nothing.

        Raises:
            ClosedVecEnvError: it is closed.
        """
        if not self._end.alive:
            raise ClosedVecEnvError(f"{type(self).__name__} is closed; make another one")
        self._settle_updates()
        for number, actor in enumerate(self._actors):
            if number not in self._pending:
                self._pending[number] = self._cluster.call(actor.rollout), self._version

    def update_agent(self, state_dict: Mapping[str, Any] | None = None) -> None:
        """Gives all copies of the agent other weights; a rollout being played goes on with its own.

        They are sent once to each machine.

        Args:
            state_dict: the weights; None for those of ``agent``.

        Raises:
            TypeError: the agent has no ``state_dict``.
            ValueError: a parameter is missing, unknown, or of another shape; says which.
        """
        if self._shapes is None:
            raise TypeError(
                f"update_agent: expected an agent with state_dict and load_state_dict, got "
                f"{type(self.agent).__name__}"
            )
        if state_dict is None:
            state_dict = self.agent.state_dict()  # type: ignore[attr-defined]  # it has one
        _check_weights(state_dict, self._shapes)
        packed = dumps_for_worker(
            {
                name: value.detach().cpu() if isinstance(value, torch.Tensor) else value
                for name, value in state_dict.items()
            }
        )
        self._plans = [replace(plan, weights=packed) for plan in self._plans]
        self._version += 1
        there = self._cluster.put(packed)
        for number, actor in enumerate(self._actors):  # it comes behind what they are playing
            self._updates[number] = self._cluster.call(actor.update, there)
        self._settle_updates()

    def _settle_updates(self) -> None:
        """Sees that the copies have their weights, unless they are playing."""
        while self._updates and not self._pending:
            number, ref = next(iter(self._updates.items()))
            with suppress(LostError):  # another one begins with them
                self._get(number, ref, None, "update")
            del self._updates[number]

    def _show(self, played: Sequence[Mapping[str, Any]], versions: Sequence[int]) -> None:
        def joined(arrays: Iterable[Any], dim: int) -> torch.Tensor:
            whole = torch.from_numpy(np.concatenate(list(arrays), dim))
            return whole.to(self.device)

        def states(name: str, dim: int) -> list[torch.Tensor]:
            by_part = zip(*(found[name] for found in played), strict=True)
            return [joined(parts, dim) for parts in by_part]

        for name in STACKED:
            setattr(self, name, joined((found[name] for found in played), 1))
        self.states = self._layout.whole(
            [part.requires_grad_(part.is_floating_point()) for part in states("states", 1)]
        )
        self.t_states = self._layout.whole(states("t_states", 0))
        self.end_states = self._layout.whole(states("end_states", 0))
        self.action_masks = None
        if all(found["action_masks"] is not None for found in played):
            self.action_masks = joined((found["action_masks"] for found in played), 1)
        self.ep_counts = joined((found["ep_counts"] for found in played), 0)
        rewards = np.concatenate([found["rewards"] for found in played], 1)
        self.total_return = np.float32(rewards.sum(dtype=np.float64))
        lags = [self._version - version for version in versions]
        sizes = torch.tensor([hi - lo for lo, hi in self._split])
        lag = torch.tensor(lags, dtype=torch.int32).repeat_interleave(sizes)
        self.policy_lag = lag.expand(self.steps_per_env, -1).to(self.device)
        self.global_steps += self.steps_per_env * self.num_envs
        self.statistics.take(
            [returns for found in played for returns in found["returns"]],
            [lengths for found in played for lengths in found["lengths"]],
            [
                (step, lo + env, score)
                for found, (lo, _) in zip(played, self._split, strict=True)
                for step, env, score in found["finished"]
            ],
        )

    # -- collectors -------------------------------------------------------------------

    def _start(self, plan: CollectorPlan) -> Any:
        return self._cluster.start(_ClusterCollector, self._options, plan)

    def _get(self, number: int, ref: Any, seconds: float | None, command: str) -> Any:
        """What a collector answered.

        Raises:
            LostError: it is lost.
            WorkerTimeoutError: it did not in so many seconds.
            Exception: what it raised.
        """
        try:
            well, found = self._cluster.get(ref, seconds)
        except TimeoutError:
            taken = self._cluster.shortage(self._options, self.num_collectors)
            details = f"It is collector {number}. All of them take {taken}"
            assert seconds is not None
            raise WorkerTimeoutError(
                range(*self._split[number]), None, seconds, command, details
            ) from None
        except LostError as error:
            if command == "construct":
                raise self._died(number, error, command) from None
            raise
        if not well:
            raise unpack_error(found)
        return found

    def _died(self, number: int, error: LostError, command: str) -> WorkerDiedError:
        details = f"It was collector {number}. Ray says:\n{error}"
        return WorkerDiedError(range(*self._split[number]), None, None, command, details)

    def _replace(self, number: int, error: LostError) -> None:
        """Makes a lost collector anew, and has it play the rollout that it owes.

        Raises:
            WorkerDiedError: there may be no more restarts.
        """
        if self._restarts_left is not None:
            if not self._restarts_left:
                self.close()
                died = self._died(number, error, "rollout")
                died.details += "\nno restart is left: max_restarts have been made"
                raise died from None
            self._restarts_left -= 1
        logger.warning("collector %d is made anew: %s", number, str(error).partition("\n")[0])
        plan = self._plans[number]
        lives = plan.lives + 1
        seeds = plan.seeds and [_derived(seed, lives) for seed in plan.seeds]
        plan = self._plans[number] = replace(plan, seeds=seeds, lives=lives)
        self._cluster.kill(self._actors[number])
        actor = self._actors[number] = self._start(plan)
        self._get(number, self._cluster.call(actor.build), self._start_timeout, "construct")
        self._pending[number] = self._cluster.call(actor.rollout), self._version

    def permute_state(self, state: Any) -> Any:
        """See :meth:`~xuance_envs.rollout.agent_loop.AgentLoop.permute_state`."""
        return self._layout.permute(state)

    def close(self) -> None:
        """Ends the collectors; again, it does nothing."""
        if self._end.alive and self._cluster.alive:
            calls = [self._cluster.call(actor.close) for actor in self._actors]
            if calls and not self._pending:
                self._cluster.wait(calls, len(calls), PATIENCE)
        self._end()

    def __enter__(self: C) -> C:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _end(cluster: RayCluster, actors: list[Any], owner: int) -> None:
    if os.getpid() != owner:
        return  # forked from it
    try:
        while actors:
            cluster.kill(actors.pop())
    finally:
        cluster.release()


def _functions(
    env_fns: Callable[..., Any] | Iterable[Callable[..., Any]], num_envs: int | None
) -> Iterable[Callable[..., Any]]:
    if callable(env_fns):
        if num_envs is None or num_envs < 1:
            raise ValueError(
                f"num_envs: expected how many environments the callable is to make, got {num_envs}"
            )
        return [env_fns] * num_envs
    if num_envs is not None:
        raise ValueError("num_envs: expected None where there is a callable for each environment")
    return env_fns


def _on_cpu(agent: Any) -> Any:
    """The agent, or a copy whose parameters any machine has room for."""
    if isinstance(agent, torch.nn.Module) and any(
        tensor.device.type != "cpu" for tensor in agent.state_dict().values()
    ):
        return copy.deepcopy(agent).cpu()
    return agent


def _shapes_of(agent: Any) -> dict[str, Any] | None:
    state_dict = getattr(agent, "state_dict", None)
    if not callable(state_dict) or not callable(getattr(agent, "load_state_dict", None)):
        return None
    return {name: getattr(value, "shape", None) for name, value in state_dict().items()}


def _check_weights(state_dict: Mapping[str, Any], shapes: Mapping[str, Any]) -> None:
    for name, shape in shapes.items():
        if name not in state_dict:
            raise ValueError(f"update_agent: expected parameter {name!r}, which is missing")
        got = getattr(state_dict[name], "shape", None)
        if got != shape:
            told = [None if s is None else tuple(s) for s in (shape, got)]
            raise ValueError(
                f"update_agent: parameter {name!r}: expected shape {told[0]}, got {told[1]}"
            )
    for name in state_dict:
        if name not in shapes:
            raise ValueError(f"update_agent: got parameter {name!r}, which the agent does not have")


def _derived(seed: int | None, lives: int) -> int | None:
    """A new seed: with the old one, a crash that follows from it would come for ever."""
    if seed is None:
        return None
    return int(np.random.SeedSequence((seed % 2**64, lives)).generate_state(1)[0])
