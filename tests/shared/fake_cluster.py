"""A simulated cluster for tests that do not need Ray: its actors are threads of this process."""

from __future__ import annotations

import contextlib
import math
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from functools import partial
from time import monotonic
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from xuance_envs._override import override
from xuance_envs.engine.ray import hosting
from xuance_envs.engine.ray.actor import GroupActor
from xuance_envs.engine.ray.cluster import ActorLostError, ActorOptions
from xuance_envs.engine.ray.hosting import ActorPlan
from xuance_envs.vector_envs import ray_vec_env

HELD = {signal.SIGINT, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF}
HELD_FOR = 0.02
"""Maximum seconds for which signals are blocked."""


class PretendedActor(GroupActor):
    """The inside of a Ray actor, in this process."""

    ended: ClassVar[set[bytes]] = set()

    def location(self) -> tuple[int, str]:
        return os.getpid(), "of this process"

    def listen(self) -> tuple[str, int, bytes]:
        return self.listen_at("127.0.0.1")

    @override
    def is_ended(self, key: bytes) -> bool:
        return key in self.ended


class PretendedCluster:
    """Simulated :class:`~xuance_envs.engine.ray.cluster.RayCluster`."""

    alive = True

    def __init__(
        self, capacities: Mapping[str, int], direct_connection_obstacle: str | None
    ) -> None:
        self._rooms = capacities
        self.direct_connection_obstacle = direct_connection_obstacle

    def wait_until_idle(self, options: ActorOptions) -> None:
        pass

    def free_workers(self, options: ActorOptions) -> int:
        return sum(self._rooms.values())

    def capacities(self, options: ActorOptions) -> dict[str, tuple[int, int]]:
        return {node: (room, room) for node, room in self._rooms.items()}

    def start_actor(self, options: ActorOptions, plan: ActorPlan) -> Any:
        actor = PretendedActor(plan)
        threads = len(plan.split) + 3 if plan.in_processes else 1
        pool = futures.ThreadPoolExecutor(threads, "pretended")
        methods = {
            name: SimpleNamespace(of=pool, does=getattr(actor, name))
            for name in ("answer", "attach", "close", "listen", "serve", "location")
        }
        return SimpleNamespace(**methods, actor=actor, pool=pool)

    def call(self, method: Any, *arguments: Any) -> futures.Future[Any]:
        try:
            return undisturbed(lambda: method.of.submit(method.does, *arguments))
        except RuntimeError:  # the actor was killed
            lost: futures.Future[Any] = futures.Future()
            lost.set_exception(ActorLostError("it was killed"))
            return lost

    def end_connection(self, key: bytes) -> None:
        PretendedActor.ended.add(key)

    def withdraw_end(self, key: bytes) -> None:
        PretendedActor.ended.discard(key)

    def put(self, value: Any) -> Any:
        return value

    def get(self, ref: futures.Future[Any], seconds: float | None) -> Any:
        if not self.wait([ref], 1, seconds):
            raise TimeoutError
        return undisturbed(ref.result)

    def wait(self, refs: Sequence[Any], count: int, seconds: float | None) -> list[Any]:
        ends = math.inf if seconds is None else monotonic() + seconds
        when = futures.FIRST_COMPLETED if count == 1 else futures.ALL_COMPLETED
        while True:
            left = min(max(ends - monotonic(), 0.0), HELD_FOR)
            done = undisturbed(partial(futures.wait, refs, left, when)).done
            if len(done) >= count or monotonic() >= ends:
                return [ref for ref in refs if ref in done][:count]  # like Ray

    def kill(self, handle: Any) -> None:
        handle.actor.close()
        handle.pool.shutdown()

    def name_node(self, node_id: str) -> str:
        return f"node {node_id}"

    def release(self) -> None:
        return


def undisturbed(does: Callable[[], Any]) -> Any:
    """Call a function with signals blocked; an interrupt could leave a pool's lock locked."""
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
        return does()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)


@contextlib.contextmanager
def pretended_machines(
    direct_connection_obstacle: str | None = None, **capacities: int
) -> Iterator[None]:
    """Create Ray vectorized environments on simulated machines within this context."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            ray_vec_env,
            "RayCluster",
            lambda *_: PretendedCluster(capacities, direct_connection_obstacle),
        )
        patch.setattr(hosting, "CONTEXT", "forkserver")
        yield
