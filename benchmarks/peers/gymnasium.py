"""Gymnasium's own vector environments."""

from __future__ import annotations

from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from benchmarks.peers.entry import Entry
from xuance_envs.measure import StepLoop


def sync(entry: Entry) -> StepLoop:
    return _loop(SyncVectorEnv(entry.env_fns()), entry)


def in_processes(entry: Entry) -> StepLoop:
    entry.need_processes()
    return _loop(AsyncVectorEnv(entry.env_fns()), entry)


def _loop(envs: SyncVectorEnv | AsyncVectorEnv, entry: Entry) -> StepLoop:
    entry.stack.callback(envs.close)
    envs.reset(seed=0)
    return StepLoop(envs, entry.num_envs, entry.actions)
