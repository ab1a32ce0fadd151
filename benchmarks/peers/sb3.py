"""Stable-Baselines3's vector environments."""

from __future__ import annotations

import multiprocessing
from typing import Any

from benchmarks.peers.entry import Entry
from xuance_envs.measure import StepLoop


def dummy(entry: Entry) -> StepLoop:
    from stable_baselines3.common.vec_env import DummyVecEnv

    return _loop(DummyVecEnv(entry.env_fns()), entry)


def subproc(entry: Entry) -> StepLoop:
    entry.need_processes()
    from stable_baselines3.common.vec_env import SubprocVecEnv

    start_method = None
    if entry.quick_start:  # workers are forked from a server that has imported torch once
        multiprocessing.set_forkserver_preload(["stable_baselines3.common.vec_env"])
        start_method = "forkserver"
    return _loop(SubprocVecEnv(entry.env_fns(), start_method), entry)


def _loop(envs: Any, entry: Entry) -> StepLoop:
    entry.stack.callback(envs.close)
    envs.seed(0)
    envs.reset()
    return StepLoop(envs, entry.num_envs, entry.actions)
