"""Vectorized environments on Ray clusters."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from xuance_envs._override import Unpack
from xuance_envs.engine.group.recipe import Recipe
from xuance_envs.engine.group.single_env import common_description
from xuance_envs.engine.groups import Describe, WorkerGroups
from xuance_envs.engine.ray.cluster import ActorOptions, RayCluster
from xuance_envs.engine.ray.hosting import ActorPlan
from xuance_envs.engine.ray.ray_backend import (
    ActorAssignment,
    RayBackend,
    one_actor_per_node,
)
from xuance_envs.errors import counted
from xuance_envs.vector_envs.arguments import checked_recipe
from xuance_envs.vector_envs.grouped import GroupedVecEnv
from xuance_envs.vector_envs.options import InSeries, RayOptions
from xuance_envs.vector_envs.signatures import with_options
from xuance_envs.vector_envs.worker_settings import RaySettings

__all__ = ["RayVecEnv", "RayVecEnv_Gym", "start_actors"]

logger = logging.getLogger("xuance_envs")


@with_options(RayOptions, RaySettings, GroupedVecEnv)
class RayVecEnv_Gym(GroupedVecEnv):
    """Vectorized environment on the nodes of a Ray cluster, also named ``RayVecEnv``.

    Each worker steps a group of environments. A Ray actor hosts either a single worker or all
    workers of a node; the latter are processes that share memory with the actor. Each vector step
    sends one request and receives one reply per actor, as raw arrays over a direct connection.

    If this process is connected to Ray already, that connection is used and stays open. Otherwise,
    a connection is opened. It is closed with the last vectorized environment that uses it.

    Args:
        env_fns: callables that create one environment each, in its actor. Objects defined in
            ``__main__`` are sent by value; modules must be importable on the nodes.
        in_series: environments per worker. ``"auto"`` starts as many workers as the cluster has
            room for and splits the environments evenly.
        num_workers: number of workers, at most one per environment; environments are split evenly.
            At most one of ``in_series``, ``num_workers`` and ``envs_per_worker`` may be given.
        actors: ``"machine"`` starts one actor per node, with as many worker processes as the node
            has room for. ``"core"`` starts one actor per worker. ``"auto"`` uses ``"machine"`` if
            several workers would share a node and ``scheduling_strategy`` lets Ray choose nodes.
        num_cpus_per_worker: CPUs that each worker reserves, possibly a fraction. An actor reserves
            the CPUs of all its workers.
        resources: further resources per worker, such as ``{"GPU": 0.5}`` or custom resources.
        runtime_env: Ray runtime environment of the actors. Local folders are allowed only if this
            vectorized environment opens the connection; otherwise pass them to :func:`ray.init`.
        scheduling_strategy: distribution of actors over nodes: ``"SPREAD"``, ``"DEFAULT"``, or
            a Ray scheduling strategy object, for example for a placement group.
        address: address for :func:`ray.init`, if this process is not connected yet.
        step_timeout: seconds a worker may take to answer a command; None for no limit.
        start_timeout: seconds the actors may take to create their environments; None for no limit.
            The limit includes the wait for free cluster resources.
        on_worker_failure: response if a worker, its actor or its node fails, or the worker exceeds
            ``step_timeout``. ``"raise"`` raises an error and closes the vec env. ``"restart"``
            starts a new worker process, or a new actor on any node with room for it. The failed
            step truncates the episodes of the failed workers' environments: reward 0, the last
            known observation, and ``"worker_restarted"`` in the infos.
        worker_threads: threads that torch and OpenCV may use in each worker; None to keep their
            settings. The limit also applies to BLAS and OpenMP if the actor has worker processes.
            Otherwise, Ray limits BLAS and OpenMP to ``num_cpus_per_worker``.

    Raises:
        ImportError: Ray is not installed.
        ConnectionError: no cluster runs at ``address``.
        EnvError: a callable raised or did not return an environment, or an actor lacks a module.
        ValueError: ``env_fns`` is empty, two callables returned the same object, or an argument is
            out of range.
        TypeError: an entry of ``env_fns`` is not callable, does not accept ``env_seed``, or cannot
            be pickled.
        RuntimeError: the environments' spaces differ.
        WorkerDiedError: an actor failed while it created its environments.
        WorkerTimeoutError: an actor exceeded ``start_timeout``. If the cluster lacks resources, the
            message lists the required and available resources.

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
        in_series: InSeries = "auto",
        *,
        env_seed: int | None = None,
        copy: bool = True,
        check_actions: bool = False,
        **options: Unpack[RayOptions],
    ) -> None:
        settings = RaySettings(in_series=in_series, **options)
        groups = start_actors(checked_recipe(env_fns, env_seed), settings)
        super().__init__(groups, copy=copy, check_actions=check_actions)


RayVecEnv = RayVecEnv_Gym


def start_actors(
    recipe: Recipe, settings: RaySettings, describe: Describe = common_description
) -> WorkerGroups:
    """Start actors, which create their environments."""
    automatic = settings.is_split_automatically
    if not automatic:
        settings.split(len(recipe), 1)  # validate before Ray is started
    options = ActorOptions(
        settings.num_cpus_per_worker,
        dict(settings.resources or {}),
        settings.runtime_env,
        settings.scheduling_strategy,
    )
    cluster = RayCluster(settings.address, settings.runtime_env)
    try:
        actors = settings.actors
        per_worker = actors == "core" or (actors == "auto" and not options.spreads)
        if automatic or not per_worker:
            cluster.wait_until_idle(options)
        free = cluster.free_workers(options) if automatic else 1
        split = settings.split(len(recipe), free)
        placed = None if per_worker else _actor_shares(cluster, options, len(split), actors)
    except BaseException:
        cluster.release()
        raise
    plan = ActorPlan(
        (),
        in_processes=placed is not None,
        threads=settings.worker_threads,
        timeout=settings.step_timeout,
        start_timeout=settings.start_timeout,
        restarts=settings.restarts is not None,
        info_bytes=settings.info_bytes,
    )
    assignments = placed or [ActorAssignment(range(k, k + 1)) for k in range(len(split))]
    backend = RayBackend(cluster, options, plan, assignments, split, recipe)
    groups = WorkerGroups(backend, None, describe, settings.restarts)
    nodes = {actor.place[1] for actor in backend.actors if actor.place is not None}
    obstacle = cluster.direct_connection_obstacle
    note = "" if obstacle is None else f", over Ray calls instead of direct connections: {obstacle}"
    logger.info(
        "%s in %s of %s on %s%s",
        *(counted(len(recipe), "environment"), counted(len(split), "worker")),
        *(counted(len(backend.actors), "Ray actor"), counted(len(nodes), "node"), note),
    )
    return groups


def _actor_shares(
    cluster: RayCluster, options: ActorOptions, workers: int, actors: str
) -> list[ActorAssignment] | None:
    """Assign workers to nodes; return None to use one actor per worker."""
    placed = one_actor_per_node(workers, cluster.capacities(options))
    if actors == "auto" and len(placed) == workers:
        return None
    return placed if options.spreads else [replace(share, node=None) for share in placed]
