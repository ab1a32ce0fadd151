"""A pretended cluster: actors of this process, asked in threads, for what needs no Ray."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from types import SimpleNamespace
from typing import Any

import pytest

from xuance_envs.engine.ray import machine
from xuance_envs.engine.ray.actor import ActorPlan
from xuance_envs.engine.ray.cluster import ActorOptions, LostError
from xuance_envs.engine.ray.machine import MachineActor
from xuance_envs.vector_envs import ray_vec_env


class PretendedCluster:
    """Does what is asked of a :class:`~xuance_envs.engine.ray.cluster.RayCluster`.

    Args:
        rooms: by node, for how many workers there is room.
    """

    alive = True

    def __init__(self, rooms: Mapping[str, int]) -> None:
        self._rooms = rooms

    def free_workers(self, options: ActorOptions) -> int:
        return sum(self._rooms.values())

    def rooms(self, options: ActorOptions) -> dict[str, tuple[int, int]]:
        return {node: (room, room) for node, room in self._rooms.items()}

    def start_actor(self, options: ActorOptions, plan: ActorPlan) -> Any:
        actor = MachineActor(plan)
        pool = futures.ThreadPoolExecutor(len(plan.split) + 2, "pretended")
        methods = {
            name: SimpleNamespace(of=pool, does=getattr(actor, name))
            for name in ("answer", "attach", "close")
        }
        whereabouts = SimpleNamespace(of=pool, does=lambda: (os.getpid(), "of this process"))
        return SimpleNamespace(**methods, actor=actor, pool=pool, whereabouts=whereabouts)

    def call(self, method: Any, *arguments: Any) -> futures.Future[Any]:
        try:
            return method.of.submit(method.does, *arguments)
        except RuntimeError:  # it was killed
            lost: futures.Future[Any] = futures.Future()
            lost.set_exception(LostError("it was killed"))
            return lost

    def get(self, ref: futures.Future[Any], seconds: float | None) -> Any:
        try:
            return ref.result(seconds)
        except futures.TimeoutError:
            raise TimeoutError from None

    def wait(self, refs: Sequence[Any], count: int, seconds: float | None) -> list[Any]:
        deadline = threading.TIMEOUT_MAX if seconds is None else seconds
        when = futures.FIRST_COMPLETED if count == 1 else futures.ALL_COMPLETED
        return list(futures.wait(refs, deadline, when).done)

    def kill(self, handle: Any) -> None:
        handle.actor.close()
        handle.pool.shutdown()

    def name_node(self, node_id: str) -> str:
        return f"node {node_id}"

    def release(self) -> None:
        return


@contextlib.contextmanager
def pretended_machines(**rooms: int) -> Iterator[None]:
    """Has vector environments on Ray made on pretended machines, for as long as this lasts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray_vec_env, "RayCluster", lambda *_: PretendedCluster(rooms))
        patch.setattr(machine, "CONTEXT", "forkserver")
        yield
