"""The Ray actors of many collectors: started, asked, made anew where they are lost, and ended.

Rollouts are played in turns: each collector plays each turn once, whatever interrupts the caller.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import Any

from xuance_envs.engine.driver import derived_seed
from xuance_envs.engine.ray.cluster import ActorLostError, ActorOptions, RayCluster
from xuance_envs.engine.serialization import unpack_error
from xuance_envs.errors import WorkerDiedError, WorkerTimeoutError
from xuance_envs.rollout.collector_actor import CollectorActor, CollectorPlan

__all__ = ["CollectorActorPool", "max_cpus_per_collector"]

logger = logging.getLogger("xuance_envs")

CLOSE_TIMEOUT = 5.0
"""Seconds collectors have to close their environments before they are killed."""

START_GRACE = 5.0
"""Seconds more that a collector has to tell that a process of its own took too long to start."""


class _RayCollectorActor(CollectorActor):
    """A collector in a Ray actor."""

    def _location(self) -> str:
        import ray

        context = ray.get_runtime_context()
        return f"node {ray.util.get_node_ip_address()} (id {context.get_node_id()})"


class CollectorActorPool:
    """The collectors of a cluster, each in an actor."""

    def __init__(
        self,
        cluster: RayCluster,
        options: ActorOptions,
        plans: Sequence[CollectorPlan],
        start_timeout: float | None,
        max_restarts: int | None,
    ) -> None:
        self.version = 0
        self.turn = 0
        self._cluster = cluster
        self._options = options
        self._plans = list(plans)
        self._start_timeout = start_timeout
        self._restarts_left = max_restarts
        self._weights: Any = None
        self._actors: list[Any] = [None] * len(plans)
        # By collector: what tells that it is built, and until when; the version of the weights
        # that it was sent; what tells that it has them.
        self._building: dict[int, tuple[Any, float | None]] = {}
        self._versions: dict[int, int] = {}
        self._updates: dict[int, Any] = {}
        # Of this turn: the call and the version that it is played with; then what came of it.
        self._pending: dict[int, tuple[Any, int]] = {}
        self._results: dict[int, tuple[Mapping[str, Any], int]] = {}

    def register_finalizer(self, owner: Any) -> weakref.finalize[Any, Any]:
        """Has them end with an object; what is returned ends them now."""
        return weakref.finalize(owner, _kill_actors, self._cluster, self._actors, os.getpid())

    # -- starting ---------------------------------------------------------------------

    def start(self) -> list[Any]:
        """Starts all; what each tells of itself once it is built."""
        for number in range(len(self._plans)):
            self._launch(number)
        found = []
        for number in range(len(self._plans)):
            try:
                found.append(self._await_built(number))
            except ActorLostError as error:
                raise self._died_error(number, error, "construct") from None
        return found

    def _launch(self, number: int) -> None:
        plan = self._plans[number]
        actor = self._cluster.start(_RayCollectorActor, self._options, plan)
        limit = self._start_timeout
        if limit is not None:
            limit += monotonic() + (START_GRACE if plan.in_processes else 0.0)
        self._building[number] = self._cluster.call(actor.build), limit
        self._versions[number] = self.version
        self._updates.pop(number, None)
        self._actors[number] = actor

    def _await_built(self, number: int) -> Any:
        """What one tells of itself once it is built."""
        ref, limit = self._building[number]
        left = None if limit is None else max(0.0, limit - monotonic())
        try:
            description = self._get(ref, left)
        except TimeoutError:
            requested = self._cluster.describe_shortage(self._options, len(self._plans))
            details = f"It is collector {number}. All of them take {requested}"
            assert self._start_timeout is not None
            raise WorkerTimeoutError(
                self._envs(number), None, self._start_timeout, "construct", details
            ) from None
        del self._building[number]
        return description

    # -- playing ----------------------------------------------------------------------

    @property
    def playing(self) -> bool:
        """Whether a rollout is being played, or has not been taken."""
        return bool(self._pending)

    def play(self) -> None:
        """Has all play this turn, and does not wait; those that were asked already are not."""
        self._send_weights()
        self._await_updates()
        for number, actor in enumerate(self._actors):
            if number not in self._pending:
                version = self._versions[number]
                self._pending[number] = self._cluster.call(actor.rollout, self.turn), version

    def wait_rollouts(self) -> list[tuple[Mapping[str, Any], int]]:
        """Waits for this turn of all."""
        numbers = range(len(self._actors))
        while missing := [number for number in numbers if number not in self._results]:
            self._await_restarted()
            refs = {self._pending[number][0]: number for number in missing}
            for ref in self._cluster.wait(list(refs), 1, None):
                number = refs[ref]
                try:
                    self._results[number] = self._get(ref, None), self._pending[number][1]
                except ActorLostError as error:
                    self._restart(number, error)
        return [self._results[number] for number in numbers]

    def _await_restarted(self) -> None:
        """Sees that those which were made anew are there."""
        while self._building:
            number = next(iter(self._building))
            try:
                self._await_built(number)
            except ActorLostError as error:  # as on a node of which nobody knew that it was leaving
                self._restart(number, error)

    def next_turn(self) -> None:
        """Lets go of this turn."""
        self.turn += 1
        self._pending, self._results = {}, {}

    # -- weights ----------------------------------------------------------------------

    def update(self, weights: bytes) -> None:
        """Gives all copies of the agent other weights; a rollout being played keeps its own."""
        self._plans = [replace(plan, weights=weights) for plan in self._plans]
        self._weights = self._cluster.put(weights)
        self.version += 1
        self._send_weights()
        self._await_updates()

    def _send_weights(self) -> None:
        for number, actor in enumerate(self._actors):
            if self._versions[number] != self.version:  # it comes behind what it is playing
                self._updates[number] = self._cluster.call(actor.update, self._weights)
                self._versions[number] = self.version

    def _await_updates(self) -> None:
        """Sees that the copies have their weights, unless they are playing."""
        while self._updates and not self._pending:
            number, ref = next(iter(self._updates.items()))
            with suppress(ActorLostError):  # another one begins with them
                self._get(ref, None)
            del self._updates[number]

    # -- asking -----------------------------------------------------------------------

    def call_all(
        self, name: str, arguments: Sequence[tuple[Any, ...]] | None = None
    ) -> list[tuple[bool, Any]]:
        """Asks all for the same between two rollouts; a lost one is made anew before."""
        given = arguments or [()] * len(self._actors)
        calls = [self._call(number, name, given[number]) for number in range(len(self._actors))]
        answers = []
        for number, ref in enumerate(calls):
            try:
                answers.append(self._cluster.get(ref, None))
            except ActorLostError as error:
                self._restart(number, error)
                self._await_restarted()
                retry = self._call(number, name, given[number])
                answers.append(self._cluster.get(retry, None))
        return answers

    def _call(self, number: int, name: str, arguments: tuple[Any, ...]) -> Any:
        return self._cluster.call(getattr(self._actors[number], name), *arguments)

    def _get(self, ref: Any, seconds: float | None) -> Any:
        """What a collector answered."""
        ok, found = self._cluster.get(ref, seconds)
        if not ok:
            raise unpack_error(found)
        return found

    # -- losing and ending ------------------------------------------------------------

    def _restart(self, number: int, error: ActorLostError) -> None:
        """Makes a lost collector anew, and has it play the rollout that it owes, if any."""
        if not self._cluster.alive:
            raise self._died_error(number, error, "rollout") from None
        if self._restarts_left == 0:
            died = self._died_error(number, error, "rollout")
            died.details += "\nno restart is left: max_restarts have been made"
            raise died from None
        logger.warning("collector %d is made anew: %s", number, str(error).partition("\n")[0])
        plan = self._plans[number]
        restarts = plan.restarts + 1
        seeds = plan.seeds and [
            None if seed is None else derived_seed(seed, restarts) for seed in plan.seeds
        ]
        self._plans[number] = replace(plan, seeds=seeds, restarts=restarts)
        self._cluster.kill(self._actors[number])
        self._launch(number)
        if number in self._pending:
            ref = self._cluster.call(self._actors[number].rollout, self.turn)
            self._pending[number] = ref, self.version
        if self._restarts_left is not None:
            self._restarts_left -= 1

    def _envs(self, number: int) -> range:
        plan = self._plans[number]
        return range(plan.first, plan.first + plan.num_envs)

    def _died_error(self, number: int, error: ActorLostError, command: str) -> WorkerDiedError:
        details = f"It was collector {number}. Ray says:\n{error}"
        return WorkerDiedError(self._envs(number), None, None, command, details)

    def close(self) -> None:
        """Has the environments closed, but for those of collectors that are playing."""
        if self._cluster.alive and not self._pending:
            calls = [self._cluster.call(actor.close) for actor in self._actors if actor is not None]
            if calls:
                self._cluster.wait(calls, len(calls), CLOSE_TIMEOUT)


def max_cpus_per_collector(cluster: RayCluster, options: ActorOptions, collectors: int) -> int:
    """The most CPUs that so many collectors find room with: in what is free, or if all were idle."""
    cluster.wait_until_idle(options)
    cpus = zip(*cluster.capacities(ActorOptions()).values(), strict=True)
    actors = zip(*cluster.capacities(options).values(), strict=True)
    for capacities, most in zip(cpus, actors, strict=True):
        for share in range(max(capacities), 0, -1):
            if sum(map(min, (room // share for room in capacities), most)) >= collectors:
                return share
    return 1


def _kill_actors(cluster: RayCluster, actors: list[Any], owner: int) -> None:
    if os.getpid() != owner:
        return  # forked from it
    try:
        while actors:
            if (actor := actors.pop()) is not None:
                cluster.kill(actor)
    finally:
        cluster.release()
