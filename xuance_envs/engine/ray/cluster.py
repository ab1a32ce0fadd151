"""The connection to Ray: what the rest of the package asks of a cluster.

Ray itself is imported here only, and only when a connection is wanted.
"""

from __future__ import annotations

import logging
import math
import os
import select
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from xuance_envs.engine.ray.actor import ActorPlan, SingleGroupActor
from xuance_envs.engine.ray.connectable_actor import ConnectableActor
from xuance_envs.engine.ray.multi_process_actor import MultiProcessActor

__all__ = ["ActorLostError", "ActorOptions", "RayCluster"]

logger = logging.getLogger("xuance_envs")

RELEASE_DELAY = 2.0
"""Seconds the CPUs of actors that have just ended may take to count as free again."""

_lock = threading.RLock()


class ActorLostError(Exception):
    """An actor is lost, or what it replied; says what Ray says of it."""


@dataclass(frozen=True)
class ActorOptions:
    """What each actor takes of the cluster, and where."""

    num_cpus: float = 1.0
    resources: Mapping[str, float] = field(default_factory=dict)
    runtime_env: Mapping[str, Any] | None = None
    scheduling_strategy: Any = "SPREAD"
    node: str | None = None

    @property
    def counted(self) -> dict[str, float]:
        """What one actor takes when it is counted for how many there is room."""
        return {"CPU": 1.0} | {name: value for name, value in self.needed.items() if value > 0}

    @property
    def needed(self) -> dict[str, float]:
        """What one actor takes, by the names a cluster has for it."""
        return {"CPU": self.num_cpus, **self.resources}

    def for_workers(self, count: int, node: str | None) -> ActorOptions:
        """What an actor takes that is for so many, on a node if it is there and has the room."""
        return replace(
            self,
            num_cpus=count * self.num_cpus,
            resources={name: _round_up(count * value) for name, value in self.resources.items()},
            node=node,
        )

    @property
    def spreads(self) -> bool:
        """Whether Ray is to choose nodes, so that they may as well be chosen here."""
        return self.scheduling_strategy in ("SPREAD", "DEFAULT")

    def for_ray(self) -> dict[str, Any]:
        """The same as Ray's options.

        Ray is never to restart an actor or repeat a call, nor to keep a record of each call, which
        takes the caller and the actor a tenth of what a call takes.
        """
        custom = dict(self.resources)
        gpus, memory = custom.pop("GPU", None), custom.pop("memory", None)
        options: dict[str, Any] = {
            "num_cpus": self.num_cpus,
            "max_restarts": 0,
            "max_task_retries": 0,
            "enable_task_events": False,
            "scheduling_strategy": self._strategy(),
        }
        given = {
            "num_gpus": gpus,
            "memory": memory,
            "resources": custom or None,
            "runtime_env": None if self.runtime_env is None else dict(self.runtime_env),
        }
        return options | {name: value for name, value in given.items() if value is not None}

    def _strategy(self) -> Any:
        if self.node is None:
            return self.scheduling_strategy
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(self.node, soft=True)


class _RayMixin(ConnectableActor):
    """What an actor of Ray's tells of itself."""

    def location(self) -> tuple[int, str]:
        """Its process id, and the id of its node."""
        import ray

        return os.getpid(), str(ray.get_runtime_context().get_node_id())

    def listen(self) -> tuple[str, int, bytes]:
        """Begins to listen at the address that Ray knows its node by."""
        import ray

        return self.listen_at(ray.util.get_node_ip_address())


class RaySingleGroupActor(_RayMixin, SingleGroupActor):
    """A group of environments in a Ray actor."""


class RayMultiProcessActor(_RayMixin, MultiProcessActor):
    """Groups of environments in the processes of a Ray actor."""


