"""Collectors on a cluster whose nodes come and go, on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from leftovers import is_running, wait_until
from ray_actors import CPUS, VARIABLES, add_node, free

torch = pytest.importorskip("torch")
for library in ("PIL", "tqdm"):
    pytest.importorskip(library)

from cluster_envs import PacedEnv

from xuance_envs import RayRolloutCollector

ROOT = Path(__file__).resolve().parents[2]
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
import sys
import torch
from cluster_envs import PacedEnv
from xuance_envs import RayRolloutCollector

class Idle:
    def get_actions_and_values(self, states, actions=None):
        nothing = torch.zeros(len(states))
        return nothing.int(), nothing, nothing, None

collector = RayRolloutCollector([PacedEnv] * 4, Idle(), 2, 40, processes=2, address=sys.argv[1],
    runtime_env={"env_vars": {"XUANCE_ENVS_TOLD": sys.argv[2]}})
collector.rollout()
print("there", flush=True)
while True:
    collector.collect_async()
    collector.rollout()
"""


@pytest.mark.slow("starts a program that imports torch in four processes")
def test_nothing_is_left_of_a_program_that_is_killed(cluster: Any, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    told = tmp_path / "pids"
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "shared")])
    program = subprocess.Popen(
        [sys.executable, str(script), cluster.address, str(told)],
        env={**environ, **VARIABLES, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert program.stdout is not None
    assert "there\n" in iter(program.stdout.readline, "")
    pids = {int(line) for line in told.read_text().split()}
    assert len(pids) == 4
    assert all(map(is_running, pids))
    program.kill()
    program.wait()
    program.stdout.close()
    assert wait_until(lambda: not any(map(is_running, pids)), seconds=LIVENESS)
    assert wait_until(lambda: free("CPU") == CPUS, seconds=LIVENESS)
