"""Collectors on a cluster whose nodes come and go, on this machine."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from leftovers import wait_until
from ray_actors import add_node, assert_a_killed_program_leaves_nothing, free

torch = pytest.importorskip("torch")
for library in ("PIL", "tqdm"):
    pytest.importorskip(library)

from cluster_envs import PacedEnv

from xuance_envs import RayRolloutCollector

STEPS = 40
LIVENESS = 90.0
"""Seconds within which it has to go on: this is about whether it does."""


class Idle:
    """Does nothing."""

    def get_actions_and_values(self, states: Any, actions: Any = None) -> Any:
        nothing = torch.zeros(len(states))
        return nothing.int(), nothing, nothing, None


def at(collector: Any) -> list[list[int]]:
    """Of each environment, the number of the episode and of the step in it, as a rollout began."""
    found: list[list[int]] = collector.states[0].int().tolist()
    return found


@pytest.mark.long
def test_a_lost_node_costs_no_other_a_step_and_nothing_is_delivered_twice(cluster: Any) -> None:
    for _ in range(2):
        add_node(cluster, resources={"far": 1})
    slow = partial(PacedEnv, 0.05)  # a busy machine takes a second to lose a node
    with RayRolloutCollector(
        [slow] * 4, Idle(), 2, STEPS, processes=2, resources={"far": 1}
    ) as collector:
        assert wait_until(lambda: not free("far"))
        collector.rollout()
        assert at(collector) == [[1, 0]] * 4
        collector.collect_async()
        time.sleep(0.2)  # both are at it
        lost = cluster.worker_nodes.copy().pop()
        cluster.remove_node(lost, allow_graceful=False)
        waiting = threading.Thread(target=collector.rollout)
        waiting.start()
        waiting.join(2.0)
        assert waiting.is_alive()  # for there is no room for the lost one before another node joins
        add_node(cluster, resources={"far": 1})
        waiting.join(LIVENESS)
        begun = at(collector)
        assert sorted(begun) == [[1, 0]] * 2 + [[1, STEPS]] * 2
        assert begun[0] == begun[1]
        assert collector.global_steps == 2 * 4 * STEPS
        collector.rollout()
        assert at(collector) == [[1, step + STEPS] for _, step in begun]
        assert collector.global_steps == 3 * 4 * STEPS


SCRIPT = """
import torch
from cluster_envs import PacedEnv
from xuance_envs import RayRolloutCollector

class Idle:
    def get_actions_and_values(self, states, actions=None):
        nothing = torch.zeros(len(states))
        return nothing.int(), nothing, nothing, None

told = __file__ + ".told"
collector = RayRolloutCollector([PacedEnv] * 4, Idle(), 2, 40, processes=2, address=ADDRESS,
    start_timeout=280, runtime_env={"env_vars": {"XUANCE_ENVS_TOLD": told}})
collector.rollout()
with open(told) as file:
    print("pids", *file.read().split(), flush=True)
while True:
    collector.collect_async()
    collector.rollout()
"""


@pytest.mark.long  # starts a program that imports torch in four processes; test_machines.py has one
def test_nothing_is_left_of_a_program_that_is_killed(cluster: Any, tmp_path: Path) -> None:
    assert_a_killed_program_leaves_nothing(tmp_path, cluster, SCRIPT)
