"""Steps and commands of some environments, while others may be stepping.

For interfaces that name the environments of each step. A group is asked for one thing at a time:
what is sent to one that is at work waits until it has answered, and then its environments step
together.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xuance_envs.compat.stepping import Stepper
from xuance_envs.engine.data.info_batch import InfoBatch
from xuance_envs.engine.groups import Groups, LocalGroups

__all__ = ["Part", "SubsetStepper"]


class Part(NamedTuple):
    """What came of a step, or a reset, of some environments, in copies.

    Attributes:
        envs: ``(k,)`` int: which environments.
        observations: a batch of them.
        rewards: ``(k,)`` float64.
        terminated: ``(k,)`` bool.
        truncated: ``(k,)`` bool.
        infos: of these environments.
    """

    envs: NDArray[np.intp]
    observations: Any
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    infos: InfoBatch


class SubsetStepper(Stepper):
    """Environments of which some are stepped, while others may be stepping.

    Args:
        groups: the environments, which are not reset when their episode ends.
    """

    def __init__(self, groups: Groups) -> None:
        super().__init__(groups)
        self._every = np.arange(self.num_envs)
        self._numbers = itertools.count()
        self._read_actions = self.arrays.actions.reader()
        # The environments that were sent and have not arrived; what each group was last asked:
        # to step these, or for a command; and what has come of it.
        self._sent: set[int] = set()
        self._asked: dict[int, NDArray[np.intp] | None] = {}
        self._arrived: list[Part] = []
        self._answers: dict[int, Any] = {}

    def step_all(self, actions: Any) -> Part:
        """Steps every environment, of which none may be stepping.

        What an interrupt left of a step before is waited for, and thrown away.

        Raises:
            ValueError: the actions do not fit; nothing has happened then.
            EnvError: an environment raised.
            WorkerDiedError: a worker ended.
        """
        self._settle()
        self.start_step(actions)
        infos = self.finish_step().infos
        arrays = self.arrays
        return Part(
            self._every,
            arrays.observations.copy(),
            arrays.rewards.copy(),
            arrays.terminated.copy(),
            arrays.truncated.copy(),
            infos,
        )

    def send(self, envs: NDArray[np.intp], actions: Any) -> None:
        """Starts a step of some environments, none of which may be stepping.

        Raises:
            ValueError: the actions do not fit; nothing has happened then.
        """
        self._settle()
        self._intake.put(actions, envs)
        self._sent.update(envs.tolist())
        self._start_waiting()

    def receive(self, wanted: int, timeout: float | None = None) -> list[Part]:
        """Waits for so many of the environments that were sent.

        Args:
            wanted: how many to wait for; all, if fewer were sent.
            timeout: after so many seconds less will do, but for none at all.

        Raises:
            EnvError: an environment raised.
            WorkerDiedError: a worker ended.
        """
        self._groups.check_open()
        deadline = None if timeout is None else monotonic() + timeout
        while self._sent and sum([len(part.envs) for part in self._arrived]) < wanted:
            left = None
            if deadline is not None and self._arrived:
                left = max(deadline - monotonic(), 0.0)
            if not self._collect(left):
                break
        parts, self._arrived = self._arrived, []
        return parts

    def reset(self, envs: NDArray[np.intp], seed: int | None, options: Any) -> Part:
        """Resets some environments, all with the same seed and options.

        Raises:
            EnvError: an environment raised.
            WorkerDiedError: a worker ended.
        """
        self._settle()
        count = len(envs)
        packed = self._groups.packed_resets(envs.tolist(), [seed] * count, [options] * count)
        return self._part(self._ask(envs, packed).items(), envs)

    def apply_to(
        self, envs: NDArray[np.intp], function: Callable[..., Any], arguments: Sequence[Any]
    ) -> list[Any]:
        """Calls ``function(env, *arguments)`` for some environments, each with its arguments.

        Raises:
            Exception: what the function raised; they stay usable.
        """
        self._settle()
        packed = {}
        mine: dict[int, list[int]] = {}
        for k, driver in enumerate(self._groups.drivers):
            places = [n for n, env in enumerate(envs.tolist()) if driver.lo <= env < driver.hi]
            if places:
                mine[k] = places
                packed[k] = driver.pack(
                    "apply",
                    [int(envs[n]) - driver.lo for n in places],
                    _tried,
                    [(function, arguments[n]) for n in places],
                )
        results: list[Any] = [None] * len(envs)
        for k, answers in self._ask(envs, packed).items():
            for n, (error, value) in zip(mine[k], answers, strict=True):
                if error is not None:
                    raise error
                results[n] = value
        return results

    def _settle(self) -> None:
        """Checks that they are open, and lets go of what an interrupt left of a whole step."""
        self._groups.check_open()
        if self.waiting:
            self.finish_step()

    def _ask(self, envs: NDArray[np.intp], packed: Mapping[int, Any]) -> dict[int, Any]:
        """Asks some groups for a command, each when it has done what it is at; their answers."""
        while self._ledger.owing.keys() & packed.keys():
            self._collect(None, start=False)
        for k in packed:
            self._answers.pop(k, None)
            self._asked[k] = None
        self._ledger.send_commands(envs, packed)
        while not self._answers.keys() >= packed.keys():
            self._collect(None)
        return {k: self._answers.pop(k) for k in packed}

    def _start_waiting(self) -> None:
        """Starts the groups that have something to step, and are not at work."""
        ledger = self._ledger
        for k, driver in enumerate(self._groups.drivers) if self._sent else ():
            if k in ledger.owing:
                continue
            mine = [env for env in range(driver.lo, driver.hi) if env in self._sent]
            if mine:
                envs = self._asked[k] = np.array(mine)
                if len(mine) == driver.hi - driver.lo:
                    ledger.send_step(envs, [k], self._intake.packed([k]))
                else:
                    places = [env - driver.lo for env in mine]
                    step = driver.pack("step", self._actions_of(k), next(self._numbers), places)
                    ledger.send_commands(envs, {k: step})

    def _actions_of(self, k: int) -> list[list[Any]]:
        """The actions of a group's environments, as its step takes those that are given to it."""
        driver, actions = self._groups.drivers[k], self.arrays.actions
        lists = actions.objects or [self._read_actions()]
        return [values[driver.lo : driver.hi] for values in lists]

    def _collect(self, timeout: float | None, start: bool = True) -> bool:
        """Takes in what comes next, and starts what waits for it; whether something came."""
        try:
            ready = self._ledger.wait(1, timeout)
        except Exception:
            self.fail()
            raise
        for k, outcome in ready.items():
            envs = self._asked[k]
            if envs is None:
                self._answers[k] = outcome
            else:
                self._arrived.append(self._part([(k, outcome)], envs))
                self._sent.difference_update(envs.tolist())
        if ready:
            self._ledger.receive(self._ledger.envs_of(ready))
        if start:
            self._start_waiting()
        return bool(ready)

    def _part(self, outcomes: Iterable[tuple[int, Any]], envs: NDArray[np.intp]) -> Part:
        infos, _ = self._groups.results.infos(outcomes, envs).parts
        arrays = self.arrays
        return Part(
            envs,
            arrays.observations.copy(envs),
            arrays.rewards[envs],
            arrays.terminated[envs],
            arrays.truncated[envs],
            infos,
        )

    def fail(self) -> None:
        """See :class:`~xuance_envs.compat.stepping.Stepper`; environments here stay usable."""
        if isinstance(self._groups, LocalGroups):
            self._ledger.stepping = False
            with suppress(Exception):  # the one that is being dealt with
                self._ledger.finish()
            self._ledger.recall()
            self._sent = set()
        else:
            self.close()


def _tried(env: Any, function: Callable[..., Any], arguments: Collection[Any]) -> Any:
    """What a function raised and returned."""
    try:
        return None, function(env, *arguments)
    except Exception as error:
        return error, None
