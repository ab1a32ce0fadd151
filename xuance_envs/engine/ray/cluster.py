"""Connection to a Ray cluster; Ray is imported on first use."""

from __future__ import annotations

import hashlib
import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from xuance_envs._override import override
from xuance_envs.engine.ray.actor import GroupActor
from xuance_envs.engine.ray.hosting import ActorPlan
from xuance_envs.engine.system.current import system
from xuance_envs.extras import missing_extra

RELEASE_DELAY = 2.0  # maximum seconds until Ray counts the CPUs of ended actors as free

_lock = threading.RLock()
_USAGE_REPORTS = "RAY_USAGE_STATS_ENABLED"


class ActorLostError(Exception):
    """An actor or its reply was lost; the error has Ray's message."""


@dataclass(frozen=True)
class ActorOptions:
    """Resources and placement of each actor."""

    num_cpus: float = 1.0
    resources: Mapping[str, float] = field(default_factory=dict)
    runtime_env: Mapping[str, Any] | None = None
    scheduling_strategy: Any = "SPREAD"
    node: str | None = None

    @property
    def counted(self) -> dict[str, float]:
        """Resources per actor, for computing how many actors fit; zero CPUs count as one."""
        return {"CPU": 1.0} | {name: value for name, value in self.needed.items() if value > 0}

    @property
    def needed(self) -> dict[str, float]:
        return {"CPU": self.num_cpus, **self.resources}

    def for_workers(self, count: int, node: str | None) -> ActorOptions:
        return replace(
            self,
            num_cpus=count * self.num_cpus,
            resources={name: _round_up(count * value) for name, value in self.resources.items()},
            node=node,
        )

    @property
    def spreads(self) -> bool:
        """True if the user left placement to Ray, so that nodes may be chosen here."""
        return self.scheduling_strategy in ("SPREAD", "DEFAULT")

    def for_ray(self) -> dict[str, Any]:
        custom, strategy = dict(self.resources), self.scheduling_strategy
        if self.node is not None:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            strategy = NodeAffinitySchedulingStrategy(self.node, soft=True)
        # Ray must not restart actors or repeat calls. Task events take a tenth of a call's time.
        options = {
            "num_cpus": self.num_cpus,
            "max_restarts": 0,
            "max_task_retries": 0,
            "enable_task_events": False,
            "scheduling_strategy": strategy,
            "num_gpus": custom.pop("GPU", None),
            "memory": custom.pop("memory", None),
            "resources": custom or None,
            "runtime_env": None if self.runtime_env is None else dict(self.runtime_env),
        }
        return {name: value for name, value in options.items() if value is not None}


class RayGroupActor(GroupActor):
    def location(self) -> tuple[int, str]:
        import ray

        return os.getpid(), str(ray.get_runtime_context().get_node_id())

    def listen(self) -> tuple[str, int, bytes]:
        import ray

        return self.listen_at(ray.util.get_node_ip_address())

    @override
    def is_ended(self, key: bytes) -> bool:
        return _end_notices("exists", key)


