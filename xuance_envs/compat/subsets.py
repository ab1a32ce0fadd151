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
from gymnasium import spaces
from numpy.typing import NDArray

from xuance_envs.compat.stepping import Stepper
from xuance_envs.engine.data.info_batch import InfoBatch
from xuance_envs.engine.group.outcome import Outcome
from xuance_envs.engine.groups import Groups, LocalGroups
from xuance_envs.engine.ledger import ends_all

__all__ = ["Part", "SubsetStepper"]


class Part(NamedTuple):
    """What came of a step of some environments, in copies.

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
        self._envs_of = [np.arange(driver.lo, driver.hi) for driver in groups.drivers]
        self._numbers = itertools.count()
        observations, actions = self.arrays.observations, self.arrays.actions
        self._copy_observations = observations.copy_flat or observations.copy
        self._take_observations = observations.take_flat or observations.copy
        self._read_actions = actions.reader()
        # Rows of an array, where environments are given just these.
        is_rows = actions.flat is not None and (
            actions.flat.ndim > 1 or isinstance(actions.layout.space, spaces.Discrete)
        )
        self._action_rows = actions.flat if is_rows else None
        # The environments that were sent and have not arrived, and whether one of them waits for
        # its group; what each group was last asked: to step these, or for a command, and whether an
        # error in that leaves nothing to go on with; what has come of a command; what has come of
        # steps, while it lies in the arrays, and taken out of them.
        self._sent = np.zeros(self.num_envs, np.bool_)
        self._some_wait = False
        self._asked: dict[int, NDArray[np.intp] | None] = {}
        self._loses_all: dict[int, bool] = {}
        self._answers: dict[int, Any] = {}
        self._come: dict[int, tuple[NDArray[np.intp], Outcome]] = {}
        self._arrived: list[Part] = []

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
            self._copy_observations(),
            arrays.rewards.copy(),
            arrays.terminated.copy(),
            arrays.truncated.copy(),
            infos,
        )

    def step(self, envs: NDArray[np.intp], actions: Any) -> Part:
        """Steps some environments while none is stepping; otherwise as :meth:`step_all`."""
        self._settle()
        self._intake.put(actions, envs)
        by_group = self._by_group(envs)
        packed = {k: self._packed_step(k, list(mine.values())) for k, mine in by_group.items()}
        part = self._part(self._ask(envs, packed).items(), envs)
        self._answers = {}
        return part

    def send(self, envs: NDArray[np.intp], actions: Any) -> None:
        """Starts a step of some environments, none of which may be stepping.

        Raises:
            ValueError: the actions do not fit; nothing has happened then.
        """
        self._settle()
        self._intake.put(actions, envs)
        # In this order an interrupt leaves nothing behind that is never started.
        self._some_wait = True
        self._sent[envs] = True
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
        if self._some_wait:
            self._start_waiting()
        deadline = None if timeout is None else monotonic() + timeout
        missing = wanted - self._here()
        while missing > 0 and (flying := int(np.count_nonzero(self._sent))):
            left = None
            if deadline is not None and missing < wanted:
                left = max(deadline - monotonic(), 0.0)
            # What waits for its group is to start as soon as that has answered.
            singly = self._some_wait or deadline is not None
            if not self._collect(left, 1 if singly else min(missing, flying)):
                break
            missing = wanted - self._here()
        if self._come:
            self._take_in()
        parts, self._arrived = self._arrived, []
        return parts

    def reset(
        self, envs: NDArray[np.intp], seeds: Sequence[int | None], options: Any
    ) -> tuple[Any, InfoBatch]:
        """Resets some environments, each with its seed, and all with the same options.

        Returns:
            A copy of their observations, and their infos.

        Raises:
            EnvError: an environment raised.
            WorkerDiedError: a worker ended.
        """
        self._settle()
        packed = self._groups.packed_resets(envs.tolist(), seeds, [options] * len(envs))
        infos, _ = self._groups.results.infos(self._ask(envs, packed).items(), envs).parts
        self._answers = {}
        return self._take_observations(envs), infos

    def apply_to(
        self, envs: NDArray[np.intp], function: Callable[..., Any], arguments: Sequence[Any]
    ) -> list[Any]:
        """Calls ``function(env, *arguments)`` for some environments, each with its arguments.

        Raises:
            Exception: what the function raised; they stay usable.
        """
        self._settle()
        by_group = self._by_group(envs)
        packed = {
            k: self._groups.drivers[k].pack(
                "apply", list(mine.values()), _tried, [(function, arguments[n]) for n in mine]
            )
            for k, mine in by_group.items()
        }
        results: list[Any] = [None] * len(envs)
        for k, answers in self._ask(envs, packed, lose_all=False).items():
            for n, (error, value) in zip(by_group[k], answers, strict=True):
                if error is not None:
                    raise error
                results[n] = value
        self._answers = {}
        return results

    def _settle(self) -> None:
        """Checks that they are open, and lets go of what an interrupt left of a whole step."""
        self._groups.check_open()
        if self._ledger.stepping:
            self.finish_step()
        if self._come or self._answers:
            self._clear()

    @property
    def under_way(self) -> NDArray[np.intp]:
        """The environments that were sent, and that nobody has received."""
        sent = self._sent.copy()
        for part in self._arrived:
            sent[part.envs] = True
        for envs, _ in self._come.values():
            sent[envs] = True
        return sent.nonzero()[0]

    def _here(self) -> int:
        """How many environments have arrived, and nobody has received."""
        here = [part.envs for part in self._arrived] + [envs for envs, _ in self._come.values()]
        return sum(map(len, here))

    def _clear(self) -> None:
        """Readies the arrays for other requests, which overwrite what has come of these."""
        if self._come:
            self._take_in()
        if self._answers:  # of commands; an interrupt has kept them from being taken in
            answers = self._answers.items()
            outcomes = [(k, answer) for k, answer in answers if isinstance(answer, Outcome)]
            self._groups.results.forget(outcomes)
            self._answers = {}

    def _take_in(self) -> None:
        """Takes out of the arrays what has come of steps."""
        if not self._ledger.owing.keys().isdisjoint(self._come):
            self._collect(0.0, start=False)  # again: an interrupt came before all was taken note of
        come = self._come
        stepped = [envs for envs, _ in come.values()]
        envs = stepped[0] if len(stepped) == 1 else np.concatenate(stepped)
        part = self._part([(k, outcome) for k, (_, outcome) in come.items()], envs)
        arrived = [*self._arrived, part]
        # No call in between, so that an interrupt finds either all of it or nothing.
        self._arrived, self._come = arrived, {}

    def _by_group(self, envs: NDArray[np.intp]) -> dict[int, dict[int, int]]:
        """By group, which of some environments are its own: where they are in it, by position."""
        drivers, group_of = self._groups.drivers, self._groups.group_of
        found: dict[int, dict[int, int]] = {}
        for n, env in enumerate(envs.tolist()):
            k = group_of[env]
            found.setdefault(k, {})[n] = env - drivers[k].lo
        return found

    def _ask(
        self, envs: NDArray[np.intp], packed: Mapping[int, Any], lose_all: bool = True
    ) -> Mapping[int, Any]:
        """Asks some groups for a command, each when it has done what it is at.

        Args:
            envs: their environments.
            packed: by group, the command.
            lose_all: whether after an error in it nothing can be asked any more.

        Returns:
            By group, its answer, which is there until it is taken in or something else is asked.
        """
        ledger = self._ledger
        if not ledger.sending:
            ledger.start(packed)
            try:
                self._answers = dict(ledger.finish())
            except Exception as error:
                self._fail_with(error, lose_all)
                raise
            ledger.take()
            return self._answers
        # Nor may a command be under way any more that an interrupt has ended.
        while any([k in packed or self._asked[k] is None for k in ledger.owing]):
            self._collect(None, start=False)
        self._clear()
        self._asked.update(dict.fromkeys(packed))
        self._loses_all.update(dict.fromkeys(packed, lose_all))
        ledger.send_commands(envs, packed)
        while not self._answers.keys() >= packed.keys():
            self._collect(None, start=False)  # what waits would overwrite the first answers
        return self._answers

    def _start_waiting(self) -> None:
        """Starts the groups that have something to step, and are not at work."""
        self._clear()
        ledger = self._ledger
        some_wait = False
        whole: list[int] = []
        packed: dict[int, Any] = {}
        (sent,) = self._sent.nonzero()
        for k, mine in self._by_group(sent).items():
            if k in ledger.owing:
                asked = self._asked[k]
                some_wait |= asked is None or len(asked) < len(mine)
            elif len(mine) == len(self._envs_of[k]):
                self._asked[k] = self._envs_of[k]
                whole.append(k)
            else:
                self._asked[k] = sent[list(mine)]
                packed[k] = self._packed_step(k, list(mine.values()))
        if whole:
            ledger.send_step(ledger.envs_of(whole), whole, self._intake.packed(whole))
        if packed:
            ledger.send_commands(np.concatenate([self._asked[k] for k in packed]), packed)
        self._some_wait = some_wait

    def _packed_step(self, k: int, places: Sequence[int]) -> Any:
        """A step of some of a group's environments, as its driver takes it."""
        driver, actions = self._groups.drivers[k], self.arrays.actions
        lists: list[Any]
        if self._action_rows is not None:
            lists = [self._action_rows]
        else:
            lists = actions.objects or [self._read_actions()]
        given = [values[driver.lo : driver.hi] for values in lists]
        return driver.pack("step", given, next(self._numbers), places)

    def _collect(self, timeout: float | None, wanted: int = 1, start: bool = True) -> bool:
        """Takes in what comes next, and starts what waits for it; whether something came."""
        try:
            ready = self._ledger.wait(wanted, timeout)
        except Exception as error:
            failed = self._ledger.failed
            is_step = self._asked[failed] is not None
            self._fail_with(error, is_step or self._loses_all[failed])
            raise
        for k, answer in ready.items():
            envs = self._asked[k]
            if envs is None:
                self._answers[k] = answer
            else:
                self._come[k] = envs, answer
                self._sent[envs] = False
        if ready:
            self._ledger.receive(self._ledger.envs_of(ready))
        if start and self._some_wait:
            self._start_waiting()
        return bool(ready)

    def _part(self, outcomes: Iterable[tuple[int, Any]], envs: NDArray[np.intp]) -> Part:
        infos, _ = self._groups.results.infos(outcomes, envs).parts
        arrays = self.arrays
        return Part(
            envs,
            self._take_observations(envs),
            arrays.rewards.take(envs),
            arrays.terminated.take(envs),
            arrays.truncated.take(envs),
            infos,
        )

    def _fail_with(self, error: Exception, loses_all: bool) -> None:
        """Deals with an error in something that was asked, if it leaves nothing to go on with."""
        if loses_all or ends_all(error):
            self.fail()

    def fail(self) -> None:
        """See :class:`~xuance_envs.compat.stepping.Stepper`; environments here stay usable."""
        if isinstance(self._groups, LocalGroups):
            self._ledger.stepping = False
            with suppress(Exception):  # the one that is being dealt with
                self._ledger.finish()
            self._ledger.recall()
            self._sent[:] = False
        else:
            self.close()


def _tried(env: Any, function: Callable[..., Any], arguments: Collection[Any]) -> Any:
    """What a function raised and returned."""
    try:
        return None, function(env, *arguments)
    except Exception as error:
        return error, None
