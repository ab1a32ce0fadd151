"""The Ray actors of a `RayRolloutCollector`: start, calls, restarts and shutdown.

Each collector plays each turn (rollout) exactly once, even if the main process is interrupted.
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

from xuance_envs.engine.data.space_layout import StepSpaces
from xuance_envs.engine.group.recipe import derived_seed
from xuance_envs.engine.ray.cluster import ActorLostError, ActorOptions, RayCluster
from xuance_envs.engine.serialization import unpack_error
from xuance_envs.errors import AlreadySteppingError, WorkerDiedError, WorkerTimeoutError
from xuance_envs.rollout.collector_actor import CollectorActor, CollectorPlan

logger = logging.getLogger("xuance_envs")

CLOSE_TIMEOUT = 5.0
"""Seconds to wait for collectors to close their environments before the actors are killed."""

START_GRACE = 5.0
"""Additional seconds for a collector to report that a worker process started too slowly."""


class _RayCollectorActor(CollectorActor):
    def _location(self) -> str:
        import ray

        context = ray.get_runtime_context()
        return f"node {ray.util.get_node_ip_address()} (id {context.get_node_id()})"


class CollectorActorPool:
    def __init__(
        self,
        cluster: RayCluster,
        options: ActorOptions,
        plans: Sequence[CollectorPlan],
        max_restarts: int | None,
    ) -> None:
        self.version = 0
        self.turn = 0
        self._cluster = cluster
        self._options = options
        self._plans = list(plans)
        self._restarts_left = max_restarts
        self._weights: Any = None
        self._actors: list[Any] = [None] * len(plans)
        # By collector number:
        self._building: dict[int, tuple[Any, float | None]] = {}  # pending call, deadline
        self._versions: dict[int, int] = {}  # of the weights
        self._updates: dict[int, Any] = {}  # pending weight updates
        # By collector number, for this turn:
        self._pending: dict[int, Any] = {}  # calls
        self._results: dict[int, Mapping[str, Any]] = {}

    def register_finalizer(self, owner: Any) -> weakref.finalize[Any, Any]:
        """Return a finalizer that kills the actors; it also runs when ``owner`` is deleted."""
        return weakref.finalize(owner, _kill_actors, self._cluster, self._actors, os.getpid())

    # -- starting ---------------------------------------------------------------------

    def start(self) -> tuple[StepSpaces, list[Any]]:
        """Return the spaces that all collectors share, and each collector's first states."""
        for number in range(len(self._plans)):
            self._launch(number)
        found = []
        for number in range(len(self._plans)):
            try:
                found.append(self._await_built(number))
            except ActorLostError as error:
                raise self._died_error(number, error, "construct") from None
        first: StepSpaces = found[0][0]
        for plan, (spaces, _) in zip(self._plans, found, strict=True):
            if (name := first.differing(spaces)) is not None:
                raise RuntimeError(
                    f"environment {plan.envs[0]} has a different {name.replace('_', ' ')} than "
                    f"environment 0: expected {getattr(first, name)}, got {getattr(spaces, name)}"
                )
        return first, [states for _, states in found]

    def _launch(self, number: int) -> None:
        plan = self._plans[number]
        actor = self._cluster.start(_RayCollectorActor, self._options, plan)
        limit = plan.start_timeout
        if limit is not None:
            limit += monotonic() + (START_GRACE if plan.in_processes else 0.0)
        self._building[number] = self._cluster.call(actor.call, "build"), limit
        self._versions[number] = self.version
        self._updates.pop(number, None)
        self._actors[number] = actor

    def _await_built(self, number: int) -> Any:
        """Wait until a collector is built; return its spaces and first states."""
        ref, limit = self._building[number]
        left = None if limit is None else max(0.0, limit - monotonic())
        try:
            description = self._get(ref, left)
        except TimeoutError:
            requested = self._cluster.describe_shortage(self._options, len(self._plans))
            details = f"It is collector {number}; all collectors request {requested}"
            plan = self._plans[number]
            assert plan.start_timeout is not None
            raise WorkerTimeoutError(
                plan.envs, None, plan.start_timeout, "construct", details
            ) from None
        del self._building[number]
        return description

    # -- playing ----------------------------------------------------------------------

    def play(self) -> None:
        """Start this turn in all collectors that have not started it yet; do not wait."""
        self._update_agents()
        for number in range(len(self._actors)):
            if number not in self._pending:
                self._pending[number] = self._call(number, "rollout", self.turn)

    def wait_rollouts(self) -> list[Mapping[str, Any]]:
        numbers = range(len(self._actors))
        while missing := [number for number in numbers if number not in self._results]:
            self._await_restarted()
            refs = {self._pending[number]: number for number in missing}
            for ref in self._cluster.wait(list(refs), 1, None):
                number = refs[ref]
                try:
                    self._results[number] = self._get(ref, None)
                except ActorLostError as error:
                    self._restart(number, error, "rollout")
        return [self._results[number] for number in numbers]

    def _await_restarted(self) -> None:
        while self._building:
            number = next(iter(self._building))
            try:
                self._await_built(number)
            except ActorLostError as error:  # for example on a node that was shutting down
                self._restart(number, error, "restart")

    def next_turn(self) -> None:
        """Discard this turn and begin the next."""
        self.turn += 1
        self._pending, self._results = {}, {}

    # -- weights ----------------------------------------------------------------------

    def update(self, weights: bytes) -> None:
        """Send new weights to all agent copies; a pending rollout keeps the old weights."""
        stored, version = self._cluster.put(weights), self.version + 1
        plans = [replace(plan, weights=weights, version=version) for plan in self._plans]
        # One statement without calls, so an interrupt cannot come halfway.
        self._plans, self._weights, self.version = plans, stored, version
        self._update_agents()

    def _update_agents(self) -> None:
        """Send new weights; wait until all agent copies have them, unless a rollout is pending."""
        for number in range(len(self._actors)):
            if self._versions[number] != self.version:  # the actor updates after a pending rollout
                self._updates[number] = self._call(number, "update", self._weights, self.version)
                self._versions[number] = self.version
        while self._updates and not self._pending:
            number, ref = next(iter(self._updates.items()))
            with suppress(ActorLostError):  # its replacement starts with the new weights
                self._get(ref, None)
            del self._updates[number]

    # -- calls ------------------------------------------------------------------------

    def call_all(self, name: str, caller: str, given: Sequence[Any] = ()) -> list[Any]:
        """Call a method of all collectors; restart failed ones; raise the first error."""
        if self._pending:
            raise AlreadySteppingError(
                f"{caller}: cannot be called while a rollout is pending; call rollout() first"
            )
        numbers = range(len(self._actors))
        calls = [self._call(number, name, *given[number : number + 1]) for number in numbers]
        answers: list[Any] = []
        while (number := len(answers)) < len(calls):
            try:
                answers.append(self._cluster.get(calls[number], None))
            except ActorLostError as error:
                self._restart(number, error, caller)
                self._await_restarted()
                calls[number] = self._call(number, name, *given[number : number + 1])
        return [_value_of(answer) for answer in answers]

    def _call(self, number: int, name: str, *arguments: Any) -> Any:
        return self._cluster.call(self._actors[number].call, name, *arguments)

    def _get(self, ref: Any, seconds: float | None) -> Any:
        return _value_of(self._cluster.get(ref, seconds))

    # -- restarts and shutdown --------------------------------------------------------

    def _restart(self, number: int, error: ActorLostError, command: str) -> None:
        """Replace a collector that failed in ``command``; the new one plays the pending rollout."""
        if not self._cluster.alive or self._restarts_left == 0:
            died = self._died_error(number, error, command)
            if self._cluster.alive:
                died.details += "\nno restarts are left: max_restarts is reached"
            raise died from None
        logger.warning("restarting collector %d: %s", number, str(error).partition("\n")[0])
        plan = self._plans[number]
        restarts = plan.restarts + 1
        seeds = plan.seeds and [s if s is None else derived_seed(s, restarts) for s in plan.seeds]
        keywords = [
            {name: derived_seed(seed, restarts) for name, seed in given.items()}
            for given in plan.keywords
        ]
        self._plans[number] = replace(plan, seeds=seeds, keywords=keywords, restarts=restarts)
        self._cluster.kill(self._actors[number])
        self._launch(number)
        if number in self._pending:
            self._pending[number] = self._call(number, "rollout", self.turn)
        if self._restarts_left is not None:
            self._restarts_left -= 1

    def _died_error(self, number: int, error: ActorLostError, command: str) -> WorkerDiedError:
        details = f"It was collector {number}. Ray reports:\n{error}"
        return WorkerDiedError(self._plans[number].envs, None, None, command, details)

    def close(self) -> None:
        """Close the environments of all collectors, unless a rollout is pending."""
        if self._cluster.alive and not self._pending:
            calls = [self._cluster.call(actor.close) for actor in self._actors if actor is not None]
            if calls:
                self._cluster.wait(calls, len(calls), CLOSE_TIMEOUT)


def max_cpus_per_collector(cluster: RayCluster, options: ActorOptions, collectors: int) -> int:
    """Return how many of the free CPUs each collector can get; of all CPUs if too few are free."""
    cluster.wait_until_idle(options)
    cpus = zip(*cluster.capacities(ActorOptions()).values(), strict=True)
    actors = zip(*cluster.capacities(options).values(), strict=True)
    for capacities, most in zip(cpus, actors, strict=True):
        for share in range(max(capacities), 0, -1):
            if sum(map(min, (room // share for room in capacities), most)) >= collectors:
                return share
    return 1


def _value_of(answer: tuple[bool, Any]) -> Any:
    ok, found = answer
    if not ok:
        raise unpack_error(found)
    return found


def _kill_actors(cluster: RayCluster, actors: list[Any], owner: int) -> None:
    if os.getpid() != owner:
        return  # a forked process
    try:
        while actors:
            if (actor := actors.pop()) is not None:
                cluster.kill(actor)
    finally:
        cluster.release()
