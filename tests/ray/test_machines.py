"""Machines, each of them one actor: a cluster of four nodes on this one."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster_envs import DIE, GO_ON, SLEEP, PlacedEnv
from comparing import assert_same
from gymnasium import spaces
from leftovers import is_running, wait_until
from ray_actors import (
    CPUS,
    add_node,
    assert_a_killed_program_leaves_nothing,
    assert_no_interrupt_loses_or_repeats_a_step,
    counted_messages,
    free,
    id_of,
)

from xuance_envs import (
    DummyVecEnv,
    EnvError,
    Gym_Env,
    RayVecEnv_Gym,
    WorkerDiedError,
    WorkerTimeoutError,
)
from xuance_envs.engine.ray.ray_backend import one_actor_per_node

NODES = 2
LIVENESS = 60.0
"""Seconds within which it has to go on: this is about whether it does."""


pytestmark = pytest.mark.usefixtures("second_node")


class TracedEnv(PlacedEnv):
    """Tells which actor its process belongs to."""

    def actor(self) -> int:
        return os.getppid()


def sizes(envs: Any) -> list[int]:
    return [len(worker.env_ids) for worker in envs.statistics()]


def places_of(envs: Any) -> list[str]:
    """By environment, the node that it is on."""
    places = dict(actor.place for actor in envs._groups.backend.actors)
    return [places[actor] for actor in envs.call("actor")]


def actors_of(envs: Any) -> list[int]:
    """By actor in order, of how many environments it is."""
    found: dict[int, int] = {}
    for actor in envs.call("actor"):
        found[actor] = found.get(actor, 0) + 1
    return list(found.values())


# --- which actors there are ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "capacities", "expected"),
    [
        (16, {"a": (4, 4), "b": (4, 4), "c": (4, 4), "d": (4, 4)}, "a4 b4 c4 d4"),
        (6, {"a": (4, 4), "b": (4, 4), "c": (4, 4), "d": (4, 4)}, "a2 b2 c1 d1"),
        (6, {"a": (8, 8), "b": (2, 8)}, "a6"),
        (3, {"a": (0, 4), "b": (4, 4)}, "b3"),
        (7, {"a": (2, 4), "b": (1, 2)}, "a4 b2 -1"),
        (12, {"a": (2, 4)}, "a4 -4 -4"),
        (2, {}, "-1 -1"),
    ],
)
def test_workers_are_spread_over_the_room_there_is(
    count: int, capacities: Any, expected: str
) -> None:
    shares = one_actor_per_node(count, capacities)
    assert " ".join(f"{share.node or '-'}{len(share.workers)}" for share in shares) == expected
    assert [worker for share in shares for worker in share.workers] == list(range(count))


@pytest.mark.long
def test_auto_takes_machines_where_several_workers_would_share_one() -> None:
    with RayVecEnv_Gym([TracedEnv] * 9, num_cpus_per_worker=CPUS / 4) as envs:
        assert sorted(sizes(envs)) == [1] * 7 + [2]
        assert sorted(actors_of(envs)) == [4, 5]
        assert len(set(envs.call("pid"))) == 8
        assert not {*envs.call("pid")} & {*envs.call("actor")}
        assert wait_until(lambda: not free("CPU"))
    with RayVecEnv_Gym([PlacedEnv] * NODES, 1) as envs:
        assert len(set(envs.call("node"))) == NODES  # which only an actor of its own can tell


def test_an_actor_takes_what_its_workers_do() -> None:
    options: dict[str, Any] = {"actors": "machine", "num_cpus_per_worker": 0.5}
    with RayVecEnv_Gym([TracedEnv] * 8, 2, **options) as envs:
        assert sizes(envs) == [2] * 4
        assert actors_of(envs) == [4] * NODES
        assert wait_until(lambda: free("CPU") == NODES * CPUS - 2)
    with pytest.raises(ValueError, match="actors: expected 'auto', 'machine' or 'core', got 'cpu'"):
        RayVecEnv_Gym([TracedEnv], actors="cpu")


# --- steps --------------------------------------------------------------------------------------


class InfoFilter(Gym_Env):
    """CartPole with infos that differ from environment to environment, in kind and in number."""

    def __init__(self, number: int) -> None:
        super().__init__("CartPole-v1")
        self.number = number

    def step(self, action: Any) -> Any:
        *result, info = super().step(action)
        info[f"only {self.number % 3}"] = self.number
        if self.number % 2:
            info["words"] = f"{self.number}"
        return *result, info


def test_a_step_is_a_request_for_each_machine_and_trajectories_are_the_same() -> None:
    functions = [partial(InfoFilter, number) for number in range(8)]
    rng = np.random.default_rng(0)
    with RayVecEnv_Gym(functions, 2) as envs, DummyVecEnv(functions) as reference:
        assert_same(envs.reset(seed=7)[0], reference.reset(seed=7)[0], "reset")
        with counted_messages() as counted:
            for k in range(60):
                actions = rng.integers(0, 2, 8)
                found, expected = envs.step(actions), reference.step(actions)
                assert_same(found[:4], expected[:4], f"step {k}")
                for one, other in zip(found[4], expected[4], strict=True):
                    assert_same(one, other, f"infos of step {k}")
        assert len(counted.requests) == len(counted.replies) == 60 * NODES
        assert [worker.steps for worker in envs.statistics()] == [60] * 4
        found, expected = (each.reset(seed=3, env_ids=[1, 6, 7])[0] for each in (envs, reference))
        assert_same(found, expected, "some are reset")
        assert_same(envs.get_attr("number"), tuple(range(8)), "attributes")
        with pytest.raises(EnvError, match=r"environment 4 failed in 'step': AssertionError: .*2"):
            envs.step([0] * 4 + [2] + [0] * 3)
        assert envs.closed


@pytest.mark.long
def test_workers_of_a_machine_are_received_as_they_are_ready() -> None:
    machine = {"actors": "machine", "num_cpus_per_worker": 0.01}
    with RayVecEnv_Gym([TracedEnv] * 12, 1, **machine) as envs:
        assert actors_of(envs) == [6] * NODES
        envs.set_attr("seconds", 3.0)
        envs.async_reset()
        envs.recv(min_envs=12)
        envs.send([SLEEP], [0])
        for k in range(1, 4):
            envs.send([GO_ON] * 2, [1, 2])
            got: list[int] = []
            while len(got) < 2:
                batch = envs.recv()
                assert batch.obs[:, 1].tolist() == [k] * len(batch.env_ids)
                got += batch.env_ids.tolist()
            assert sorted(got) == [1, 2]  # while the one beside them still steps
        assert envs.recv().env_ids.tolist() == [0]


class WordEnv(PlacedEnv):
    """Its actions are no arrays."""

    action_space = spaces.Text(5)

    def step(self, action: Any) -> Any:
        obs, reward, *ends, info = super().step(GO_ON)
        return obs, reward, *ends, {**info, "said": action}


def test_actions_that_are_objects_reach_their_environments() -> None:
    with RayVecEnv_Gym([WordEnv] * 4, 2, actors="machine", num_cpus_per_worker=CPUS) as envs:
        envs.reset()
        infos = envs.step(["a", "b", "c", "d"])[4]
        assert [info["said"] for info in infos] == ["a", "b", "c", "d"]


def test_no_interrupt_at_any_moment_loses_or_repeats_a_step() -> None:
    assert_no_interrupt_loses_or_repeats_a_step(RayVecEnv_Gym([PlacedEnv] * 5, 1))


# --- losses -------------------------------------------------------------------------------------


@pytest.mark.slow("starts workers on two nodes")
def test_a_worker_that_dies_is_named_with_its_node_and_nothing_is_left() -> None:
    import ray

    envs = RayVecEnv_Gym([TracedEnv] * 4, 1)
    pids, actors = envs.call("pid"), envs.call("actor")
    place = places_of(envs)[2]
    envs.reset()
    with pytest.raises(WorkerDiedError) as caught:
        envs.step([GO_ON] * 2 + [DIE] + [GO_ON])
    error = caught.value
    assert (error.env_indices, error.pid, error.exitcode) == ((2,), pids[2], -signal.SIGKILL)
    assert place in {node["NodeID"] for node in ray.nodes()}
    assert f"(id {place})" in str(error)
    assert envs.closed
    assert wait_until(lambda: not any(map(is_running, {*pids, *actors})))


@pytest.mark.slow("waits for a time limit")
def test_a_worker_that_dies_is_restarted_in_its_actor() -> None:
    with RayVecEnv_Gym(
        [TracedEnv] * 4, 1, env_seed=5, step_timeout=2.0, on_worker_failure="restart"
    ) as envs:
        envs.reset(seed=10)
        envs.set_attr("level", 3)
        envs.step([GO_ON] * 4)
        pids, actors = envs.call("pid"), envs.call("actor")
        for action in (DIE, SLEEP):
            obs, rewards, _, truncated, infos = envs.step([GO_ON, action] + [GO_ON] * 2)
            assert truncated.tolist() == [False, True] + [False] * 2
            assert rewards.tolist() == [1, 0, 1, 1]
            assert infos[1]["worker_restarted"]
            assert envs.call("actor") == actors
            after = envs.call("pid")
            assert [one == other for one, other in zip(pids, after, strict=True)] == [
                True, False, True, True
            ]  # fmt: skip
            obs = envs.step([GO_ON] * 4)[0]
            assert obs[1].tolist() == [1, 1]
        assert envs.get_attr("level") == (3,) * 4
        assert envs.get_attr("env_seed")[1] not in (None, 6)


@pytest.mark.long
def test_one_that_takes_too_long_is_named() -> None:
    envs = RayVecEnv_Gym([TracedEnv] * 6, 1, step_timeout=1.0)
    envs.reset()
    with pytest.raises(WorkerTimeoutError, match=r"(?s)environment 3 .*within 1 s.*on node "):
        envs.step([GO_ON] * 3 + [SLEEP] + [GO_ON] * 2)


@pytest.mark.slow("waits until Ray has replaced an actor")
def test_an_actor_that_is_lost_is_restarted_with_all_of_its_workers() -> None:
    with RayVecEnv_Gym([TracedEnv] * 4, 1, on_worker_failure="restart") as envs:
        envs.reset(seed=0)
        envs.step([GO_ON] * 4)
        actors, pids = envs.call("actor"), envs.call("pid")
        mine = [actor == actors[0] for actor in actors]
        os.kill(actors[0], signal.SIGKILL)
        truncated = envs.step([GO_ON] * 4)[3]
        assert truncated.tolist() == mine
        assert envs.step([GO_ON] * 4)[0][:, 1].tolist() == [1 if lost else 3 for lost in mine]
        assert [a == b for a, b in zip(actors, envs.call("actor"), strict=True)] == [
            not lost for lost in mine
        ]
        gone = [pid for pid, lost in zip(pids, mine, strict=True) if lost]
        assert wait_until(lambda: not any(map(is_running, gone)))


@pytest.mark.long
def test_the_environments_of_a_lost_node_come_back_elsewhere(
    cluster: Any, second_node: Any
) -> None:
    with RayVecEnv_Gym([TracedEnv] * 6, 1, on_worker_failure="restart") as envs:
        places = places_of(envs)
        lost = [place == id_of(second_node) for place in places]
        assert any(lost)
        envs.reset()
        envs.step([GO_ON] * 6)
        cluster.remove_node(second_node, allow_graceful=False)
        seen = np.zeros(6, int)
        deadline = time.monotonic() + LIVENESS
        while not seen.any():
            assert time.monotonic() < deadline, "it does not go on"
            seen += envs.step([GO_ON] * 6)[3]
        assert seen.astype(bool).tolist() == lost
        assert places[lost.index(True)] not in places_of(envs)


@pytest.mark.long
def test_workers_wait_for_a_node_that_joins(cluster: Any) -> None:
    made: list[Any] = []

    def make() -> None:
        made.append(RayVecEnv_Gym([TracedEnv] * 6, 1, num_cpus_per_worker=CPUS / 2))

    thread = threading.Thread(target=make)
    thread.start()
    time.sleep(1.0)
    assert not made
    node = add_node(cluster)
    thread.join(LIVENESS)
    (envs,) = made
    with envs:
        assert sorted(actors_of(envs)) == [2] * (NODES + 1)
        assert len(set(places_of(envs))) == NODES + 1
    cluster.remove_node(node)


SCRIPT = """
from cluster_envs import PlacedEnv
from xuance_envs import RayVecEnv_Gym
envs = RayVecEnv_Gym([PlacedEnv] * 4, 1, address=ADDRESS)
envs.reset()
print("pids", *envs.call("pid"), flush=True)
while True:
    envs.step([0] * 4)
"""


@pytest.mark.slow("starts a program, and waits until Ray notices its end")
def test_nothing_is_left_of_a_program_that_is_killed(cluster: Any, tmp_path: Path) -> None:
    assert_a_killed_program_leaves_nothing(tmp_path, cluster, SCRIPT)