class RayCluster:
    """A connection to Ray; the one this process has already, or else one made for it.

    One that is made is shared, and shut down when the last who holds it lets go of it.
    """

    # Of the connection that was made here: which it is, what all of its actors need, and how many
    # hold it.
    _shared: tuple[str, str] | None = None
    _runtime_env: Mapping[str, Any] | None = None
    _holders = 0

    def __init__(
        self, address: str | None = None, runtime_env: Mapping[str, Any] | None = None
    ) -> None:
        self._ray: Any = _imported_ray()
        self._owner = os.getpid()
        with _lock:
            if not self._ray.is_initialized():
                self._start(address, runtime_env)
                RayCluster._shared, RayCluster._holders = self._connection(), 0
                RayCluster._runtime_env = runtime_env
            self._identity = self._connection()
            self._is_holder = self._identity == RayCluster._shared
            RayCluster._holders += self._is_holder

    def _start(self, address: str | None, runtime_env: Mapping[str, Any] | None) -> None:
        given: dict[str, Any] = {} if runtime_env is None else {"runtime_env": dict(runtime_env)}
        where = address or os.environ.get("RAY_ADDRESS", "")
        if not where.startswith("ray://"):  # and so where a cluster is started, too
            given["include_dashboard"] = False
        with _no_usage_statistics():
            self._ray.init(address=address, **given)

    def _connection(self) -> tuple[str, str]:
        """What tells one connection from another: each cluster numbers its jobs from 1."""
        context = self._ray.get_runtime_context()
        return context.get_node_id(), context.get_job_id()

    def release(self) -> None:
        """Lets go of the connection; again, it does nothing."""
        with _lock:
            if not self._is_holder:
                return
            self._is_holder = False
            if self._identity != RayCluster._shared:
                return  # it has been shut down since, and another one made
            RayCluster._holders -= 1
            if not RayCluster._holders and self.alive:
                RayCluster._shared = None
                self._ray.shutdown()

    @property
    def alive(self) -> bool:
        """Whether there still is this connection, and this is the process that has it."""
        return (
            self._owner == os.getpid()
            and self._ray.is_initialized()
            and self._connection() == self._identity
        )

    # -- actors -----------------------------------------------------------------------

    @property
    def direct_connection_obstacle(self) -> str | None:
        """Why actors are not to be connected to, in words; None where they are."""
        if self._ray.util.client.ray.is_connected():
            return "this program is no part of the cluster (ray://)"
        if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
            return "the cluster's connections are encrypted (RAY_USE_TLS)"
        return None if hasattr(select, "poll") else "this system has no poll"

    def start_actor(self, options: ActorOptions, plan: ActorPlan) -> Any:
        """Starts an actor, and does not wait for it; returns its handle."""
        if not plan.in_processes:
            return self.start(RaySingleGroupActor, options, plan)
        # Groups may be asked one by one, while there is a connection; and there is something else
        # to ask of them all.
        return self.start(RayMultiProcessActor, options, plan, max_concurrency=len(plan.split) + 3)

    def start(self, kind: type[Any], options: ActorOptions, plan: Any, **more: Any) -> Any:
        """The same for an actor of any class, which is made of its plan."""
        given = options.for_ray() | more
        if self._is_holder and options.runtime_env == RayCluster._runtime_env:
            given.pop("runtime_env", None)  # it is the whole connection's
        return self._ray.remote(kind).options(**given).remote(plan)

    def kill(self, handle: Any) -> None:
        """Ends an actor, whatever it is doing."""
        if self.alive:
            self._ray.kill(handle, no_restart=True)

    def call(self, method: Any, *arguments: Any) -> Any:
        """Calls an actor's method, and does not wait for it."""
        return method.remote(*arguments) if self.alive else None

    def put(self, value: Any) -> Any:
        """Brings a value to where several calls may have it from: once to each node."""
        return self._ray.put(value) if self.alive else None

    def get(self, ref: Any, seconds: float | None) -> Any:
        """What a call replied."""
        if ref is None or not self._ray.is_initialized():
            raise ActorLostError("the connection to Ray has been shut down")
        errors = self._ray.exceptions
        try:
            return self._ray.get(ref, timeout=seconds)
        except errors.GetTimeoutError:
            raise TimeoutError from None
        except errors.RayTaskError:
            raise  # it ran, and raised what is not for an actor to raise
        except SystemError as error:
            # What Ray makes of Ctrl-C in the very moment in which the time is over.
            if isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from None
            raise
        except errors.RayError as error:
            raise ActorLostError(str(error)) from None

    def wait(self, refs: Sequence[Any], count: int, seconds: float | None) -> list[Any]:
        """Waits until so many calls have replied or failed, or the time is over; tells which have.

        Where more have than were waited for, not all of them need be told.
        """
        if not self.alive or None in refs:
            return list(refs)  # none of them will, which is told when it is asked for
        ready: list[Any] = self._ray.wait(list(refs), num_returns=count, timeout=seconds)[0]
        return ready

    def name_node(self, node_id: str) -> str:
        """A node in words, also one that is no more: its address and its id."""
        nodes = self._ray.nodes() if self.alive else []
        addresses = [n["NodeManagerAddress"] for n in nodes if n["NodeID"] == node_id]
        return f"node {', '.join(addresses) or '?'} (id {node_id})"

    # -- resources --------------------------------------------------------------------

    def wait_until_idle(self, options: ActorOptions) -> None:
        """Waits until what has just ended counts as free, if anything is taken at all."""
        total = _capacity(self._ray.cluster_resources(), options.counted)
        deadline = time.monotonic() + RELEASE_DELAY
        while self._free_capacity(options) < total and time.monotonic() < deadline:
            time.sleep(RELEASE_DELAY / 20)

    def free_workers(self, options: ActorOptions) -> int:
        """For how many actors there is room in the cluster now, at least 1.

        An actor without CPUs counts as one that takes a CPU.
        """
        return max(1, self._free_capacity(options))

    def _free_capacity(self, options: ActorOptions) -> int:
        return _capacity(self._ray.available_resources(), options.counted)

    def cpus(self) -> int:
        """How many CPUs the cluster has."""
        return int(self._ray.cluster_resources().get("CPU", 0))

    def capacities(self, options: ActorOptions) -> dict[str, tuple[int, int]]:
        """For how many actors there is room on each node, by its id: now, and if it were idle."""
        from ray._private import state

        # Where the connection is one to a proxy, nodes can only be asked what they have.
        free = {} if self._ray.util.client.ray.is_connected() else _free_of(state)
        capacities = {}
        for node in self._ray.nodes():
            if node["Alive"]:
                total = _capacity(node["Resources"], options.counted)
                now = _capacity(free.get(node["NodeID"], node["Resources"]), options.counted)
                capacities[node["NodeID"]] = (now, total)
        return capacities

    def describe_shortage(self, options: ActorOptions, workers: int) -> str:
        """What workers take, and what there is of it, in words."""
        needed = options.needed
        total, free = self._ray.cluster_resources(), self._ray.available_resources()
        parts = [
            f"{workers} × {value:g} {name} (in the cluster {total.get(name, 0.0):g}, "
            f"free {free.get(name, 0.0):g})"
            for name, value in needed.items()
        ]
        return ", ".join(parts)


def _free_of(state: Any) -> Mapping[str, Mapping[str, float]]:
    found: Mapping[str, Mapping[str, float]] = state.available_resources_per_node()
    return found


def _round_up(amount: float) -> float:
    """As much of a resource, or more: Ray has no parts of more than one."""
    return amount if amount <= 1 else math.ceil(amount - 1e-6)


def _capacity(resources: Mapping[str, float], needed: Mapping[str, float]) -> int:
    return min(
        math.floor(resources.get(name, 0.0) / value + 1e-6) for name, value in needed.items()
    )


def _imported_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ImportError(
            'environments on several machines need Ray: pip install "xuance_envs[ray]"'
        ) from error
    return ray


@contextmanager
def _no_usage_statistics() -> Iterator[None]:
    """Keeps a cluster that is started from reporting to Ray's makers, unless the user has a say."""
    name = "RAY_USAGE_STATS_ENABLED"
    if name in os.environ:
        yield
        return
    os.environ[name] = "0"
    try:
        yield
    finally:
        del os.environ[name]
