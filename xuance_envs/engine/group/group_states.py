"""Saving and loading the states of a group's environments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

from xuance_envs.engine.group.outcome import ActingState, Autoreset, Outcome
from xuance_envs.engine.group.protocol import StateBuffer
from xuance_envs.engine.serialization import dumps_for_worker, loads
from xuance_envs.errors import EnvError, StateError
from xuance_envs.state.checkpointer import EnvCheckpointer
from xuance_envs.state.faults import FaultError, MismatchError, to_state_error
from xuance_envs.state.handlers import merge_registered, registered
from xuance_envs.state.pickling import dumps_plain, loads_plain

# Saved state or its size, digest of its fingerprint, and True if loading replays actions.
Saved = tuple[bytes | int | None, bytes, bool]


# Error reason if a worker restart lost a saved or prepared state.
WORKER_REPLACED = "the worker was restarted after the state had been read; try again"


def packed_registry() -> bytes | None:
    """Pickle the registered state functions for another process; None if there are none."""
    known = registered()
    return dumps_for_worker(known) if known else None


SavedStates = tuple[list[Saved], Mapping[bytes, bytes]]  # states; packed fingerprints by digest
Facts = tuple[bytes, bytes]  # digest of the environment's fingerprint, and the packed fingerprint

# Packed acting state, and the function that loads the state.
_Prepared = tuple[tuple[Any, ...], Callable[[], Any]]

# Types in a packed acting state: without and with a pending reset.
_ACTING_STATE_TYPES = [list, dict, bool, dict], [list, dict, str, dict]


class GroupStates:
    _stored: ClassVar[dict[int, tuple[bytes, Facts]]] = {}  # shared by all groups of the process

    def __init__(self, group: Any) -> None:
        self._group = group  # a ResumableGroup, whose module imports this one
        self._first, self._autoreset = group.recipe.first, group.recipe.autoreset
        self._handlers: dict[int, EnvCheckpointer] = {}
        self._kept: dict[int, bytes] = {}
        self._outgoing: dict[int, bytes] = {}
        self._prepared: dict[int, _Prepared] = {}
        self._registry: bytes | None = None
        self._packed_fingerprints: dict[bytes, bytes] = {}

    def save_states(
        self,
        places: Sequence[int],
        registry: bytes | None,
        wanted: Collection[int] | None = None,
        kept: Collection[int] = (),
        max_bytes: int | None = None,
    ) -> SavedStates:
        """Return the states of some environments, and their fingerprints as a dict by digest."""
        self._apply_registry(registry)
        self.discard_states()
        fingerprints: dict[bytes, bytes] = {}

        def save_one(_: Any, i: int) -> tuple[bytes, bytes, bool]:
            state = self._state(i)
            acting_state = self._pack_acting_state(i)
            try:
                data = state.save(acting_state)
            except FaultError as fault:
                raise to_state_error(self._first + i, fault, "save_state") from None
            plan = state.saved_plan
            digest = plan.fingerprint.digest
            packed = self._packed_fingerprints
            if digest not in packed:
                packed[digest] = dumps_plain((plan.fingerprint.parts, plan.fingerprint.versions))
            fingerprints[digest] = packed[digest]
            return data, digest, plan.replays

        results = self._group.each("save_state", places, save_one, None, places)
        found = dict(zip(places, results, strict=True))
        self._kept = {i: found[i][0] for i in kept}
        sent: dict[int, Any] = {i: found[i][0] for i in (found if wanted is None else wanted)}
        if max_bytes is not None and sum(map(len, sent.values())) > max_bytes:
            self._outgoing, sent = sent, {i: len(data) for i, data in sent.items()}
        saved = [(sent.get(i), digest, replays) for i, (_, digest, replays) in found.items()]
        return saved, fingerprints

    def verify_saving(self, places: Sequence[int], registry: bytes | None) -> list[str]:
        """Test saving with two new environments per distinct function code; return warnings."""
        # Imported here because few groups verify.
        from xuance_envs.state.checking import verify_saving

        self._apply_registry(registry)
        verified: set[int] = set()
        warnings = []
        for i in places:
            function, keywords = self._group.recipe.env_fns[i], self._group.recipe.keywords[i]
            kind = id(getattr(function, "__code__", function))
            if kind not in verified:
                verified.add(kind)
                warnings.append(verify_saving(partial(function, **keywords), self._first + i))
        return warnings

    def copy_saved_states(self, places: Sequence[int], buffers: Sequence[StateBuffer]) -> None:
        """Write states to buffers, after :meth:`save_states` returned only their sizes."""
        for i, part in zip(places, buffers, strict=True):
            part.write(self._require(self._outgoing, i, "save_state"))
            del self._outgoing[i]

    def prepare_states(
        self,
        places: Sequence[int],
        sources: Sequence[tuple[bool, int]],
        digests: Sequence[bytes],
        fingerprints: Mapping[bytes, bytes],
        forks: bool,
        trusted: bool,
        registry: bytes | None,
        states: Sequence[bytes | StateBuffer] = (),
    ) -> list[str]:
        """Read and check states for some environments; return warnings."""
        self._apply_registry(registry)
        self._prepared = {}
        blobs = [one if isinstance(one, bytes) else one.read() for one in states]
        prepared: dict[int, _Prepared] = {}

        def prepare_one(_: Any, given: tuple[int, tuple[bool, int], bytes]) -> list[str]:
            i, (is_kept, number), digest = given
            if is_kept and number == i and not forks:
                prepared[i] = self._pack_acting_state(i), lambda: None  # it is in this state
                return []
            data = self._require(self._kept, number, "clone_state") if is_kept else blobs[number]
            state, env = self._state(i), self._first + i
            try:
                plan = state.plan
                own, warnings = plan.fingerprint, []
                if digest != own.digest:
                    warnings = own.check(*loads_plain(fingerprints[digest], trusted))
                one = state.prepare(data, trusted, [env] if forks else None, plan)
                prepared[i] = one.seen, one.apply
                warnings = [*warnings, *one.doubts]
                if not trusted:
                    self._check_acting_state(one.seen)
                self._check_autoreset(one.seen[2])
            except FaultError as fault:
                raise to_state_error(env, fault, "load_state") from None
            return warnings

        given = list(zip(places, sources, digests, strict=True))
        warnings = self._group.each("load_state", places, prepare_one, None, given)
        self._prepared, self._kept = prepared, {}
        return list(dict.fromkeys(warning for each in warnings for warning in each))

    def load_states(self, places: Sequence[int]) -> Outcome:
        acting_states = {}
        prepared = self._prepared
        found = [self._require(prepared, i, "load_state") for i in places]
        self._group.each("load_state", places, lambda _, one: one[1](), None, found)
        for i in places:
            leaves, info, pending, arguments = prepared[i][0]
            acting_states[i] = ActingState(leaves, info, bool(pending), arguments)
        outcome: Outcome = self._group.set_acting_states(acting_states)
        self._prepared = {}  # only now: an interrupted load is repeated
        return outcome

    def discard_states(self) -> None:
        self._kept, self._outgoing, self._prepared = {}, {}, {}

    def load_into_new(self, states: SavedStates, registry: bytes | None) -> None:
        """Load states into environments that were never reset."""
        saved, fingerprints = states
        places = range(len(self._group.envs))
        data, digests, _ = zip(*saved, strict=True)
        arguments = places, [(False, i) for i in places], digests, fingerprints, False, True
        try:
            self.prepare_states(*arguments, registry, data)
        except EnvError:
            # Some environments create objects only in a reset, and their states refer to these.
            self._group.each("load_state", places, lambda env, _: env.reset(), None, places)
            self.prepare_states(*arguments, registry, data)
        self.load_states(places)

    def first_difference(self, other: GroupStates) -> tuple[str, str, str] | None:
        """Return path and values of the first attribute in which the groups differ, or None."""
        for i in range(len(self._group.envs)):
            with suppress(FaultError):
                found = self._state(i).plan.first_difference(other._state(i).plan)
                if found is not None:
                    return found
        return None

    def _pack_acting_state(self, i: int) -> tuple[Any, ...]:
        """Return the acting state (observation, info, pending reset) as a tuple to be saved."""
        leaves, info, pending, arguments = self._group.acting_state(i)
        return leaves, info, pending and self._autoreset.name, dict(arguments)

    def _check_acting_state(self, acting_state: Any) -> None:
        """Check an acting state from an untrusted source."""
        is_tuple = isinstance(acting_state, tuple)
        if not is_tuple or list(map(type, acting_state)) not in _ACTING_STATE_TYPES:
            raise FaultError(
                "", f"expected a tuple (leaves, info, pending, arguments), got {acting_state!r}"
            )
        leaves, _, pending, _ = acting_state
        if pending and pending not in Autoreset.__members__:
            raise FaultError("", f"expected the name of an autoreset mode, got {pending!r}")
        if not self._group.fits_observation_space(leaves):
            raise FaultError(
                "", f"expected an observation of this environment's space, got {leaves!r}"
            )

    def _require(self, kept: Mapping[int, Any], i: int, command: str) -> Any:
        """Return the entry of environment i; raise if a worker restart lost it."""
        if i not in kept:
            raise StateError(self._first + i, command, WORKER_REPLACED)
        return kept[i]

    def _check_autoreset(self, pending: str | bool) -> None:
        if pending and pending != self._autoreset.name:
            saved, own = Autoreset[str(pending)].value, self._autoreset.value
            raise MismatchError(
                "autoreset mode",
                saved,
                own,
                f"the state was saved in autoreset mode {saved!r} while a reset was pending, but "
                f"this vectorized environment uses {own!r}",
            )

    def _state(self, i: int) -> EnvCheckpointer:
        if i not in self._handlers:
            self._handlers[i] = EnvCheckpointer(self._group.envs[i])
        return self._handlers[i]

    def _apply_registry(self, registry: bytes | None) -> None:
        if registry is not None and registry != self._registry:
            merge_registered(loads(registry))
            self._registry = registry
            self._handlers = {}

    # -- states that this process keeps until they are dropped, for an HTTP session ----

    def store_states(
        self,
        places: Sequence[int],
        numbers: Sequence[int],
        registry: bytes | None,
        max_bytes: float,
    ) -> list[int]:
        """Save states under their numbers; return their sizes. Above ``max_bytes``, keep none."""
        stored, sizes = {}, []
        for i, number in zip(places, numbers, strict=True):
            ((data, digest, _),), fingerprints = self.save_states([i], registry)
            assert isinstance(data, bytes)
            sizes.append(len(data))
            if sum(sizes) > max_bytes:
                return sizes
            stored[number] = data, (digest, fingerprints[digest])
        self._stored.update(stored)
        return sizes

    def prepare_stored(
        self, places: Sequence[int], numbers: Sequence[int], registry: bytes | None
    ) -> list[str]:
        """Check some environments against states that this process keeps; return warnings."""
        found = [self._stored[number] for number in numbers]
        sources = [(False, k) for k in range(len(places))]
        digests = [digest for _, (digest, _) in found]
        fingerprints = dict(facts for _, facts in found)
        states = [data for data, _ in found]
        options = fingerprints, False, True, registry
        return self.prepare_states(places, sources, digests, *options, states)

    def copy_stored(self, numbers: Sequence[int], buffers: Sequence[StateBuffer]) -> list[Facts]:
        """Write states to buffers; return (digest, packed fingerprint) of each."""
        for number, buffer in zip(numbers, buffers, strict=True):
            buffer.write(self._stored[number][0])
        return [self._stored[number][1] for number in numbers]

    def import_stored(
        self, numbers: Sequence[int], facts: Sequence[Facts], buffers: Sequence[StateBuffer]
    ) -> None:
        """Keep states that another process copied to buffers."""
        for number, fact, buffer in zip(numbers, facts, buffers, strict=True):
            self._stored[number] = buffer.read(), fact

    def drop_stored(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._stored.pop(number, None)
