"""Tianshou's vector environments, which leave it to the caller to reset what has ended."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.peers.entry import Entry
from xuance_envs.measure import StepLoop


class Resetting:
    """Steps, and resets the environments that have ended, as Tianshou's collectors do."""

    def __init__(self, envs: Any) -> None:
        self._envs = envs

    def step(self, actions: Any) -> Any:
        result = self._envs.step(actions)
        ended = np.flatnonzero(result[2] | result[3])
        if ended.size:
            self._envs.reset(ended)
        return result


def dummy(entry: Entry) -> StepLoop:
    from tianshou.env import DummyVectorEnv

    return _loop(DummyVectorEnv(entry.env_fns()), entry)


def shmem(entry: Entry) -> StepLoop:
    entry.need_processes()
    from tianshou.env import ShmemVectorEnv

    return _loop(ShmemVectorEnv(entry.env_fns()), entry)


def _loop(envs: Any, entry: Entry) -> StepLoop:
    entry.stack.callback(envs.close)
    envs.seed(0)
    envs.reset()
    return StepLoop(Resetting(envs), entry.num_envs, entry.actions)
