"""A local Ray for tests, and pools of reusable actors.

An actor takes about half a second of a core to start, three with torch, and the contract suite
would start a thousand. After a test, a working actor is closed, and reset for the next test.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cluster_envs import GO_ON
from interrupts import RandomInterrupts
from leftovers import is_running, wait_until
from scripts import start_script

from xuance_envs.engine.ray import actor_client
from xuance_envs.engine.ray.cluster import ActorOptions, RayCluster

CPUS = 16
"""CPUs of a node; they are only counted."""
VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",  # all connections are local
    "RAY_DEDUP_LOGS": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
}
UNUSED = ("start_monitor", "start_log_monitor", "start_api_server")
"""Methods of Ray's nodes that each start a process which takes a second of a core to start."""


@contextlib.contextmanager
def small_nodes() -> Iterator[None]:
    """Have Ray start only processes that tests need, with environment variables for tests."""
    from ray._private import utils
    from ray._private.node import Node

    with pytest.MonkeyPatch.context() as patch:
        for name, value in VARIABLES.items():
            patch.setenv(name, value)
        patch.delenv("RAY_ADDRESS", raising=False)
        # Ray adds the script's folder to the path, but not the folders that pytest adds.
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        for name in UNUSED:
            patch.setattr(Node, name, lambda *_, **__: None)
        # Programs of tests that run beside it would join the cluster.
        patch.setattr(utils, "write_ray_address", lambda *_: None)
        yield


@contextlib.contextmanager
def local_cluster() -> Iterator[Any]:
    """Run a cluster on this machine within this context, with this process on its only node.

    :func:`add_node` adds more nodes.
    """
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    with small_nodes():
        cluster = Cluster()
        try:
            add_node(cluster, include_dashboard=False, resources={"special": 3})
            ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


def add_node(cluster: Any, **options: Any) -> Any:
    """Add a node to a cluster."""
    return cluster.add_node(num_cpus=CPUS, object_store_memory=100 * 2**20, **options)


def id_of(node: Any) -> str:
    """Return a node's id in Ray; a lost node may have had the same socket."""
    import ray

    sockets = {each["RayletSocketName"]: each["NodeID"] for each in ray.nodes() if each["Alive"]}
    return str(sockets[node.raylet_socket_name])


def free(resource: str) -> float:
    """Return the quantity of a resource that is free on all nodes."""
    import ray

    return float(ray.available_resources().get(resource, 0))


def assert_a_killed_program_leaves_nothing(folder: Path, cluster: Any, text: str) -> None:
    """Kill a program that connects to ADDRESS and prints the ids of its four workers."""
    import ray

    text = text.replace("ADDRESS", repr(cluster.address))
    with start_script(folder, text, stderr=subprocess.DEVNULL) as program:
        assert program.stdout is not None
        line = next(line for line in program.stdout if line.startswith("pids "))
        pids = set(map(int, line.split()[1:]))
        assert len(pids) == 4
        assert all(map(is_running, pids))
        program.kill()
    assert wait_until(lambda: not any(map(is_running, pids)), seconds=90)
    assert wait_until(lambda: free("CPU") == ray.cluster_resources()["CPU"], seconds=90)


def assert_no_interrupt_loses_or_repeats_a_step(envs: Any) -> None:
    """Interrupt steps of :class:`~cluster_envs.PlacedEnv` at random moments."""
    num_envs, steps = envs.num_envs, 0
    with envs, RandomInterrupts(0.004) as interrupts:
        envs.reset()
        while interrupts.count < 30:
            interrupts.call(lambda: envs.step([GO_ON] * num_envs))
            if envs.waiting:
                envs.step_wait()
            made = [int(at[1]) for at in envs.get_attr("at")]
            # One that came before the step began left it out altogether.
            assert made in ([steps] * num_envs, [steps + 1] * num_envs)
            assert made[0] == steps + 1 or interrupts.count
            steps = made[0]


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
    """Pool of actors without processes or environment of their own, which are not killed."""

    def __init__(self) -> None:
        self._start, self._kill = RayCluster.start, RayCluster.kill
        self._idle: dict[str, list[Any]] = {}
        self._kind_of: dict[Any, str] = {}

    def start(
        self, cluster: RayCluster, kind: Any, options: ActorOptions, plan: Any, **more: Any
    ) -> Any:
        name = repr((kind, options))
        if idle := self._idle.get(name):
            handle = idle.pop()
            handle.__ray_call__.remote(reset, plan)
            return handle
        handle = self._start(cluster, kind, options, plan, **more)
        if options.runtime_env is None and not more:
            self._kind_of[handle] = name
        return handle

    def discard(self, cluster: RayCluster, handle: Any) -> None:
        import ray

        if handle not in self._kind_of:
            self._kill(cluster, handle)
            return
        try:
            ray.get(handle.__ray_call__.remote(close), timeout=1.0)
        except ray.exceptions.RayError:
            self._kill(cluster, handle)
        else:
            self._idle.setdefault(self._kind_of[handle], []).append(handle)

    def end(self) -> None:
        import ray

        for handle in self._kind_of:
            ray.kill(handle)


def reset(actor: Any, plan: Any) -> None:
    """Reset an actor for a different plan."""
    actor.__init__(plan)


def close(actor: Any) -> None:
    """Close an actor's environments."""
    actor.close()


@contextlib.contextmanager
def lent_actors() -> Iterator[None]:
    """Reuse actors within this context."""
    pool = ActorPool()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RayCluster, "start", lambda *given, **more: pool.start(*given, **more))
        patch.setattr(RayCluster, "kill", lambda *given: pool.discard(*given))
        yield
    pool.end()
