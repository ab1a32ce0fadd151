"""Environments in the actors of a Ray cluster, each actor with a group of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from xuance_envs.engine.data.info_columns import INFO_BYTES
from xuance_envs.engine.group.recipe import Recipe
from xuance_envs.engine.group.single_env import common_description
from xuance_envs.engine.groups import Describe, WorkerGroups
from xuance_envs.engine.ray.actor import ActorPlan
from xuance_envs.engine.ray.actor_assignment import (
    ActorAssignment,
    one_actor_per_node,
    one_actor_per_worker,
)
from xuance_envs.engine.ray.actor_client import ActorSettings
from xuance_envs.engine.ray.cluster import ActorOptions, RayCluster
from xuance_envs.engine.ray.ray_backend import RayBackend
from xuance_envs.vector_envs.arguments import (
    checked_info_bytes,
    checked_positive,
    checked_recipe,
    checked_restarts,
    split_envs,
)
from xuance_envs.vector_envs.grouped import GroupedVecEnv

__all__ = ["RayVecEnv_Gym", "start_actors"]

logger = logging.getLogger("xuance_envs")


class RayVecEnv_Gym(GroupedVecEnv):
    """Many environments on the machines of a Ray cluster.

    Workers step a group of environments each. A machine's workers are processes of one actor,
    which share memory with it, or each is an actor of its own. A vector step is one request and
    one reply per actor, with the actions, observations, rewards, flags and infos as raw arrays,
    over a connection between this process and the actor.
    Trajectories are the same, bit for bit, as those of
    :class:`~xuance_envs.vector_envs.dummy_vec_env.DummyVecEnv`, for environments that keep to
    their own random generators.

    A connection to Ray that this process has already is used, and left alone. Otherwise one is
    made, which ends when the last vector environment that uses it is closed.

    Args:
        env_fns: callables that make one environment each, in the actor where it will live. What
            is defined in ``__main__`` reaches it by value; modules have to be there.
        in_series: environments per worker. ``"auto"`` makes as many workers as the cluster has
            room for, and splits the environments evenly.
        env_seed: if given, callable i is called with ``env_seed=env_seed + i``, and without
            arguments otherwise.
        actors: ``"machine"`` makes one actor for each machine, with as many workers in a row as it
            has room for, in processes of their own; ``"core"`` an actor for each worker. ``"auto"``
            takes machines where several workers would share one and Ray is left to choose nodes.
        num_cpus_per_worker: CPUs a worker takes of the cluster, also a part of one; an actor takes
            what its workers do.
        resources: what else a worker takes, by Ray's names for it: ``{"GPU": 0.5}``, or custom
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
        info_bytes: room for the arrays in each environment's info, in bytes; what does not find
            any is pickled, at every step.

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
        actors: str = "auto",
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
        info_bytes: int = INFO_BYTES,
    ) -> None:
        groups = start_actors(
            checked_recipe(env_fns, env_seed),
            in_series=in_series,
            actors=actors,
            num_cpus_per_worker=num_cpus_per_worker,
            resources=resources,
            runtime_env=runtime_env,
            scheduling_strategy=scheduling_strategy,
            address=address,
            step_timeout=step_timeout,
            start_timeout=start_timeout,
            on_worker_failure=on_worker_failure,
            max_restarts=max_restarts,
            restart_on_exception=restart_on_exception,
            worker_threads=worker_threads,
            info_bytes=info_bytes,
        )
        super().__init__(groups, copy=copy, check_actions=check_actions)


def start_actors(  # noqa: D417  # the class says what the others are
    recipe: Recipe,
    *,
    in_series: int | str = "auto",
    actors: str = "auto",
    num_cpus_per_worker: float = 1.0,
    resources: Mapping[str, float] | None = None,
    runtime_env: Mapping[str, Any] | None = None,
    scheduling_strategy: Any = "SPREAD",
    address: str | None = None,
    step_timeout: float | None = None,
    start_timeout: float | None = 120.0,
    on_worker_failure: str = "raise",
    max_restarts: int | None = 100,
    restart_on_exception: bool = False,
    worker_threads: int | None = 1,
    info_bytes: int = INFO_BYTES,
    describe: Describe = common_description,
) -> WorkerGroups:
    """Starts actors, which make their environments.

    What is not said here is as for :class:`RayVecEnv_Gym`.

    Args:
        recipe: what they are made from, and when they are reset.
        describe: makes one description of the environments'.
    """
    checked_positive(
        worker_threads=worker_threads, step_timeout=step_timeout, start_timeout=start_timeout
    )
    info_bytes = checked_info_bytes(info_bytes)
    restarts = checked_restarts(
        on_worker_failure, max_restarts, restart_on_exception, resumes=False
    )
    if not num_cpus_per_worker >= 0:
        raise ValueError(f"num_cpus_per_worker: expected at least 0, got {num_cpus_per_worker!r}")
    if actors not in ("auto", "machine", "core"):
        raise ValueError(f"actors: expected 'auto', 'machine' or 'core', got {actors!r}")
    if in_series != "auto":
        split_envs(len(recipe), in_series, 1)  # a wrong one is told before Ray is started
    options = ActorOptions(
        num_cpus_per_worker, dict(resources or {}), runtime_env, scheduling_strategy
    )
    cluster = RayCluster(address, runtime_env)
    try:
        by_core = actors == "core" or (actors == "auto" and not options.spreads)
        if in_series == "auto" or not by_core:
            cluster.wait_until_idle(options)
        free = cluster.free_workers(options) if in_series == "auto" else 1
        split = split_envs(len(recipe), in_series, free)
        placed = None if by_core else _actor_shares(cluster, options, len(split), actors)
    except BaseException:
        cluster.release()
        raise
    settings = ActorSettings(cluster, options, len(split), step_timeout, start_timeout)
    plan = ActorPlan(
        (),
        in_processes=placed is not None,
        threads=worker_threads,
        timeout=step_timeout,
        start_timeout=start_timeout,
        restarts=restarts is not None,
        info_bytes=info_bytes,
    )
    backend = RayBackend(
        settings,
        plan,
        placed or one_actor_per_worker(len(split)),
        split,
        recipe,
        info_bytes,
    )
    groups = WorkerGroups(backend, None, describe, restarts)
    places = [actor.place for actor in backend.actors]
    by_calls = (
        ""
        if cluster.direct_connection_obstacle is None
        else f", asked by Ray's calls: {cluster.direct_connection_obstacle}"
    )
    logger.info(
        "%d environments in %d workers of %d Ray actors on %d nodes%s",
        len(recipe),
        len(split),
        len(places),
        len({node for _, node in filter(None, places)}),
        by_calls,
    )
    return groups


def _actor_shares(
    cluster: RayCluster, options: ActorOptions, workers: int, actors: str
) -> list[ActorAssignment] | None:
    """The actors of machines; None where each worker is to be an actor of its own."""
    placed = one_actor_per_node(workers, cluster.capacities(options))
    if actors == "auto" and len(placed) == workers:
        return None
    return placed if options.spreads else [replace(share, node=None) for share in placed]
