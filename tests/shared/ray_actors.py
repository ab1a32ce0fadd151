"""A local Ray for tests, and pools of reusable actors.

An actor takes about half a second of a core to start, and the contract suite would start a
thousand. After a test, a working actor is reset and used for the next test.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from xuance_envs.engine.ray import actor_client
from xuance_envs.engine.ray.cluster import ActorOptions, RayCluster
from xuance_envs.engine.ray.hosting import ActorPlan

VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",  # all connections are local
    "RAY_DEDUP_LOGS": "0",
}
OBJECT_STORE = 100 * 2**20


@contextlib.contextmanager
def ray_variables() -> Iterator[None]:
    """Set environment variables for Ray's processes."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in VARIABLES.items():
            patch.setenv(name, value)
        patch.delenv("RAY_ADDRESS", raising=False)
        # Ray adds the script's folder to the path, but not the folders that pytest adds.
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        yield


@contextlib.contextmanager
def local_ray(num_cpus: int = 4) -> Iterator[Any]:
    """Run Ray on this machine within this context."""
    import ray

    with ray_variables():
        ray.init(
            address="local",
            num_cpus=num_cpus,
            resources={"special": 3},
            include_dashboard=False,
            log_to_driver=False,
            logging_level="warning",
            object_store_memory=OBJECT_STORE,
            _node_ip_address="127.0.0.1",
        )
        try:
            yield ray
        finally:
            ray.shutdown()


@contextlib.contextmanager
def own_cluster(num_cpus: int) -> Iterator[Any]:
    """Run a cluster on this machine within this context, with this process on its only node.

    :func:`add_node` adds more nodes.
    """
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    settings = {
        "num_cpus": num_cpus,
        "include_dashboard": False,
        "object_store_memory": OBJECT_STORE,
    }
    with ray_variables():
        cluster = Cluster(initialize_head=True, head_node_args=settings)
        try:
            ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


def add_node(cluster: Any, num_cpus: int) -> Any:
    """Add a node to a cluster."""
    with ray_variables():
        return cluster.add_node(num_cpus=num_cpus, object_store_memory=OBJECT_STORE)


@dataclass
class Counted:
    """Bytes of each request to actors and of each reply."""

    requests: list[int] = field(default_factory=list)
    replies: list[int] = field(default_factory=list)


@contextlib.contextmanager
def counted_messages() -> Iterator[Counted]:
    """Count the bytes of messages between main process and actors, with any transport."""
    counted = Counted()
    pack, unpack = actor_client.pack_requests, actor_client.unpack_replies

    def counting_pack(*given: Any) -> bytes:
        request = pack(*given)
        counted.requests.append(len(request))
        return request

    def counting_unpack(reply: Any, *given: Any) -> Any:
        counted.replies.append(len(reply))
        return unpack(reply, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(actor_client, "pack_requests", counting_pack)
        patch.setattr(actor_client, "unpack_replies", counting_unpack)
        yield counted


class ActorPool:
    """Pool of actors for vectorized environments, instead of starting and killing actors."""

    def __init__(self) -> None:
        self._start, self._kill = RayCluster.start_actor, RayCluster.kill
        self._idle: dict[str, list[Any]] = {}
        self._kind_of: dict[Any, str] = {}

    def start(self, cluster: RayCluster, options: ActorOptions, plan: ActorPlan) -> Any:
        kind = repr(options)
        idle = self._idle.setdefault(kind, [])
        if idle and not plan.in_processes:
            handle = idle.pop()
            handle.__ray_call__.remote(emptied, plan)
            return handle
        handle = self._start(cluster, options, plan)
        if not plan.in_processes:
            self._kind_of[handle] = kind
        return handle

    def discard(self, cluster: RayCluster, handle: Any) -> None:
        import ray

        if handle not in self._kind_of:
            self._kill(cluster, handle)
            return
        try:
            ray.get(handle.__ray_call__.remote(emptied, ActorPlan(((0, 1),))), timeout=1.0)
        except ray.exceptions.RayError:
            self._kill(cluster, handle)
        else:
            self._idle[self._kind_of[handle]].append(handle)


def emptied(actor: Any, plan: ActorPlan) -> None:
    """Reset an actor for a different plan."""
    actor.__init__(plan)


@contextlib.contextmanager
def lent_actors() -> Iterator[None]:
    """Reuse actors of vectorized environments within this context."""
    pool = ActorPool()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RayCluster, "start_actor", lambda *given: pool.start(*given))
        patch.setattr(RayCluster, "kill", lambda *given: pool.discard(*given))
        yield


class CollectorPool:
    """Pool of collectors for several tests, because each takes seconds to import torch."""

    def __init__(self) -> None:
        self._start, self._kill = RayCluster.start, RayCluster.kill
        self._idle: dict[str, list[Any]] = {}
        self._kind_of: dict[Any, str] = {}

    def start(self, cluster: RayCluster, kind: Any, options: ActorOptions, plan: Any) -> Any:
        name = repr(options)
        if idle := self._idle.get(name):
            handle = idle.pop()
            handle.__ray_call__.remote(emptied, plan)
            return handle
        handle = self._start(cluster, kind, options, plan)
        if options.runtime_env is None:
            self._kind_of[handle] = name
        return handle

    def kill(self, cluster: RayCluster, handle: Any) -> None:
        import ray

        if handle not in self._kind_of:
            self._kill(cluster, handle)
            return
        try:
            ray.get(handle.__ray_call__.remote(closed), timeout=1.0)
        except ray.exceptions.RayError:
            self._kill(cluster, handle)
        else:
            self._idle.setdefault(self._kind_of[handle], []).append(handle)


def closed(collector: Any) -> None:
    """Close the collector's environments."""
    collector.close()


@contextlib.contextmanager
def lent_collectors() -> Iterator[None]:
    """Reuse collectors within this context."""
    pool = CollectorPool()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RayCluster, "start", lambda *given: pool.start(*given))
        patch.setattr(RayCluster, "kill", lambda *given: pool.kill(*given))
        yield
