"""Tianshou's vector environments, whose users reset ended environments themselves."""

from __future__ import annotations

import importlib
import itertools
import time
from typing import Any

import numpy as np

from benchmarks.peers.bare_pipes import BarePipes
from benchmarks.peers.entry import Entry
from xuance_envs.measure import Runner, StepLoop


class Resetting:
    """Adapter that resets ended environments after each step, as Tianshou's collectors do."""

    def __init__(self, envs: Any) -> None:
        self._envs = envs

    def step(self, actions: Any) -> Any:
        result = self._envs.step(actions)
        (ended,) = (result[2] | result[3]).nonzero()
        if ended.size:
            self._envs.reset(ended)
        return result


class Turns:
    """A runner that sends actions immediately to the environments that were ready first.

    Args:
        envs: vector environment with ``wait_num``, after its first reset.
        entry: the environments to step.
    """

    def __init__(self, envs: Any, entry: Entry) -> None:
        self.num_envs = entry.num_envs
        self._envs = envs
        self._actions = itertools.cycle(entry.actions)
        self._ids = np.arange(entry.num_envs)

    def run(self, steps: int) -> float:
        received, wanted = 0, steps * self.num_envs
        start = time.perf_counter()
        while received < wanted:
            ids = self._ids
            *_, terminated, truncated, infos = self._envs.step(next(self._actions)[: len(ids)], ids)
            self._ids = ids = np.array([info["env_id"] for info in infos])
            ended = terminated | truncated
            if ended.any():
                self._envs.reset(ids[ended])
            received += len(ids)
        return time.perf_counter() - start


def stepped_by(module: str, name: str, entry: Entry, **options: Any) -> Runner:
    """Create a runner for a class with Tianshou's interface; :class:`Turns` for ``wait_num``."""
    envs = getattr(importlib.import_module(module), name)(entry.env_fns(), **options)
    if not envs.is_async:
        return _loop(envs, entry)
    entry.stack.callback(envs.close)
    envs.reset()
    return Turns(envs, entry)


def bare(entry: Entry, wait_num: int, processes: int, spins: bool) -> Runner:
    """Create the runner of a bare loop over pipes, the upper bound."""
    pipes = BarePipes(entry.env_fns(), wait_num, processes, spins)
    entry.stack.callback(pipes.close)
    pipes.reset()
    return Turns(pipes, entry)


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
