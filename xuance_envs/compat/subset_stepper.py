"""Steps and commands for some environments while others may be stepping.

An environment is *sent* when its action is sent. A group executes one request at a time.
Environments that are sent to a busy group wait for its reply, and then step together.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from xuance_envs.compat.stepping import Stepper
from xuance_envs.engine.data.info_batch import InfoBatch
from xuance_envs.engine.driver import Driver
from xuance_envs.engine.group.base_env_group import AttributeSetter
from xuance_envs.engine.group.outcome import Outcome
from xuance_envs.engine.groups import Groups, LocalGroups
from xuance_envs.engine.ledger import is_fatal
from xuance_envs.engine.system.exclusive import exclusive


class PartialStep(NamedTuple):
    """Copied results of some environments."""

    envs: NDArray[np.intp]
    observations: Any
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    infos: InfoBatch


class SubsetStepper(Stepper):
    def __init__(self, groups: Groups) -> None:
        super().__init__(groups)
        self._every = np.arange(self.num_envs)
        self._numbers = itertools.count()
        observations, actions = self.arrays.observations, self.arrays.actions
        self._copy_observations = observations.copy_flat or observations.copy
        self._take_observations = observations.take_flat or observations.copy
        self._read_actions = actions.reader()
        # Rows of the action array can be passed to environments unchanged.
        has_rows = actions.flat is not None and (
            actions.flat.ndim > 1 or isinstance(actions.layout.space, spaces.Discrete)
        )
        self._action_lists: list[Any] = [actions.flat] if has_rows else actions.objects
        self._sent = np.zeros(self.num_envs, np.bool_)  # sent and not finished
        self._has_queued = False  # True if a sent environment waits for its group
        # By group: the environments of the last request if it was a step. If it was a command, a
        # bool: whether every error is fatal.
        self._last_request: dict[int, NDArray[np.intp] | bool] = {}
        self._replies: dict[int, Any] = {}  # replies to commands, by group
        # Results of finished steps: those still in the arrays, and those already copied.
        self._finished_in_arrays: dict[int, tuple[NDArray[np.intp], Outcome]] = {}
        self._finished_parts: list[PartialStep] = []

    @exclusive
    def step_all(self, actions: Any) -> PartialStep:
        """Step every environment, after discarding a step that an interrupt left pending."""
        self._discard_stale()
        self._start_step(actions)
        infos, _ = self._finish_step()
        arrays = self.arrays
        return PartialStep(
            self._every,
            self._copy_observations(),
            arrays.rewards.copy(),
            arrays.terminated.copy(),
            arrays.truncated.copy(),
            infos,
        )

    @exclusive
    def step(self, envs: NDArray[np.intp], actions: Any) -> PartialStep:
        """Step some environments, after discarding a step that an interrupt left pending."""
        self._discard_stale()
        self._action_writer.put(actions, envs)
        split = self._ledger.split_by_group(envs.tolist())
        packed = {k: self._pack_step(driver, mine) for k, driver, mine in split}
        part = self._partial_step(self._run_commands(envs, packed).items(), envs)
        self._replies = {}
        return part

    @exclusive
    def send(self, envs: NDArray[np.intp], actions: Any) -> None:
        """Start a step of some environments, which must not be stepping."""
        self._discard_stale()
        self._action_writer.put(actions, envs)
        # In this order, an interrupt cannot leave a sent environment that never starts.
        self._has_queued = True
        self._sent[envs] = True
        self._start_queued()

    @exclusive
    def receive(self, wanted: int, timeout: float | None = None) -> list[PartialStep]:
        """Wait for ``wanted`` environments to finish; after ``timeout`` seconds, one is enough."""
        self._groups.check_open()
        if self._has_queued:
            self._start_queued()
        deadline = None if timeout is None else monotonic() + timeout
        while (missing := wanted - sum(map(len, self._finished_envs()))) > 0 and (
            num_in_flight := int(np.count_nonzero(self._sent))
        ):
            left = None
            if deadline is not None and missing < wanted:
                left = max(deadline - monotonic(), 0.0)
            # Queued environments start as soon as their group has replied.
            one_at_a_time = self._has_queued or deadline is not None
            if not self._collect(left, 1 if one_at_a_time else min(missing, num_in_flight)):
                break
        self._free_arrays()
        parts, self._finished_parts = self._finished_parts, []
        return parts

    @exclusive
    def reset(
        self, envs: NDArray[np.intp], seeds: Sequence[int | None], options: Any
    ) -> tuple[Any, InfoBatch]:
        self._discard_stale()
        packed = self._groups.pack_resets(envs.tolist(), seeds, [options] * len(envs))
        infos, _ = self._groups.info_collector.infos(
            self._run_commands(envs, packed).items(), envs
        ).parts
        self._replies = {}
        return self._take_observations(envs), infos

    @exclusive
    def apply_to(
        self, envs: NDArray[np.intp], function: Callable[..., Any], arguments: Sequence[Any]
    ) -> list[Any]:
        self._discard_stale()
        kind = AttributeSetter if isinstance(function, AttributeSetter) else partial
        catching, ids = kind(_call_catching, function), envs.tolist()
        arguments_of = dict(zip(ids, arguments, strict=True))
        split = self._ledger.split_by_group(ids)
        packed = {
            k: driver.pack(
                "apply", driver.places_of(mine), catching, [*map(arguments_of.get, mine)]
            )
            for k, driver, mine in split
        }
        replies = self._run_commands(envs, packed, fatal_on_error=False)
        results: dict[int, Any] = {}
        for k, _, mine in split:
            for env, (error, result) in zip(mine, replies[k], strict=True):
                if error is not None:
                    raise error
                results[env] = result
        self._replies = {}
        return [results[env] for env in ids]

    def _discard_stale(self) -> None:
        """Check that the stepper is open, and discard an interrupted :meth:`step_all`."""
        self._groups.check_open()
        if self._ledger.stepping:
            self._finish_step()
        self._free_arrays()

    @property
    def in_flight(self) -> NDArray[np.intp]:
        """Environments that were sent and not received."""
        return np.unique(np.concatenate([*self._sent.nonzero(), *self._finished_envs()]))

    def _finished_envs(self) -> list[NDArray[np.intp]]:
        copied = [part.envs for part in self._finished_parts]
        return copied + [envs for envs, _ in self._finished_in_arrays.values()]

    def _free_arrays(self) -> None:
        """Copy results out of the arrays, because the next requests overwrite them."""
        if finished := self._finished_in_arrays:
            if not self._ledger.in_flight.requests.keys().isdisjoint(finished):
                self._collect(0.0, start=False)  # finish a collection that was interrupted
            stepped = [envs for envs, _ in finished.values()]
            envs = stepped[0] if len(stepped) == 1 else np.concatenate(stepped)
            part = self._partial_step([(k, outcome) for k, (_, outcome) in finished.items()], envs)
            finished_parts = [*self._finished_parts, part]
            # One statement without calls, so that an interrupt cannot separate the assignments.
            self._finished_parts, self._finished_in_arrays = finished_parts, {}
        if self._replies:  # left by an interrupt
            replies = self._replies.items()
            outcomes = [(k, reply) for k, reply in replies if isinstance(reply, Outcome)]
            self._groups.info_collector.absorb(outcomes)
            self._replies = {}

    def _run_commands(
        self, envs: NDArray[np.intp], packed: Mapping[int, Any], fatal_on_error: bool = True
    ) -> Mapping[int, Any]:
        """Run a command in some groups, each after its current request."""
        ledger = self._ledger
        if not ledger.in_flight.any:
            try:
                self._replies = ledger.command(packed, dict)
            except Exception as error:
                if fatal_on_error or is_fatal(error):
                    self.fail()
                raise
            return self._replies
        # Wait for interrupted commands too.
        last_request = self._last_request
        while any(
            [k in packed or isinstance(last_request[k], bool) for k in ledger.in_flight.requests]
        ):
            self._collect(None, start=False)
        self._free_arrays()
        last_request.update(dict.fromkeys(packed, fatal_on_error))
        ledger.send_commands(envs, packed)
        while not self._replies.keys() >= packed.keys():
            self._collect(None, start=False)  # queued steps would overwrite the first replies
        return self._replies

    def _start_queued(self) -> None:
        """Start the idle groups that have environments to step."""
        self._free_arrays()
        ledger = self._ledger
        has_queued = False
        whole: list[int] = []
        packed: dict[int, Any] = {}
        for k, driver, mine in ledger.split_by_group(self._sent.nonzero()[0].tolist()):
            if k in ledger.in_flight.requests:
                last = self._last_request[k]
                has_queued |= isinstance(last, bool) or len(last) < len(mine)
                continue
            self._last_request[k] = np.array(mine)
            if len(mine) == driver.hi - driver.lo:
                whole.append(k)
            else:
                packed[k] = self._pack_step(driver, mine)
        if whole:
            ledger.send_step(
                ledger.in_flight.envs_of(whole), whole, self._action_writer.packed(whole)
            )
        if packed:
            ledger.send_commands(np.concatenate([self._last_request[k] for k in packed]), packed)
        self._has_queued = has_queued

    def _pack_step(self, driver: Driver, envs: Sequence[int]) -> Any:
        """Pack a step of some environments of a group, for its driver."""
        lists = self._action_lists or [list(self._read_actions())]
        given = [values[driver.lo : driver.hi] for values in lists]
        return driver.pack("step", given, next(self._numbers), driver.places_of(envs))

    def _collect(self, timeout: float | None, wanted: int = 1, start: bool = True) -> bool:
        """Receive the next replies and start queued steps; return whether any reply arrived."""
        try:
            ready = self._ledger.in_flight.wait(wanted, timeout)
        except Exception as error:
            self._ledger.check_not_closed(error)
            failed = self._last_request[self._ledger.in_flight.failed_group]
            if failed is not False or is_fatal(error):
                self.fail()
            raise
        self._ledger.check_not_closed()
        for k, reply in ready.items():
            envs = self._last_request[k]
            if isinstance(envs, bool):
                self._replies[k] = reply
            else:
                self._finished_in_arrays[k] = envs, reply
                self._sent[envs] = False
        if ready:
            self._ledger.receive(self._ledger.in_flight.envs_of(ready))
        if start and self._has_queued:
            self._start_queued()
        return bool(ready)

    def _partial_step(
        self, outcomes: Collection[tuple[int, Any]], envs: NDArray[np.intp]
    ) -> PartialStep:
        infos, _ = self._groups.info_collector.infos(outcomes, envs).parts
        arrays = self.arrays
        return PartialStep(
            envs,
            self._take_observations(envs),
            arrays.rewards[envs],
            arrays.terminated.take(envs),
            arrays.truncated.take(envs),
            infos,
        )

    def fail(self) -> None:
        """Close the groups, except for environments in this process, which stay usable."""
        if isinstance(self._groups, LocalGroups):
            self._ledger.clear()
            self._sent[:] = False
        else:
            self.close()


def _call_catching(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function; return ``(None, result)`` or ``(exception, None)``."""
    try:
        return None, function(*arguments)
    except Exception as error:
        return error, None
