"""The environments of a group saved, and loaded."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.group.outcome import Autoreset, Outcome, Showing, WithStates
from xuance_envs.engine.group.requests import Lent
from xuance_envs.engine.serialization import dumps_for_worker, loads
from xuance_envs.errors import EnvError, StateError
from xuance_envs.state.faults import FaultError, MismatchError, as_error
from xuance_envs.state.fingerprint import Fingerprint
from xuance_envs.state.handlers import registered, take_registered
from xuance_envs.state.pickling import dumps_plain, loads_plain
from xuance_envs.state.single import Prepared, StateOfEnv

__all__ = ["DIFFERENT", "REPLACED", "GroupStates", "checksum", "packed_registry"]

Saved = tuple[bytes | int | None, bytes, bool]
"""A state, or how many bytes it has; the digest of what it was saved from; whether it replays."""


REPLACED = "its process was replaced after the state had been read: do it again"
"""The reason why a state that was read is not there."""

DIFFERENT = "different"
"""Stands for a repetition that came to something else."""


def checksum(shown: Sequence[Sequence[Any]]) -> int:
    """A number for what environments show: as far as it is arrays."""
    total = 0
    for leaves in shown:
        for leaf in leaves:
            if isinstance(leaf, np.ndarray | np.generic):
                total = zlib.crc32(leaf.tobytes(), total)
    return total


def packed_registry() -> bytes | None:
    """What was registered for classes of others, for another process; None for nothing."""
    known = registered()
    return dumps_for_worker(known) if known else None


class _Group(Protocol):
    envs: list[Any]

    def showing(self, i: int) -> Showing: ...

    def show(self, showings: Mapping[int, Showing]) -> Outcome: ...

    def each(
        self, command: str, places: Sequence[int], act: Any, values: Sequence[Any] | None = None
    ) -> list[Any]: ...

    def step_with(self, actions: Sequence[NDArray[Any]]) -> Outcome: ...

    def note_in_infos(self, key: str) -> None: ...

    def outcome(self) -> Outcome: ...

    def command(self, name: str) -> Callable[..., Any]: ...

    def tell_of_columns(self) -> None: ...


class _Itself(NamedTuple):
    """Stands for a state that an environment is in already."""

    seen: Any

    def put_in(self) -> None:
        """See :class:`~xuance_envs.state.single.Prepared`."""


def _put_in(prepared: Prepared | _Itself) -> None:
    prepared.put_in()


class GroupStates:
    """Saves and loads the environments of a group.

    Args:
        group: the group.
        first: the index in the vector environment of its first environment.
        autoreset: when an environment whose episode ended is reset.
    """

    def __init__(self, group: _Group, first: int, autoreset: Autoreset) -> None:
        self._group = group
        self._first = first
        self._autoreset = autoreset
        self._of_env: dict[int, tuple[Any, StateOfEnv]] = {}
        self._here: dict[int, bytes] = {}
        self._leaving: dict[int, bytes] = {}
        self._prepared: dict[int, Prepared | _Itself] = {}
        self._registry: bytes | None = None
        self._facts: dict[bytes, bytes] = {}

    def save_states(
        self,
        places: Sequence[int],
        registry: bytes | None,
        wanted: Collection[int] | None = None,
        kept: Collection[int] = (),
        most: int | None = None,
    ) -> tuple[list[Saved], dict[bytes, bytes]]:
        """The states of some environments, and by its digest, packed, what each was saved from.

        Args:
            places: the environments.
            registry: what was registered for classes of others, pickled.
            wanted: whose states are to be handed over; None for all.
            kept: whose are kept here for others of the group, until the next command about states.
            most: so many bytes of states may be in the answer. Where there are more, their sizes
                are, and :meth:`hand_over` is asked for next; None for any number.

        Raises:
            StateError: one cannot be saved.
        """
        self._register(registry)
        self.forget_states()
        facts: dict[bytes, bytes] = {}

        def save_one(i: int) -> tuple[bytes, bytes, bool]:
            state = self._state(i)
            seen = self._seen(i)
            try:
                plan = state.plan
                data = state.save(seen, plan)
            except FaultError as fault:
                raise as_error(self._first + i, fault, "save_state") from None
            digest = plan.fingerprint.digest
            if digest not in facts:
                facts[digest] = self._fact(plan.fingerprint)
            return data, digest, plan.replays

        found = dict(zip(places, self._group.each("save_state", places, save_one), strict=True))
        self._here = {i: found[i][0] for i in kept}
        leaving = {i: found[i][0] for i in (found if wanted is None else wanted)}
        saved: dict[int, Saved] = {
            i: (leaving.get(i), digest, replays) for i, (_, digest, replays) in found.items()
        }
        if most is not None and sum(map(len, leaving.values())) > most:
            self._leaving = leaving
            saved.update({i: (len(data), *saved[i][1:]) for i, data in leaving.items()})
        return list(saved.values()), facts

    def hand_over(self, places: Sequence[int], lent: Sequence[Lent]) -> None:
        """Writes the states whose sizes :meth:`save_states` told.

        Args:
            places: the environments.
            lent: where the state of each is to be.

        Raises:
            StateError: another process has them, and they are gone.
        """
        for i, part in zip(places, lent, strict=True):
            part.write(self._found(self._leaving, i, "save_state"))
            del self._leaving[i]

    def prepare_states(
        self,
        places: Sequence[int],
        sources: Sequence[tuple[bool, int]],
        digests: Sequence[bytes],
        facts: Mapping[bytes, bytes],
        forks: bool,
        trusted: bool,
        registry: bytes | None,
        states: Sequence[bytes | Lent] = (),
    ) -> list[str]:
        """Reads states for some environments, and sees whether they can be put in.

        Args:
            places: the environments.
            sources: for each, whether its state was kept here, and then the place of the one that
                it is of; otherwise which of the states it is.
            digests: of what each was saved from.
            facts: by the digests, what these are, packed.
            forks: whether random streams are to be others from then on.
            trusted: whether states may name classes of any module.
            registry: as for :meth:`save_states`.
            states: those from elsewhere, or where they are lent.

        Returns:
            What may make a difference and need not.

        Raises:
            StateError: one cannot be read.
            StateMismatchError: one is of an environment that is not like the one it is for.
        """
        self._register(registry)
        self._prepared = {}
        brought = [one if isinstance(one, bytes) else one.read() for one in states]
        prepared: dict[int, Prepared | _Itself] = {}

        def prepare_one(given: tuple[int, tuple[bool, int], bytes]) -> list[str]:
            i, (is_here, number), digest = given
            if is_here and number == i and not forks:
                prepared[i] = _Itself(self._seen(i))
                return []
            data = self._found(self._here, number, "clone_state") if is_here else brought[number]
            state, env = self._state(i), self._first + i
            try:
                plan = state.plan
                own, doubts = plan.fingerprint, []
                if digest != own.digest:
                    doubts = own.check(*loads_plain(facts[digest], trusted))
                prepared[i] = state.prepare(data, trusted, [env] if forks else None, plan)
                self._check_autoreset(prepared[i].seen[2])
            except FaultError as fault:
                raise as_error(env, fault, "load_state") from None
            return doubts

        given = list(zip(places, sources, digests, strict=True))
        doubts: list[list[str]] = self._group.each("load_state", places, prepare_one, given)
        self._prepared, self._here = prepared, {}
        return list(dict.fromkeys(doubt for each in doubts for doubt in each))

    def load_states(self, places: Sequence[int]) -> Outcome:
        """Puts in the states that were prepared.

        Raises:
            EnvError: an environment raised.
        """
        showings = {}
        prepared, self._prepared = self._prepared, {}
        for i in places:
            self._found(prepared, i, "load_state")
        self._group.each("load_state", places, _put_in, [prepared[i] for i in places])
        for i in places:
            leaves, info, pending, arguments = prepared[i].seen
            showings[i] = Showing(leaves, info, bool(pending), arguments)
        return self._group.show(showings)

    def forget_states(self) -> None:
        """Lets go of all that is kept for the next command."""
        self._here, self._leaving, self._prepared = {}, {}, {}

    # -- for who loses no step ----------------------------------------------------------

    def with_states(
        self, command: str, arguments: Sequence[Any], registry: bytes | None
    ) -> WithStates:
        """Does a command, and saves all environments thereafter.

        What cannot be saved is no error: then there are no states.
        """
        result = self._group.command(command)(*arguments)
        began = perf_counter()
        states = self.states_if_any(registry)
        return WithStates(result, states, perf_counter() - began)

    def states_if_any(
        self, registry: bytes | None
    ) -> tuple[list[Saved], dict[bytes, bytes]] | None:
        """The states of all environments; None where one cannot be saved."""
        with suppress(EnvError):
            return self.save_states(range(len(self._group.envs)), registry)
        return None

    def resume(
        self,
        states: tuple[list[Saved], Mapping[bytes, bytes]],
        steps: Sequence[Sequence[NDArray[Any]]],
        seen: int,
        registry: bytes | None,
        then: tuple[str, Sequence[Any]] | None,
    ) -> Any:
        """Goes on in the place of environments that were lost.

        Args:
            states: all of them, saved before.
            steps: the actions since, as leaves.
            seen: what :func:`checksum` gives for what they showed then.
            registry: as for :meth:`save_states`.
            then: a command, and its arguments; what was lost.

        Returns:
            What came of that command; :data:`DIFFERENT` where the repetition came to something
            else than was seen.
        """
        saved, facts = states
        places = range(len(self._group.envs))
        try:
            sources = [(False, i) for i in places]
            data, digests, _ = zip(*saved, strict=True)
            about = facts, False, True, registry
            self.prepare_states(places, sources, digests, *about, data)
            self.load_states(places)
            for actions in steps:
                self._group.step_with(actions)
        except EnvError:
            return DIFFERENT
        if checksum([self._group.showing(i).leaves for i in places]) != seen:
            return DIFFERENT
        self._group.tell_of_columns()
        if then is None:
            return None
        command, arguments = then
        result = self._group.command(command)(*arguments)
        if command == "step":
            self._group.note_in_infos("worker_restarted")
            result = self._group.outcome()
        return result

    def _seen(self, i: int) -> tuple[Any, ...]:
        """What is kept with a state of what the environment shows."""
        leaves, info, pending, arguments = self._group.showing(i)
        return leaves, info, pending and self._autoreset.name, dict(arguments)

    def _found(self, kept: Mapping[int, Any], i: int, command: str) -> Any:
        """What was kept of an environment.

        Raises:
            StateError: nothing was.
        """
        if i not in kept:
            raise StateError(
                self._first + i,
                command,
                REPLACED,
            )
        return kept[i]

    def _check_autoreset(self, pending: str | bool) -> None:
        if pending and pending != self._autoreset.name:
            then = Autoreset[str(pending)].value
            raise MismatchError("moment of the reset that is pending", then, self._autoreset.value)

    def _fact(self, fingerprint: Fingerprint) -> bytes:
        """What belongs to a fingerprint's digest, packed; an environment's is packed once."""
        digest = fingerprint.digest
        if digest not in self._facts:
            self._facts[digest] = dumps_plain((fingerprint.parts, fingerprint.versions))
        return self._facts[digest]

    def _state(self, i: int) -> StateOfEnv:
        env = self._group.envs[i]
        known = self._of_env.get(i)
        if known is None or known[0] is not env:
            known = self._of_env[i] = env, StateOfEnv(env)
        return known[1]

    def _register(self, registry: bytes | None) -> None:
        if registry is not None and registry != self._registry:
            take_registered(loads(registry))
            self._registry = registry
            self._of_env = {}
