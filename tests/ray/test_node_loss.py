"""A cluster of two nodes on this machine, one of which goes away in mid-run."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from cluster_envs import GO_ON, PlacedEnv
from ray_actors import CPUS, id_of

from xuance_envs import Gym_Env, RayVecEnv_Gym, WorkerDiedError

HALF = 32
LIVENESS = 60.0
"""Seconds within which it has to go on: this is about whether it does."""


def lose(cluster: Any, node: Any) -> None:
    """As when its machine loses power: nothing is told to anybody."""
    cluster.remove_node(node, allow_graceful=False)


def on_two_nodes(functions: Any, half: int, node: Any, **options: Any) -> tuple[Any, range]:
    """A vector environment with half of its environments on each node, and those of one node."""
    envs = RayVecEnv_Gym(functions, half, **options)
    nodes = envs.call("node", env_ids=[0, half])
    assert len(set(nodes)) == 2, "the actors are on one node"
    first = nodes.index(id_of(node)) * half
    return envs, range(first, first + half)


def step_for(envs: Any, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        envs.step([GO_ON] * envs.num_envs)


class PlacedCartPole(Gym_Env):
    """CartPole that tells where it lives."""

    def __init__(self) -> None:
        super().__init__("CartPole-v1")

    node = PlacedEnv.node


def test_auto_follows_the_cpus_of_all_nodes(cluster: Any, second_node: Any) -> None:
    with RayVecEnv_Gym([PlacedEnv] * 8, actors="core", num_cpus_per_worker=CPUS / 2) as envs:
        assert [len(worker.env_ids) for worker in envs.statistics()] == [2] * 4
        nodes = envs.call("node")
        assert sorted(map(nodes.count, set(nodes))) == [4, 4]


@pytest.mark.long
def test_the_environments_of_a_lost_node_come_back_on_another(
    cluster: Any, second_node: Any
) -> None:
    envs, lost = on_two_nodes(
        [PlacedCartPole] * (2 * HALF), HALF, second_node, on_worker_failure="restart"
    )
    rng = np.random.default_rng(0)
    expected = np.zeros(2 * HALF, int)  # of each environment, the number of the episode's step
    restarted = np.zeros(2 * HALF, int)
    with envs:
        last = envs.reset(seed=0)[0]
        deadline = time.monotonic() + LIVENESS
        steps = steps_after = 0
        while steps_after < 20:
            assert time.monotonic() < deadline, "it does not go on"
            if steps == 20:
                lose(cluster, second_node)
            obs, rewards, terminated, truncated, infos = envs.step(rng.integers(0, 2, 2 * HALF))
            lost_now = np.array([info.get("worker_restarted", False) for info in infos])
            expected += ~lost_now
            assert [info["episode_step"] for info in infos] == expected.tolist()
            if lost_now.any():
                assert np.flatnonzero(lost_now).tolist() == list(lost)
                assert (obs[lost] == last[lost]).all()
                assert not rewards[lost].any()
                assert truncated[lost].all()
                assert not terminated[lost].any()
            restarted += lost_now
            steps += 1
            steps_after += bool(restarted.any())
            last = obs.copy()
            for env in np.flatnonzero(terminated | truncated).tolist():
                last[env] = infos[env]["reset_obs"]
                expected[env] = 0
        assert restarted.tolist() == [int(env in lost) for env in range(2 * HALF)]
        assert len(set(envs.call("node"))) == 1


@pytest.mark.slow("waits until Ray notices that a node is gone")
def test_a_lost_node_is_named(cluster: Any, second_node: Any) -> None:
    envs, lost = on_two_nodes([PlacedEnv] * 4, 2, second_node)
    envs.reset()
    envs.step([GO_ON] * 4)
    name = f"node {second_node.node_ip_address} (id {id_of(second_node)})"
    lose(cluster, second_node)
    with pytest.raises(WorkerDiedError) as caught:
        step_for(envs, LIVENESS)
    assert caught.value.env_indices == tuple(lost)
    assert name in str(caught.value)
    assert envs.closed


@contextlib.contextmanager
def stopped(node: Any, actors: Sequence[int]) -> Iterator[None]:
    """As when a machine's network is gone: nothing of it says anything, and nothing ends."""
    processes = [each.process.pid for every in node.all_processes.values() for each in every]
    try:
        for pid in (*processes, *actors):
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in (*processes, *actors):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def receive_for_ever(envs: Any, actions: Sequence[Any]) -> None:
    """Sends what is received."""
    envs.send(actions, range(len(actions)))
    while True:
        batch = envs.recv()
        envs.send([actions[env] for env in batch.env_ids], batch.env_ids)


@pytest.mark.long  # Ray has to find out for itself
@pytest.mark.parametrize("first_ready", [False, True])
def test_a_node_that_says_nothing_any_more_is_lost_once_ray_thinks_so(
    first_ready: bool, cluster: Any, second_node: Any
) -> None:
    envs, lost = on_two_nodes([PlacedEnv] * 4, 2, second_node)
    assert all(actor.connection is not None for actor in envs._groups.backend.actors)
    envs.reset()
    its_actor, name = envs.call("pid", env_ids=lost[:1]), f"(id {id_of(second_node)})"
    go_on = receive_for_ever if first_ready else RayVecEnv_Gym.step
    with stopped(second_node, its_actor), pytest.raises(WorkerDiedError) as caught:
        go_on(envs, [GO_ON] * 4)
    cluster.remove_node(second_node, allow_graceful=False)
    assert caught.value.env_indices == tuple(lost)
    assert name in str(caught.value)
    assert envs.closed
