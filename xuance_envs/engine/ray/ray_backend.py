"""Backend that starts, connects to, restarts and ends Ray actors."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from time import monotonic
from typing import Any

from xuance_envs._override import override
from xuance_envs.engine.backend import CLOSE_TIMEOUT, FORCED_CLOSE_TIMEOUT, Backend
from xuance_envs.engine.data.space_layout import StepSpaces
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.driver import Driver
from xuance_envs.engine.group.protocol import StateTransfer
from xuance_envs.engine.group.recipe import Recipe
from xuance_envs.engine.pickled_commands import pickled_functions
from xuance_envs.engine.polling import Poller
from xuance_envs.engine.ray.actor_client import CONNECT_TIMEOUT, ActorClient
from xuance_envs.engine.ray.cluster import ActorLostError, ActorOptions, RayCluster
from xuance_envs.engine.ray.driver import ActorDriver
from xuance_envs.engine.ray.exchange import Exchange
from xuance_envs.engine.ray.hosting import ActorPlan
from xuance_envs.engine.serialization import dumps_for_worker

logger = logging.getLogger("xuance_envs")

# Bytes above which a group's states are sent as Ray objects. Otherwise, Ray would store arguments
# of this size once per call.
TRANSFER_THRESHOLD = 100 * 1024


@dataclass(frozen=True)
class ActorAssignment:
    """The workers of one actor, and the node on which to start it."""

    workers: range
    node: str | None = None


def one_actor_per_node(
    count: int, capacities: Mapping[str, tuple[int, int]]
) -> list[ActorAssignment]:
    """Assign workers to one actor per node, by free capacity, or by total if too little is free."""
    free = {node: now for node, (now, _) in capacities.items()}
    if sum(free.values()) < count:
        free = {node: idle for node, (_, idle) in capacities.items()}
    taken = dict.fromkeys(capacities, 0)
    left = count
    while left and any(free.values()):
        node = max(free, key=lambda each: (free[each], -taken[each]))
        free[node] -= 1
        taken[node] += 1
        left -= 1
    sizes: list[tuple[int, str | None]] = [(size, node) for node, size in taken.items() if size]
    if left:  # actors as large as the largest node, for nodes that join later
        most = max([1, *(total for _, total in capacities.values())])
        waiting = math.ceil(left / most)
        sizes += [((left + k) // waiting, None) for k in range(waiting)]
    ends = accumulate(size for size, _ in sizes)
    return [
        ActorAssignment(range(end - size, end), where)
        for end, (size, where) in zip(ends, sizes, strict=True)
    ]


class RayBackend(Backend[ActorDriver]):
    def __init__(
        self,
        cluster: RayCluster,
        options: ActorOptions,
        plan: ActorPlan,
        assignments: Sequence[ActorAssignment],
        split: Sequence[tuple[int, int]],
        recipe: Recipe,
    ) -> None:
        super().__init__(split, recipe, plan.info_bytes)
        self.exchange = Exchange(cluster, self.workers)
        self.actors = self.exchange.actors
        self.after_submit = self.exchange.send
        self.state_transfer = ObjectStoreTransfer(cluster)
        self._cluster = cluster
        self._options = options
        self._plan = plan
        self._may_connect = cluster.direct_connection_obstacle is None
        self._assignments = assignments
        self._place_of = {
            worker: (number, worker - assignment.workers.start)
            for number, assignment in enumerate(assignments)
            for worker in assignment.workers
        }

    def _start(self, index: int, started: Callable[[ActorDriver], None]) -> None:
        number, group = self._place_of[index]
        if number == len(self.actors):
            self.actors.append(self._new_actor(number))
        actor, exchange = self.actors[number], self.exchange
        started(ActorDriver(actor, group, exchange, self._describe_shortage))

    def _new_actor(self, number: int) -> ActorClient:
        assignment = self._assignments[number]
        workers = assignment.workers
        plan = replace(self._plan, split=tuple(self._split[workers.start : workers.stop]))
        options = self._options.for_workers(len(workers), assignment.node)
        return ActorClient(self._cluster, options, plan)

    def _describe_shortage(self) -> str:
        """Explain why Ray may not have started an actor."""
        return (
            "Ray has not started the actor, probably because the cluster has too few free "
            "resources. All actors together need "
            f"{self._cluster.describe_shortage(self._options, len(self._split))}. Use fewer "
            "workers with more environments each (in_series), or fewer CPUs per worker "
            "(num_cpus_per_worker)"
        )

    def _end(self, index: int) -> None:
        """Replace a failed actor by a new one for all its workers, unless only a process failed."""
        number, _ = self._place_of[index]
        actor = self.actors[number]
        gone = actor.lost is not None or not self._plan.in_processes
        if gone and actor is self.workers[index].actor:
            end_actors(self._cluster, [actor], FORCED_CLOSE_TIMEOUT)
            self.actors[number] = self._new_actor(number)
            self._attach_actor(self.actors[number])

    @override
    def attach(self, spaces: StepSpaces, arrays: StepArrays) -> None:
        self._arrays = arrays
        packed = dumps_for_worker(spaces)
        self._plan = replace(self._plan, spaces=packed)
        for actor, ref in [(actor, actor.allocate(packed)) for actor in self.actors]:
            self._attach_actor(actor)
            try:
                self._cluster.get(ref, None)
            except ActorLostError as error:
                actor.mark_lost(str(error))
                lost = next(worker for worker in self.workers if worker.actor is actor)
                raise lost.death_error() from None
        if self._may_connect:
            self._connect()
        super().attach(spaces, arrays)

    def _connect(self) -> None:
        left, unconnected = CONNECT_TIMEOUT, []
        for actor, listen_ref in [(actor, actor.listen()) for actor in self.actors]:
            began = monotonic()
            why = actor.connect(listen_ref, began + left)
            if why is not None:  # all failures together take at most CONNECT_TIMEOUT
                left = max(left - (monotonic() - began), 0.0)
                unconnected.append(actor.connection_failure(why))
        if unconnected:
            self._may_connect = False  # actors that replace these use Ray calls, too
            logger.warning(
                "%s; using Ray calls for %d of %d actors",
                *(unconnected[0], len(unconnected), len(self.actors)),
            )

    def _attach_actor(self, actor: ActorClient) -> None:
        envs = actor.plan.envs
        actor.attach(self._arrays.slice(envs.start, envs.stop), self._may_connect)

    @override
    def poller(self, drivers: Sequence[Driver]) -> Poller:
        return self.exchange

    @override
    def end(self, close_timeout: float = CLOSE_TIMEOUT) -> None:
        self.workers.clear()
        end_actors(self._cluster, self.actors, close_timeout)

    @override
    def release(self) -> None:
        self._cluster.release()

    @override
    def _functions(self, lo: int, hi: int) -> bytes:
        return pickled_functions(self.recipe.env_fns[lo:hi], lo)

    def _attach_arguments(self, lo: int, hi: int) -> tuple[Any, ...]:
        plans = (actor.plan for actor in self.actors)
        plan = next(plan for plan in plans if lo in plan.envs)
        first = plan.envs.start
        place = plan.reserved, lo - first, hi - first
        return self._spaces, len(plan.envs), *place, self.info_bytes


def end_actors(cluster: RayCluster, actors: list[ActorClient], close_timeout: float) -> None:
    try:
        if cluster.alive:
            calls = [call for actor in actors if (call := actor.ask_to_close()) is not None]
            if calls:
                cluster.wait(calls, len(calls), close_timeout)
    finally:
        while actors:
            actors.pop().kill()


class ObjectStoreTransfer(StateTransfer):
    """Transfer of states as Ray objects, which Ray frees when no reference is left."""

    def __init__(self, cluster: RayCluster) -> None:
        self._cluster = cluster
        # By id(state): the state, to keep its id unique, and Ray's reference.
        self._transferred: dict[int, tuple[bytes, Any]] = {}

    @override
    def should_transfer(self, states: Sequence[Any]) -> bool:
        return sum(map(len, states)) > TRANSFER_THRESHOLD

    @override
    def export(self, states: Sequence[Any]) -> Sequence[Any]:
        for state in states:
            if id(state) not in self._transferred:
                self._transferred[id(state)] = state, self._cluster.put(state)
        return [self._transferred[id(state)][1] for state in states]

    @override
    def release(self) -> None:
        self._transferred = {}
