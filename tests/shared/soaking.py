"""Long runs in which a process and those below it must not grow."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from xuance_envs import VecEnv

STEPS = 10**7
"""Steps of single environments."""

MIB_OF_EACH = 4
"""Growth of a process that allocators may cause."""


class Usage(NamedTuple):
    """What some processes use together."""

    descriptors: int
    threads: int
    processes: int
    mib: float


def usage() -> Usage:
    """Measure this process and all processes below it."""
    gc.collect()
    pids = [os.getpid()]
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            pids += map(int, (task / "children").read_text().split())
    descriptors = threads = 0
    mib = 0.0
    for pid in pids:
        folder = Path(f"/proc/{pid}")
        descriptors += sum(map(_stays_open, (folder / "fd").iterdir()))
        threads += len(list((folder / "task").iterdir()))
        status = (folder / "status").read_text()
        mib += int(status.partition("RssAnon:")[2].split()[0]) / 1024
    return Usage(descriptors, threads, len(pids), mib)


def _stays_open(descriptor: Path) -> bool:
    """Return False for the files of /proc, which the server opens for moments only."""
    try:
        return not os.readlink(descriptor).startswith("/proc/")
    except OSError:  # closed in the meantime
        return False


def assert_flat(envs: VecEnv, steps: int = STEPS) -> None:
    """Step environments, reset some by hand, and compare the use after a tenth with the end."""
    envs.reset(seed=1)
    actions = np.zeros(envs.num_envs, int)
    early = None
    for number in range(steps // envs.num_envs):
        infos = envs.step(actions)[4]
        if number % 100 == 0:
            envs.reset(env_ids=[number % envs.num_envs])
            assert infos[0] is not None
        if early is None and number * envs.num_envs >= steps // 10:
            early = usage()
    assert early is not None
    late = usage()
    print(f"{envs}: {early} -> {late}")
    assert late[:3] == early[:3]
    assert late.mib - early.mib < MIB_OF_EACH * early.processes