class RayCluster:
    """The process's connection to Ray; if this class has opened it, its last user closes it."""

    # The connection that this class has opened: its identity, runtime_env and number of holders.
    _shared: tuple[str, str] | None = None
    _runtime_env: Mapping[str, Any] | None = None
    _holders = 0

    def __init__(
        self, address: str | None = None, runtime_env: Mapping[str, Any] | None = None
    ) -> None:
        try:
            import ray
        except ImportError as error:
            raise missing_extra("the Ray backend", "ray", error) from error
        self._ray: Any = ray
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
        if not where.startswith("ray://"):
            given["include_dashboard"] = False
        # Disable usage reports of a new cluster, unless the user chose a value.
        is_chosen = _USAGE_REPORTS in os.environ
        os.environ.setdefault(_USAGE_REPORTS, "0")
        try:
            self._ray.init(address=address, **given)
        finally:
            if not is_chosen:
                del os.environ[_USAGE_REPORTS]

    def _connection(self) -> tuple[str, str]:
        """Identify the connection by node and job; a job id is unique only within its cluster."""
        context = self._ray.get_runtime_context()
        return context.get_node_id(), context.get_job_id()

    def release(self) -> None:
        """Release the connection; repeated calls do nothing."""
        with _lock:
            was_holder, self._is_holder = self._is_holder, False
            if was_holder and self._identity == RayCluster._shared:  # else there is a new one
                RayCluster._holders -= 1
                if not RayCluster._holders and self.alive:
                    RayCluster._shared = None
                    self._ray.shutdown()

    @property
    def alive(self) -> bool:
        """True if the connection is open and belongs to this process."""
        return (
            self._owner == os.getpid()
            and self._ray.is_initialized()
            and self._connection() == self._identity
        )

    # -- actors -----------------------------------------------------------------------

    @property
    def direct_connection_obstacle(self) -> str | None:
        """Reason why actors cannot be connected to directly, or None."""
        if self._ray.util.client.ray.is_connected():
            return "this process is outside the cluster (ray://)"
        if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
            return "the cluster's connections are encrypted (RAY_USE_TLS)"
        return None if system.HAS_SERVER else f"{system.NAME} has no poll"

    def start_actor(self, options: ActorOptions, plan: ActorPlan) -> Any:
        # One thread per worker process, the others for the connection and calls to the whole actor.
        more = {"max_concurrency": len(plan.split) + 3} if plan.in_processes else {}
        return self.start(RayGroupActor, options, plan, **more)

    def start(self, kind: type[Any], options: ActorOptions, plan: Any, **more: Any) -> Any:
        """Start an actor of any class without waiting for it; return its handle."""
        given = options.for_ray() | more
        if self._is_holder and options.runtime_env == RayCluster._runtime_env:
            given.pop("runtime_env", None)  # actors inherit the connection's
        return self._ray.remote(kind).options(**given).remote(plan)

    def kill(self, handle: Any) -> None:
        if self.alive:
            self._ray.kill(handle, no_restart=True)

    def call(self, method: Any, *arguments: Any) -> Any:
        """Call an actor's method without waiting; return Ray's reference."""
        return method.remote(*arguments) if self.alive else None

    def end_connection(self, key: bytes) -> None:
        """Store a notice that a connection has ended, in case its actor cannot take Ray calls."""
        if self.alive:
            _end_notices("put", key, b"")

    def withdraw_end(self, key: bytes) -> None:
        if self.alive:
            _end_notices("del", key)

    def put(self, value: Any) -> Any:
        """Store a value that several calls use; each node receives it once."""
        return self._ray.put(value) if self.alive else None

    def get(self, ref: Any, seconds: float | None) -> Any:
        if ref is None or not self._ray.is_initialized():
            raise ActorLostError("the connection to Ray has been shut down")
        errors = self._ray.exceptions
        try:
            return self._ray.get(ref, timeout=seconds)
        except errors.GetTimeoutError:
            raise TimeoutError from None
        except errors.RayTaskError:
            raise  # a bug: actors return environments' exceptions
        except SystemError as error:
            # Ray raises this if Ctrl-C coincides with the timeout.
            if isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from None
            raise
        except errors.RayError as error:
            raise ActorLostError(str(error)) from None

    def wait(self, refs: Sequence[Any], count: int, seconds: float | None) -> list[Any]:
        """Wait up to ``seconds`` until ``count`` calls end; return up to ``count`` of them."""
        if not self.alive or None in refs:
            return list(refs)  # get() raises the error of each
        ready: list[Any] = self._ray.wait(list(refs), num_returns=count, timeout=seconds)[0]
        return ready

    def name_node(self, node_id: str) -> str:
        """Return a node's address and id, even if the node has failed."""
        nodes = self._ray.nodes() if self.alive else []
        addresses = [n["NodeManagerAddress"] for n in nodes if n["NodeID"] == node_id]
        return f"node {', '.join(addresses) or '?'} (id {node_id})"

    # -- resources --------------------------------------------------------------------

    def wait_until_idle(self, options: ActorOptions) -> None:
        """Wait until the resources of ended actors count as free."""
        total = _capacity(self._ray.cluster_resources(), options.counted)
        deadline = time.monotonic() + RELEASE_DELAY
        while self._free_capacity(options) < total and time.monotonic() < deadline:
            time.sleep(RELEASE_DELAY / 20)

    def free_workers(self, options: ActorOptions) -> int:
        """Return the number of actors that fit in the cluster now, at least 1."""
        return max(1, self._free_capacity(options))

    def _free_capacity(self, options: ActorOptions) -> int:
        return _capacity(self._ray.available_resources(), options.counted)

    def capacities(self, options: ActorOptions) -> dict[str, tuple[int, int]]:
        """Return, by node id, (number of actors that fit now, number that fit an idle node)."""
        from ray._private import state

        # A Ray Client connection only reports total resources.
        outside = self._ray.util.client.ray.is_connected()
        free: Mapping[str, Any] = {} if outside else state.available_resources_per_node()
        totals = {node["NodeID"]: node["Resources"] for node in self._ray.nodes() if node["Alive"]}
        needed = options.counted
        return {
            node: (_capacity(free.get(node, total), needed), _capacity(total, needed))
            for node, total in totals.items()
        }

    def describe_shortage(self, options: ActorOptions, workers: int) -> str:
        total, free = self._ray.cluster_resources(), self._ray.available_resources()
        return ", ".join(
            f"{workers} × {value:g} {name} (the cluster has {total.get(name, 0.0):g}, "
            f"{free.get(name, 0.0):g} free)"
            for name, value in options.needed.items()
        )


def _end_notices(operation: str, key: bytes, *value: bytes) -> bool:
    """Put, find or delete a notice that a connection has ended, in Ray's key-value store."""
    from ray.exceptions import RayError
    from ray.experimental import internal_kv

    name = hashlib.sha256(key).hexdigest()
    try:
        access = getattr(internal_kv, f"_internal_kv_{operation}")
        return bool(access(name, *value, namespace="xuance_envs"))
    except RayError:  # the cluster's head node is unavailable
        return False


def _round_up(amount: float) -> float:
    """Round up amounts above one, which Ray accepts only as integers."""
    return amount if amount <= 1 else math.ceil(amount - 1e-6)


def _capacity(resources: Mapping[str, float], needed: Mapping[str, float]) -> int:
    fitting = [resources.get(name, 0.0) / value for name, value in needed.items()]
    return math.floor(min(fitting) + 1e-6)
