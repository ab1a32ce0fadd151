"""A random worker is killed every second, for a while: what survives loses and repeats no step."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest
from backends import BACKENDS
from backends import made as made_by
from faulty_envs import FaultyEnv
from soaking import assert_flat

from xuance_envs import SubprocVecEnv

LENGTH = 23
GROUP = 2
LEAST = 1000
"""Steps, on a machine that is busy, too."""


class Killer(threading.Thread):
    """Kills a worker of a vector environment every so often, at random moments."""

    def __init__(self, envs, seconds):
        super().__init__(daemon=True)
        self.envs = envs
        self.seconds = seconds
        self.kills = 0
        self.over = threading.Event()
        self.rng = np.random.default_rng(11)
        self.victims = set()

    def run(self):
        while not self.over.wait(self.rng.uniform(0, 2 * self.seconds)):
            pid = int(self.rng.choice(self.envs.pids))
            if pid not in self.victims:  # its place may not have been taken yet
                self.victims.add(pid)
                with suppress(ProcessLookupError):  # it has been replaced since
                    os.kill(pid, signal.SIGKILL)
                    self.kills += 1


@dataclass
class Count:
    """What is known of each environment by counting along, and where it says otherwise."""

    n: int
    steps: int = 0
    restarts: int = 0
    mismatches: list[str] = field(default_factory=list)

    def __post_init__(self):
        self.of_episode = np.zeros(self.n, int)
        self.of_life = np.zeros(self.n, int)

    def take(self, envs, obs, rewards, terminated, truncated, infos):
        """Takes note of a step of some environments."""
        for row, env in enumerate(envs):
            self.steps += 1
            info = infos[row]
            if "worker_restarted" in info:
                expected = (self.of_episode[env], 0.0, False, True, self.of_life[env])
                self.of_life[env] = 0
                self.restarts += 1
            else:
                self.of_episode[env] += 1
                self.of_life[env] += 1
                ended = self.of_episode[env] == LENGTH
                expected = (self.of_episode[env], 1.0, ended, False, self.of_life[env])
            got = (obs[row][0], rewards[row], terminated[row], truncated[row], info["steps"])
            if tuple(map(float, got)) != tuple(map(float, expected)):
                self.mismatches.append(f"environment {env}: expected {expected}, got {got}")
            if terminated[row] or truncated[row]:
                self.of_episode[env] = 0
                if info["reset_obs"][0] != 0:
                    self.mismatches.append(f"environment {env}: no first observation")

    def check_restarts(self, lost_in_steps):
        """Checks that whole groups are lost, and that each loss in a step has been told of."""
        if self.restarts != GROUP * lost_in_steps:
            self.mismatches.append(f"{self.restarts} truncated, but {lost_in_steps} workers lost")


def soak(seconds, between_kills, stepping):
    n = 8
    record = Records()
    logging.getLogger("xuance_envs").addHandler(record)
    envs = SubprocVecEnv(
        [lambda: FaultyEnv(length=LENGTH)] * n,
        in_series=GROUP,
        context="forkserver",
        on_worker_failure="restart",
        max_restarts=None,
        step_timeout=30,
    )
    count, killer = Count(n), Killer(envs, between_kills)
    try:
        with envs:
            killer.start()
            try:
                stepping(envs, count, time.monotonic() + seconds)
            finally:  # once closed, the environments have no workers to kill
                killer.over.set()
                killer.join()
    finally:
        logging.getLogger("xuance_envs").removeHandler(record)
    count.check_restarts(record.in_steps)
    print(
        f"{seconds} s: {killer.kills} kills, {record.warnings} restarts of {GROUP} environments, "
        f"{count.steps} steps, {len(count.mismatches)} mismatches"
    )
    assert count.mismatches == []
    assert killer.kills - 4 <= record.warnings <= killer.kills  # the last may not be noticed
    assert record.warnings >= seconds / between_kills / 4


class Records(logging.Handler):
    """Counts restarts, and those because of a worker that was lost in a step.

    The others were lost in a reset, or while they took the place of one that had been lost.
    """

    def __init__(self):
        super().__init__(logging.WARNING)
        self.warnings = self.in_steps = 0

    def emit(self, record):
        self.warnings += 1
        self.in_steps += "during 'step'" in record.getMessage()


def in_step(envs, count, end):
    envs.reset(seed=1)
    while time.monotonic() < end or count.steps <= LEAST:
        count.take(range(envs.num_envs), *envs.step([0] * envs.num_envs))


def first_ready(envs, count, end):
    """Each environment is sent again as soon as it has been received."""
    envs.async_reset(seed=1)
    ids = envs.recv(envs.num_envs).env_ids
    envs.send([0] * len(ids), ids)
    while time.monotonic() < end or count.steps <= LEAST:
        *batch, ids = envs.recv()
        count.take(ids.tolist(), *batch)
        envs.send([0] * len(ids), ids)
    *batch, ids = envs.recv(envs.num_envs)
    count.take(ids.tolist(), *batch)


@pytest.mark.parametrize("stepping", [in_step, first_ready], ids=["step", "send and recv"])
def test_killing_a_worker_now_and_then_loses_no_step(stepping):
    soak(2, 0.1, stepping)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("stepping", [in_step, first_ready], ids=["step", "send and recv"])
def test_killing_a_worker_every_second_for_minutes_loses_no_step(stepping):
    soak(300 if stepping is in_step else 60, 1.0, stepping)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_ten_million_steps_leave_memory_and_all_else_as_it_was(backend):
    split = {"in_series": 128} if "in_series" in backend.options else {}
    for made in made_by(backend):
        assert_flat(made([partial(FaultyEnv, length=LENGTH)] * 256, **split))
