"""Environments in the actors of a Ray cluster, each actor with a group of them."""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from xuance_envs.engine.driver import Driver
from xuance_envs.engine.ray_cluster import ActorOptions, RayCluster
from xuance_envs.engine.ray_worker import ActorSettings, RayWorker, end_actors
from xuance_envs.engine.ray_workers import ActorWaiter, RayWorkers
from xuance_envs.engine.restarts import RestartingWorker, Restarts
from xuance_envs.engine.single_env import common_description
from xuance_envs.engine.step_arrays import StepArrays
from xuance_envs.vector_envs.arguments import (
    checked_functions,
    checked_positive,
    checked_restarts,
    shares,
)
from xuance_envs.vector_envs.vector_env import VecEnv

__all__ = ["RayVecEnv_Gym"]

logger = logging.getLogger("xuance_envs")


HURRY = 1.0
"""Seconds the actors have to close their environments when nobody asked them to: after Ctrl-C, at
the interpreter's exit, or when they are forgotten."""


class RayVecEnv_Gym(VecEnv):
    """Many environments on the machines of a Ray cluster.

    Each actor steps a group of environments. A vector step is one call and one reply per actor,
    with the actions, observations, rewards, flags and numeric infos as raw arrays. Trajectories
    are the same, bit for bit, as those of
    :class:`~xuance_envs.vector_envs.dummy_vec_env.DummyVecEnv`, for environments that keep to
    their own random generators.

    A connection to Ray that this process has already is used, and left alone. Otherwise one is
    made, which ends when the last vector environment that uses it is closed.

    Args:
        env_fns: callables that make one environment each, in the actor where it will live. What
            is defined in ``__main__`` reaches it by value; modules have to be there.
        in_series: environments per actor. ``"auto"`` makes as many actors as the cluster has
            room for, and splits the environments evenly.
        env_seed: if given, callable i is called with ``env_seed=env_seed + i``, and without
            arguments otherwise.
        num_cpus_per_worker: CPUs an actor takes of the cluster, also a part of one.
        resources: what else an actor takes, by Ray's names for it: ``{"GPU": 0.5}``, or custom
            resources.
        runtime_env: the code and variables an actor needs, as Ray describes them. Folders of this
            machine may be in it where the connection is made here; otherwise they have to be
            given to :func:`ray.init`.
        scheduling_strategy: how Ray spreads the actors over the nodes: ``"SPREAD"``,
            ``"DEFAULT"``, or one of Ray's objects, such as one for a placement group.
        address: where to connect to, as :func:`ray.init` takes it, if there is no connection.
        copy: whether the arrays returned belong to the caller; otherwise they are read-only
            views that the next step overwrites.
        step_timeout: seconds an actor has to answer anything; None lets it take any time.
        start_timeout: seconds until the actors have to have made their environments; None for
            any time. One for which the cluster has no room is not started before there is.
        on_worker_failure: what happens when an actor is lost, by itself or with its node, or
            takes too long. ``"raise"`` raises an error and closes; with ``"restart"`` another
            actor takes its place, on any node with room for it, and the step in which it was lost
            truncates the episodes of its environments: reward 0, the last known observation,
            ``infos[i]["worker_restarted"]``.
        max_restarts: how many restarts there may be in all, before a failure raises; None for
            any number.
        restart_on_exception: whether an exception in an environment's ``step`` or ``reset`` is
            a failure of that kind, too.
        worker_threads: threads torch and OpenCV may use in each actor; None leaves them alone.
            Those of BLAS and OpenMP are limited by Ray, to ``num_cpus_per_worker``.
        check_actions: whether every action is checked to be in its space.

    Raises:
        ImportError: Ray is not installed.
        ConnectionError: there is no cluster at the address.
        EnvError: a callable raised, or what it returned is no environment, or an actor cannot
            import what it needs.
        ValueError: there is no callable, two of them returned the same object, or an argument
            is out of its range.
        TypeError: a callable cannot be pickled.
        RuntimeError: the environments' spaces differ.
        WorkerDiedError: an actor was lost while it made its environments.
        WorkerTimeoutError: an actor took longer than ``start_timeout``; if the cluster has no
            room for it, it says what is needed and what there is.

    Example:
        >>> import gymnasium
        >>> from xuance_envs import RayVecEnv_Gym
        >>> with RayVecEnv_Gym([lambda: gymnasium.make("CartPole-v1")] * 4) as envs:
        ...     obs, infos = envs.reset(seed=0)
        ...     obs, rewards, terminated, truncated, infos = envs.step([0, 1, 0, 1])
        >>> obs.shape, rewards
        ((4, 4), array([1., 1., 1., 1.], dtype=float32))
    """

    def __init__(
        self,
        env_fns: Iterable[Callable[..., Any]],
        in_series: int | str = "auto",
        *,
        env_seed: int | None = None,
        num_cpus_per_worker: float = 1.0,
        resources: Mapping[str, float] | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        scheduling_strategy: Any = "SPREAD",
        address: str | None = None,
        copy: bool = True,
        step_timeout: float | None = None,
        start_timeout: float | None = 120.0,
        on_worker_failure: str = "raise",
        max_restarts: int | None = 100,
        restart_on_exception: bool = False,
        worker_threads: int | None = 1,
        check_actions: bool = False,
    ) -> None:
        functions, keywords = checked_functions(env_fns, env_seed)
        checked_positive(
            worker_threads=worker_threads, step_timeout=step_timeout, start_timeout=start_timeout
        )
        restarts = checked_restarts(on_worker_failure, max_restarts, restart_on_exception)
        if not num_cpus_per_worker >= 0:
            raise ValueError(
                f"num_cpus_per_worker: expected at least 0, got {num_cpus_per_worker!r}"
            )
        if in_series != "auto":
            shares(len(functions), in_series, 1)  # a wrong one is told before Ray is started
        options = ActorOptions(
            num_cpus_per_worker, dict(resources or {}), runtime_env, scheduling_strategy
        )
        cluster = self._cluster = RayCluster(address, runtime_env)
        workers = self._workers = list[RayWorker]()
        # Not __del__: this also runs at the interpreter's exit.
        self._end = weakref.finalize(self, _end, cluster, workers)
        try:
            free = cluster.free_workers(options) if in_series == "auto" else 1
            split = shares(len(functions), in_series, free)
            settings = ActorSettings(
                cluster, options, len(split), worker_threads, step_timeout, start_timeout
            )
            crew = RayWorkers(settings, split, functions, keywords, workers)
            crew.start()
            crew.build()
            description = common_description(crew.descriptions())
            spaces = description.observation_space, description.action_space
            arrays = StepArrays.allocate(*spaces, len(functions))
            crew.attach(spaces, arrays)
        except BaseException:
            self._end()
            raise
        super().__init__(
            _drivers_of(crew, keywords, arrays, restarts),
            description,
            arrays,
            copy=copy,
            check_actions=check_actions,
            waiter=ActorWaiter(crew, settings),
        )
        nodes = {worker.place[1] for worker in workers if worker.place is not None}
        logger.info(
            "%d environments in %d Ray actors on %d nodes", self.num_envs, len(workers), len(nodes)
        )

    def _leave_to(self, owner: int) -> None:
        super()._leave_to(owner)
        self._end.detach()

    def close_extras(self) -> None:
        """See :class:`~xuance_envs.vector_envs.vector_env.VecEnv`."""
        try:
            if not isinstance(sys.exc_info()[1], KeyboardInterrupt):
                end_actors(self._cluster, self._workers)
        finally:
            self._end()


def _drivers_of(
    crew: RayWorkers,
    keywords: Sequence[Mapping[str, Any]],
    arrays: StepArrays,
    restarts: Restarts | None,
) -> list[Driver]:
    if restarts is None:
        return [*crew.processes]
    return [
        RestartingWorker(
            crew,
            index,
            keywords[worker.lo : worker.hi],
            arrays.slice(worker.lo, worker.hi),
            restarts,
        )
        for index, worker in enumerate(crew.processes)
    ]


def _end(cluster: RayCluster, workers: list[RayWorker]) -> None:
    try:
        end_actors(cluster, workers, HURRY)
    finally:
        cluster.release()
