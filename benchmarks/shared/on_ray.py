"""Shared code of the Ray benchmarks: a local cluster, environments, a plain implementation."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

LOGICAL_CPUS = 16
"""CPUs that the local cluster declares; actors that sleep need no core."""

WORKS, WAITS = "works", "waits"


class BusyEnv(gymnasium.Env[Any, Any]):
    """Environment that computes (:data:`WORKS`) or sleeps (:data:`WAITS`) in each step."""

    action_space = spaces.Discrete(2)

    def __init__(self, seconds: float, kind: str = WORKS, bytes_seen: int = 16) -> None:
        self.observation_space = spaces.Box(0, 255, (bytes_seen,), np.uint8)
        self.seconds = seconds
        self.kind = kind
        self.seen = np.zeros(bytes_seen, np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.seen, {}

    def step(self, action: Any) -> Any:
        if self.kind == WAITS:
            time.sleep(self.seconds)
        else:
            end = time.thread_time() + self.seconds
            while time.thread_time() < end:
                pass
        return self.seen, 0.0, False, False, {}


@contextlib.contextmanager
def quiet_ray() -> Iterator[None]:
    """Disable Ray's output and usage reports."""
    before = dict(os.environ)
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled", RAY_DEDUP_LOGS="0")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [os.getcwd(), before.get("PYTHONPATH")])
    )
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def local_ray() -> Iterator[Any]:
    """Run Ray on this machine within this context."""
    import ray

    with quiet_ray():
        ray.init(
            address="local",
            num_cpus=LOGICAL_CPUS,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="warning",
        )
        try:
            yield ray
        finally:
            ray.shutdown()


@contextlib.contextmanager
def local_cluster(*cpus: int) -> Iterator[Any]:
    """Run a cluster of nodes on this machine, with this process on the first node."""
    import ray
    from ray.cluster_utils import Cluster

    first, *others = cpus
    with quiet_ray():
        cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": first, "include_dashboard": False}
        )
        try:
            for count in others:
                cluster.add_node(num_cpus=count)
            ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


class SyncActors:
    """The baseline: Ray actors with a Gymnasium SyncVectorEnv each, and no optimizations."""

    def __init__(self, ray: Any, env_id: str, num_envs: int, actors: int) -> None:
        size = num_envs // actors

        class Actor:
            def __init__(self) -> None:
                self.envs = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make(env_id)] * size)
                self.envs.reset(seed=0)

            def step(self, actions: Any) -> Any:
                return self.envs.step(actions)

        self._ray = ray
        self._actors = [ray.remote(Actor).remote() for _ in range(actors)]

    def step(self, actions: Any) -> Sequence[Any]:
        """Step all actors; return the concatenated results."""
        parts = np.array_split(actions, len(self._actors))
        pairs = zip(self._actors, parts, strict=True)
        results = self._ray.get([actor.step.remote(part) for actor, part in pairs])
        return [np.concatenate(arrays) for arrays in list(zip(*results, strict=True))[:4]]

    def close(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor)
