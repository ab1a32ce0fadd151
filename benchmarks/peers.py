"""Other libraries, each as a small adapter that is only imported when it is asked for.

All but EnvPool step the same ``gymnasium.make`` environments; EnvPool has its own in C++.
Every library runs as it comes, with its defaults. That is to the advantage of Gymnasium and
EnvPool: by default the call after an episode's end only resets, and they count it as a step.
"""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from xuance_envs.engine.cpus import available_cpus
from xuance_envs.measure import StepLoop

MOST_PROCESSES = 256


class LeftOut(Exception):  # noqa: N818  # no error: a contender that cannot take part
    """Why a peer cannot take part; the message is for the report."""


@dataclass(frozen=True)
class Entry:
    """What a peer is to step.

    Attributes:
        env_id: the environment, as ``gymnasium.make`` takes it.
        num_envs: how many of them.
        actions: an array per vector step, the same for every contender.
        stack: closes what the adapter registers with it.
        note: takes a sentence for the report.
        functions: what makes each environment; None for ``gymnasium.make``.
    """

    env_id: str
    num_envs: int
    actions: Sequence[Any]
    stack: ExitStack
    note: Callable[[str], None]
    functions: Sequence[Callable[[], Any]] | None = None

    def env_fns(self) -> list[Callable[[], Any]]:
        if self.functions is not None:
            return list(self.functions)
        return [partial(gymnasium.make, self.env_id)] * self.num_envs

    def need_processes(self) -> None:
        if self.num_envs > MOST_PROCESSES:
            raise LeftOut(f"would need {self.num_envs} processes, one per environment")


def gymnasium_sync(entry: Entry) -> StepLoop:
    envs = gymnasium.vector.SyncVectorEnv(entry.env_fns())
    entry.stack.callback(envs.close)
    envs.reset(seed=0)
    return StepLoop(envs, entry.num_envs, entry.actions)


def gymnasium_async(entry: Entry) -> StepLoop:
    entry.need_processes()
    envs = gymnasium.vector.AsyncVectorEnv(entry.env_fns())
    entry.stack.callback(envs.close)
    envs.reset(seed=0)
    return StepLoop(envs, entry.num_envs, entry.actions)


def sb3_dummy(entry: Entry) -> StepLoop:
    from stable_baselines3.common.vec_env import DummyVecEnv

    envs = DummyVecEnv(entry.env_fns())
    entry.stack.callback(envs.close)
    envs.seed(0)
    envs.reset()
    return StepLoop(envs, entry.num_envs, entry.actions)


def sb3_subproc(entry: Entry) -> StepLoop:
    entry.need_processes()
    from stable_baselines3.common.vec_env import SubprocVecEnv

    # Only the start changes: workers are forked from a server that has imported torch once.
    multiprocessing.set_forkserver_preload(["stable_baselines3.common.vec_env"])
    envs = SubprocVecEnv(entry.env_fns(), "forkserver")
    entry.stack.callback(envs.close)
    envs.seed(0)
    envs.reset()
    return StepLoop(envs, entry.num_envs, entry.actions)


def envpool(entry: Entry) -> StepLoop:
    import envpool

    env_id = nearest_id(entry.env_id, envpool.list_all_envs())
    if env_id != entry.env_id:
        entry.note(f"EnvPool steps its {env_id}.")
    pool = envpool.make(
        env_id,
        env_type="gymnasium",
        num_envs=entry.num_envs,
        num_threads=min(entry.num_envs, available_cpus()),
        seed=0,
    )
    entry.stack.callback(pool.close)
    pool.reset()
    dtype = pool.action_space.dtype
    return StepLoop(pool, entry.num_envs, [batch.astype(dtype) for batch in entry.actions])


@dataclass(frozen=True)
class Peer:
    """One way of another library to step many environments: its name in tables, its adapter."""

    title: str
    make: Callable[[Entry], StepLoop]


PEERS = {
    "gymnasium-sync": Peer("Gymnasium Sync", gymnasium_sync),
    "gymnasium-async": Peer("Gymnasium Async", gymnasium_async),
    "sb3-dummy": Peer("SB3 Dummy", sb3_dummy),
    "sb3-subproc": Peer("SB3 Subproc", sb3_subproc),
    "envpool": Peer("EnvPool", envpool),
}


def make_peer(peer: Peer, entry: Entry) -> StepLoop:
    """The peer after its first reset.

    Raises:
        LeftOut: when it cannot take part, whatever the reason.
    """
    if not isinstance(entry.actions[0], np.ndarray):
        raise LeftOut("the peers are only driven with arrays of actions")
    try:
        return peer.make(entry)
    except ImportError as error:
        raise LeftOut(f"not installed ({error})") from error
    except LeftOut:
        raise
    except Exception as error:  # another library's trouble must not end the run
        raise LeftOut(f"{type(error).__name__}: {error}") from error


def nearest_id(env_id: str, known: Sequence[str]) -> str:
    """The id of the same environment with the same version, or else the nearest version.

    Raises:
        LeftOut: when there is no version of it at all.
    """
    name, version = _split_version(env_id)
    versions = {
        _split_version(other)[1]: other for other in known if _split_version(other)[0] == name
    }
    if not versions:
        raise LeftOut(f"has no {name}")
    return versions[min(versions, key=lambda other: abs(other - version))]


def _split_version(env_id: str) -> tuple[str, int]:
    """``ALE/Breakout-v5`` as ``("Breakout", 5)``."""
    match = re.fullmatch(r"(?:ALE/)?(.+?)(?:-v(\d+))?", env_id)
    assert match is not None, env_id
    return match[1], int(match[2] or 0)
