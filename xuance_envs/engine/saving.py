"""Saving, loading and cloning of environment states across groups."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from xuance_envs._override import override
from xuance_envs.engine.data.step_infos import StepInfos
from xuance_envs.engine.driver import Driver
from xuance_envs.engine.group.group_states import WORKER_REPLACED, packed_registry
from xuance_envs.engine.group.protocol import StateTransfer
from xuance_envs.engine.group.recipe import Seeding
from xuance_envs.engine.info_collector import InfoCollector
from xuance_envs.engine.ledger import Ledger, is_fatal, values_of
from xuance_envs.errors import (
    EnvError,
    StateError,
    WorkerDiedError,
    WorkerTimeoutError,
    caller_stacklevel,
)
from xuance_envs.state.env_states import EnvStates
from xuance_envs.state.pickling import dumps_plain

_LARGE = 1 << 24

_BATCH_BYTES = 1 << 26  # maximum transferred at a time, unless one state is larger
_Shares = Sequence[tuple[int, Driver, Sequence[int]]]  # environments by group, from split_by_group
_SourceRef = tuple[bool, int]  # True if the target's group keeps the state, and its source

# For one group: its number, driver and places, the sources of its states, the sources to transfer,
# the sources as that group refers to them, and the load command.
_LoadPlan = tuple[int, Driver, list[int], list[_SourceRef], list[int], list[_SourceRef], Any]

Ids = Sequence[int]  # indices of environments
_SEEDS = "seeds"  # key of the restart seeds in saved states


class Saver(ABC):
    """Interface for saving, loading and cloning states in the groups of a ledger."""

    holds_states = False  # True if groups or transfer buffers may hold states of an operation

    def __init__(self, ledger: Ledger, info_collector: InfoCollector) -> None:
        self._ledger = ledger
        self._info_collector = info_collector

    @abstractmethod
    def verify(self, ids: Ids) -> None:
        """Check with new environments that loaded states continue exactly; raise if they do not."""

    @abstractmethod
    def save(self, ids: Ids) -> EnvStates: ...

    @abstractmethod
    def load(self, state: EnvStates, ids: Ids, *, of_all: bool = False) -> StepInfos:
        """Load states; return the infos of these environments, or of all environments."""

    @abstractmethod
    def clone(
        self, sources: Ids, targets: Ids, fork_rng: bool, *, of_all: bool = False
    ) -> StepInfos:
        """Copy states between environments; return infos as :meth:`load` does."""

    def discard(self) -> None:
        """Release the states that an operation left in groups or transfer buffers."""
        self.holds_states = False

    def run_load(self, packed: Mapping[int, Any], ids: Ids, *, of_all: bool = False) -> StepInfos:
        """Run packed load commands and return the infos that groups report."""
        envs = None if of_all else np.array(ids, dtype=np.intp)
        collect = self._info_collector.infos
        return self._ledger.command(packed, lambda replies: collect(replies, envs))


class GroupSaver(Saver):
    """Saver whose states pass through this process, or through the transfer of a backend."""

    def __init__(self, ledger: Ledger, collector: InfoCollector, transfer: StateTransfer) -> None:
        super().__init__(ledger, collector)
        self.transfer = transfer
        self._last_clone: tuple[Any, ...] = None, None  # sources, targets and their plan

    @override
    def verify(self, ids: Ids) -> None:
        packed = {
            k: driver.pack("verify_saving", driver.places_of(envs), _registry_for(driver))
            for k, driver, envs in self._ledger.split_by_group(ids)
        }
        for warning in filter(None, self._ledger.command(packed, values_of)):
            warnings.warn(warning, RuntimeWarning, stacklevel=caller_stacklevel())

    @override
    def save(self, ids: Ids) -> EnvStates:
        with self.transferring():
            states, facts = self._save_in_groups(self._ledger.split_by_group(ids))
            for sizes in _batches(states):
                for env, buffer in self._fetch_large_states(sizes).items():
                    states[env] = self.transfer.read(buffer), *states[env][1:]
                self.transfer.release()
        saved = [(bytes(states[env][0]), *states[env][1:]) for env in ids]
        state = EnvStates.from_groups(saved, facts)
        largest = max((len(one.env) for one in state.envs), default=0)
        if largest > _LARGE:
            warnings.warn(
                f"the state of one environment takes {largest / 2**20:.0f} MiB; wrappers that "
                "store recordings include them in the state",
                RuntimeWarning,
                stacklevel=caller_stacklevel(),
            )
        seeds = self._restart_seeds()
        return state.adding(_SEEDS, [seeds.get(env) for env in ids]) if seeds else state

    @override
    def load(self, state: EnvStates, ids: Ids, *, of_all: bool = False) -> StepInfos:
        state.check_here("load_state")
        seeds = _parse_restart_seeds(state)
        source_of = {env: (False, id(one.env)) for env, one in zip(ids, state.envs, strict=True)}
        states = {id(one.env): (one.env, one.digest) for one in state.envs}
        facts = {digest: dumps_plain(fact) for digest, fact in state.facts.items()}
        load_plans = self._load_plans(ids, source_of)
        with self.transferring():
            loading = load_plans, states, facts, ids, of_all
            infos = self._transfer_and_load(*loading, trusted=state.trusted)
        self._set_restart_seeds(dict(zip(ids, seeds, strict=True)))
        return infos

    @override
    def clone(
        self, sources: Ids, targets: Ids, fork_rng: bool, *, of_all: bool = False
    ) -> StepInfos:
        if self._last_clone[:2] != (sources, targets):
            self._last_clone = list(sources), list(targets), *self._clone_plan(sources, targets)
        _, _, *saving, load_plans = self._last_clone
        with self.transferring():
            saved, facts = self._save_in_groups(*saving)
            seeds = {} if fork_rng else self._restart_seeds()
            for env, buffer in self._fetch_large_states(_sizes(saved)).items():
                saved[env] = buffer, *saved[env][1:]
            loading = load_plans, saved, facts, targets, of_all, fork_rng
            infos = self._transfer_and_load(*loading)
        if seeds:
            seeded = zip(targets, sources, strict=True)
            self._set_restart_seeds({target: seeds[s] for target, s in seeded if s in seeds})
        return infos

    @override
    def discard(self) -> None:
        self.transfer.release()
        # A group that fails here has lost its states anyway.
        with suppress(Exception):
            packed = {k: d.pack("discard_states") for k, d in enumerate(self._ledger.drivers)}
            self._ledger.command(packed, list)
        super().discard()

    @contextmanager
    def transferring(self) -> Iterator[None]:
        """Release the states when this context ends; after an interrupt, ``check_open`` does so."""
        self.holds_states = True
        try:
            yield
        except BaseException as error:
            if not (self._ledger.pending or is_fatal(error)):
                self.discard()
            raise
        self.transfer.release()
        self.holds_states = False

    def _save_in_groups(
        self, shares: _Shares, exported: Collection[int] | None = None, kept: Collection[int] = ()
    ) -> tuple[dict[int, Any], dict[bytes, bytes]]:
        """Save states; return (states by environment, fingerprints by digest)."""
        packed = {}
        for k, driver, envs in shares:
            sent = [env for env in envs if exported is None or env in exported]
            kept_places = driver.places_of([env for env in envs if env in kept])
            max_bytes = None if driver.shares_objects else self.transfer.max_inline_bytes
            args = _registry_for(driver), driver.places_of(sent), kept_places, max_bytes
            packed[k] = driver.pack("save_states", driver.places_of(envs), *args)
        facts: dict[bytes, bytes] = {}
        saved: dict[int, Any] = {}
        for (*_, envs), (_, reply) in zip(shares, self._ledger.command(packed, list), strict=True):
            states, group_facts = reply
            facts.update(group_facts)
            saved.update(zip(envs, states, strict=True))
        return saved, facts

    def _fetch_large_states(self, sizes: Mapping[int, int]) -> dict[int, Any]:
        """Transfer large states from the groups into buffers."""
        if not sizes:
            return {}
        buffers = dict(zip(sizes, self.transfer.allocate(list(sizes.values())), strict=True))
        packed = {}
        for k, driver, envs in self._ledger.split_by_group(list(sizes)):
            fetch = driver.pack("copy_saved_states", driver.places_of(envs))
            packed[k] = driver.with_buffers(fetch, [buffers[env] for env in envs])
        self._ledger.command(packed, list)
        return buffers

    def _load_plans(self, ids: Ids, source_of: Mapping[int, _SourceRef]) -> list[_LoadPlan]:
        plans = []
        for k, driver, envs in self._ledger.split_by_group(ids):
            source_refs = [source_of[env] for env in envs]
            transferred = list(dict.fromkeys([source for kept, source in source_refs if not kept]))
            index_of = {source: index for index, source in enumerate(transferred)}
            sources = [
                (kept, source - driver.lo if kept else index_of[source])
                for kept, source in source_refs
            ]
            places = driver.places_of(envs)
            load = driver.pack("load_states", places)
            plans.append((k, driver, places, source_refs, transferred, sources, load))
        return plans

    def _clone_plan(
        self, sources: Ids, targets: Ids
    ) -> tuple[_Shares, Collection[int], Collection[int], Sequence[_LoadPlan]]:
        """Return the environments to save, those to export and to keep, and how to load them."""
        group_of, drivers = self._ledger.group_of, self._ledger.drivers
        source_of: dict[int, _SourceRef] = {}
        exported, kept = set[int](), set[int]()
        for source, target in zip(sources, targets, strict=True):
            k = group_of[target]
            # A worker that may restart would lose kept states, so they go through this process.
            stays = k == group_of[source] and drivers[k].seeds is None
            source_of[target] = stays, source
            (kept if stays else exported).add(source)
        saving = self._ledger.split_by_group(sorted(exported | kept))
        return saving, exported, kept, self._load_plans(targets, source_of)

    def _transfer_and_load(
        self,
        load_plans: Sequence[_LoadPlan],
        states: Mapping[int, tuple[Any, ...]],
        facts: Mapping[bytes, bytes],
        ids: Ids,
        of_all: bool,
        fork_rng: bool = False,
        trusted: bool = True,
    ) -> StepInfos:
        """Transfer, check and load states; try once more if a worker restart made this fail."""

        def attempt() -> StepInfos:
            transfer, packed = self.transfer, {}
            for k, driver, places, source_refs, transferred, sources, _ in load_plans:
                digests = [states[source][1] for _, source in source_refs]
                args = places, sources, digests, facts, fork_rng, trusted, _registry_for(driver)
                contents = [states[source][0] for source in transferred]
                if contents and not driver.shares_objects and transfer.should_transfer(contents):
                    command = driver.pack("prepare_states", *args)
                    packed[k] = driver.with_buffers(command, transfer.export(contents))
                else:
                    contents = list(map(transfer.read, contents))
                    packed[k] = driver.pack("prepare_states", *args, contents)
            warn_of_doubts(self._ledger.command(packed, values_of))
            packed = {k: load for k, *_, load in load_plans}
            return self.run_load(packed, ids, of_all=of_all)

        try:
            return attempt()
        except EnvError as error:
            if error.reason != WORKER_REPLACED:
                raise
        except (WorkerDiedError, WorkerTimeoutError) as error:
            if not error.restarted:
                raise
        return attempt()

    def _restart_seeds(self) -> dict[int, Seeding]:
        """Return the restart seeds of the environments that have any."""
        return {
            driver.lo + place: seeding
            for driver in self._ledger.drivers
            for place, seeding in enumerate(driver.seeds or ())
        }

    def _set_restart_seeds(self, seeds: Mapping[int, Seeding | None]) -> None:
        for env, seeding in seeds.items():
            driver = self._ledger.drivers[self._ledger.group_of[env]]
            if seeding is not None and driver.seeds is not None:
                driver.seeds[env - driver.lo] = seeding


def warn_of_doubts(doubts: Sequence[str]) -> None:
    for doubt in dict.fromkeys(doubts):
        warnings.warn(
            f"loaded environments may continue differently than the saved ones: {doubt}",
            stacklevel=caller_stacklevel(),
        )


def _registry_for(driver: Driver) -> bytes | None:
    """Return the registered state functions for a group in another process, else None."""
    return None if driver.shares_objects else packed_registry()


def _sizes(saved: Mapping[int, Any]) -> dict[int, int]:
    """Return the size of each large state that a group still holds."""
    return {env: size for env, (size, *_) in saved.items() if isinstance(size, int)}


def _batches(saved: Mapping[int, Any]) -> Iterator[dict[int, int]]:
    """Split large states into batches, to limit the memory for copies."""
    batch: dict[int, int] = {}
    for env, size in _sizes(saved).items():
        if batch and sum(batch.values()) + size > _BATCH_BYTES:
            yield batch
            batch = {}
        batch[env] = size
    if batch:
        yield batch


def _parse_restart_seeds(state: EnvStates) -> list[Seeding | None]:
    """Read and validate the restart seeds of saved states."""
    try:
        entries = state.extra(_SEEDS) or [None] * len(state)
        seeds = [None if one is None else (one[0], one[1]) for one in entries]
        for seed, count in filter(None, seeds):
            if not isinstance(seed, int | None) or not isinstance(count, int) or count < 0:
                raise TypeError(f"got ({seed!r}, {count!r})")
    except (LookupError, TypeError) as fault:
        expected = "(seed, count) pairs with seed an int or None and count >= 0"
        raise StateError(
            -1, "load_state", f"invalid restart seeds: expected {expected}: {fault}"
        ) from None
    return seeds
