"""Saving, loading and cloning of environment states across groups."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from xuance_envs.engine.data.step_infos import StepInfos
from xuance_envs.engine.driver import Driver
from xuance_envs.engine.group.group_states import WORKER_REPLACED, packed_registry
from xuance_envs.engine.group.recipe import Seeding
from xuance_envs.engine.groups import Groups
from xuance_envs.engine.ledger import is_fatal, values_of
from xuance_envs.errors import (
    EnvError,
    StateError,
    WorkerDiedError,
    WorkerTimeoutError,
    caller_stacklevel,
)
from xuance_envs.state.env_states import EnvStates
from xuance_envs.state.faults import FaultError
from xuance_envs.state.pickling import dumps_plain

_LARGE = 1 << 24

_BATCH_BYTES = 1 << 26
"""Maximum bytes transferred to this process at a time, unless one state is larger."""

_Shares = Sequence[tuple[int, Driver, Sequence[int]]]
"""Environments by group, from :meth:`~xuance_envs.engine.groups.Groups.split_by_group`."""

_SEEDS = "seeds"
"""Key of the restart seeds in saved states."""


def save(groups: Groups, ids: Sequence[int]) -> EnvStates:
    with _state_transfer(groups):
        shares = groups.split_by_group(ids)
        states, facts = _save_in_groups(groups, shares)
        contents = {env: data for env, (data, *_) in states.items() if not isinstance(data, int)}
        for sizes in _batches(states):
            for env, buffer in _fetch_large_states(groups, sizes).items():
                contents[env] = groups.state_transfer.read(buffer)
            groups.state_transfer.release()
    state = EnvStates.from_groups([(bytes(contents[env]), *states[env][1:]) for env in ids], facts)
    largest = max((len(one.env) for one in state.envs), default=0)
    if largest > _LARGE:
        warnings.warn(
            f"the state of one environment takes {largest / 2**20:.0f} MiB; wrappers that store "
            "recordings include them in the state",
            RuntimeWarning,
            stacklevel=caller_stacklevel(),
        )
    seeds = _restart_seeds(groups)
    return state.adding(_SEEDS, [seeds.get(env) for env in ids]) if seeds else state


def verify(groups: Groups, ids: Sequence[int]) -> None:
    """Check saving with new environments; raise an error if they continue differently."""
    packed = {
        k: driver.pack("verify_saving", _places(driver, envs), _registry_for(driver))
        for k, driver, envs in groups.split_by_group(ids)
    }
    for warning in filter(None, groups.ledger.command(packed, values_of)):
        warnings.warn(warning, RuntimeWarning, stacklevel=caller_stacklevel())


def load(
    groups: Groups, state: EnvStates, ids: Sequence[int], *, of_all: bool = False
) -> StepInfos:
    """Load states into some environments; if a worker restart interferes, try once more."""
    state.check_here("load_state")
    seeds = _parse_restart_seeds(state)
    source_of = {env: (False, id(one.env)) for env, one in zip(ids, state.envs, strict=True)}
    states = {id(one.env): (one.env, one.digest) for one in state.envs}
    facts = {digest: dumps_plain(fact) for digest, fact in state.facts.items()}
    load_plans = _load_plans(groups, ids, source_of)
    with _state_transfer(groups):
        infos = _transfer_and_load(
            groups, load_plans, states, facts, ids, of_all, trusted=state.trusted
        )
    _set_restart_seeds(groups, dict(zip(ids, seeds, strict=True)))
    return infos


def clone(
    groups: Groups,
    sources: Sequence[int],
    targets: Sequence[int],
    fork_rng: bool,
    *,
    of_all: bool = False,
) -> StepInfos:
    """Copy states between environments; save all states before loading the first."""
    plan = groups.last_clone_plan
    if plan is None or not (plan.sources == sources and plan.targets == targets):
        plan = groups.last_clone_plan = _ClonePlan.of(groups, sources, targets)
    with _state_transfer(groups):
        saved, facts = _save_in_groups(groups, plan.saving, plan.exported, plan.kept)
        seeds = {} if fork_rng else _restart_seeds(groups)
        for env, buffer in _fetch_large_states(groups, _sizes(saved)).items():
            saved[env] = buffer, *saved[env][1:]
        infos = _transfer_and_load(groups, plan.load_plans, saved, facts, targets, of_all, fork_rng)
    if seeds:
        seeded = zip(targets, sources, strict=True)
        _set_restart_seeds(groups, {target: seeds[s] for target, s in seeded if s in seeds})
    return infos


def store(
    groups: Groups, ids: Sequence[int], numbers: Sequence[int], max_bytes: float
) -> list[int]:
    """Save states in the only worker, each under its number; return their sizes in bytes.

    If the states together exceed ``max_bytes``, none is kept, and the last size is that of the
    state that exceeded the limit.
    """
    (driver,) = groups.drivers
    args = _places(driver, ids), numbers, _registry_for(driver), max_bytes
    return list(_run(groups, "store_states", *args))


def load_stored(groups: Groups, numbers: Sequence[int], ids: Sequence[int]) -> StepInfos:
    """Load states that the only worker keeps."""
    (driver,) = groups.drivers
    places = _places(driver, ids)
    _warn_doubts(_run(groups, "prepare_stored", places, numbers, _registry_for(driver)))
    return groups.load({0: driver.pack("load_states", places)}, ids)


def copy_stored(source: Groups, target: Groups, sizes: Mapping[int, int]) -> None:
    """Copy stored states between workers, given their sizes by number; both keep them."""
    numbers = list(sizes)
    with _state_transfer(source), _state_transfer(target):
        theirs = source.state_transfer.allocate(list(sizes.values()))
        facts = _run(source, "copy_stored", numbers, buffers=theirs)
        buffers = target.state_transfer.allocate(list(sizes.values()))
        for buffer, other in zip(buffers, theirs, strict=True):
            buffer.copy_from(other)
        _run(target, "import_stored", numbers, facts, buffers=buffers)


def drop_stored(groups: Groups, numbers: Sequence[int]) -> None:
    """Drop states that the only worker keeps."""
    _run(groups, "drop_stored", numbers)


def _run(groups: Groups, command: str, *args: Any, buffers: Sequence[Any] = ()) -> Any:
    """Run a command in the only worker."""
    (driver,) = groups.drivers
    packed = driver.pack(command, *args)
    packed = driver.with_buffers(packed, buffers) if buffers else packed
    ((_, reply),) = groups.ledger.command({0: packed}, list)
    return reply


def _transfer_and_load(
    groups: Groups,
    load_plans: Sequence[_LoadPlan],
    states: Mapping[int, tuple[Any, ...]],
    facts: Mapping[bytes, bytes],
    ids: Sequence[int],
    of_all: bool,
    fork_rng: bool = False,
    trusted: bool = True,
) -> StepInfos:
    """Transfer states, check them against their environments and load them.

    If a worker restart makes the first attempt fail, try once more.
    """

    def attempt() -> StepInfos:
        _prepare(groups, load_plans, states, facts, fork_rng, trusted)
        packed = {load_plan.group: load_plan.load for load_plan in load_plans}
        return groups.load(packed, ids, of_all=of_all)

    try:
        return attempt()
    except (EnvError, WorkerDiedError, WorkerTimeoutError) as error:
        if not _was_replaced(error):
            raise
        return attempt()


def _was_replaced(error: EnvError | WorkerDiedError | WorkerTimeoutError) -> bool:
    """Return whether loading failed because of a worker restart."""
    return error.reason == WORKER_REPLACED if isinstance(error, EnvError) else error.restarted


@contextmanager
def _state_transfer(groups: Groups) -> Iterator[None]:
    """Release at the end the states that were transferred or that groups kept.

    If an interrupt left requests pending, ``check_open`` releases these states later.
    """
    groups.holds_transfers = True
    try:
        yield
    except BaseException as error:
        if not (groups.ledger.pending or is_fatal(error)):
            groups.discard_states()
        raise
    groups.state_transfer.release()
    groups.holds_transfers = False


def _save_in_groups(
    groups: Groups,
    shares: _Shares,
    exported: Collection[int] | None = None,
    kept: Collection[int] = (),
) -> tuple[dict[int, Any], dict[bytes, bytes]]:
    """Save states; return them by environment, and fingerprints by digest."""
    packed = {}
    for k, driver, envs in shares:
        exported_places = (
            None if exported is None else _places(driver, [e for e in envs if e in exported])
        )
        kept_places = _places(driver, [env for env in envs if env in kept])
        max_bytes = None if driver.shares_objects else groups.state_transfer.max_inline_bytes
        args = _registry_for(driver), exported_places, kept_places, max_bytes
        packed[k] = driver.pack("save_states", _places(driver, envs), *args)
    facts: dict[bytes, bytes] = {}
    saved: dict[int, Any] = {}
    for (*_, envs), (_, reply) in zip(shares, groups.ledger.command(packed, list), strict=True):
        states, group_facts = reply
        facts.update(group_facts)
        saved.update(zip(envs, states, strict=True))
    return saved, facts


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


def _fetch_large_states(groups: Groups, sizes: Mapping[int, int]) -> dict[int, Any]:
    """Transfer large states from the groups into buffers."""
    if not sizes:
        return {}
    buffers = dict(zip(sizes, groups.state_transfer.allocate(list(sizes.values())), strict=True))
    packed = {}
    for k, driver, envs in groups.split_by_group(list(sizes)):
        fetch = driver.pack("copy_saved_states", _places(driver, envs))
        packed[k] = driver.with_buffers(fetch, [buffers[env] for env in envs])
    groups.ledger.command(packed, list)
    return buffers


class _LoadPlan(NamedTuple):
    """Sources of the states that one group loads, and its load command."""

    group: int
    driver: Driver
    places: list[int]
    source_refs: list[tuple[bool, int]]
    transferred: list[int]
    sources: list[tuple[bool, int]]
    load: Any


def _load_plans(
    groups: Groups, ids: Sequence[int], source_of: Mapping[int, tuple[bool, int]]
) -> list[_LoadPlan]:
    load_plans = []
    for k, driver, envs in groups.split_by_group(ids):
        source_refs = [source_of[env] for env in envs]
        transferred = list(
            dict.fromkeys([source for is_local, source in source_refs if not is_local])
        )
        index_of = dict(zip(transferred, range(len(transferred)), strict=True))
        lo, places = driver.lo, _places(driver, envs)
        sources = [
            (local, source - lo if local else index_of[source]) for local, source in source_refs
        ]
        load_command = driver.pack("load_states", places)
        load_plans.append(
            _LoadPlan(k, driver, places, source_refs, transferred, sources, load_command)
        )
    return load_plans


class _ClonePlan(NamedTuple):
    sources: Sequence[int]
    targets: Sequence[int]
    saving: _Shares
    exported: Collection[int]
    kept: Collection[int]
    load_plans: Sequence[_LoadPlan]

    @classmethod
    def of(cls, groups: Groups, sources: Sequence[int], targets: Sequence[int]) -> _ClonePlan:
        group_of, drivers = groups.group_of, groups.drivers
        source_of: dict[int, tuple[bool, int]] = {}
        exported, kept = set[int](), set[int]()
        for source, target in zip(sources, targets, strict=True):
            k = group_of[target]
            # A worker that may restart would lose kept states, so they go through this process.
            is_local = k == group_of[source] and drivers[k].seeds is None
            source_of[target] = is_local, source
            (kept if is_local else exported).add(source)
        saving = groups.split_by_group(sorted(exported | kept))
        load_plans = _load_plans(groups, targets, source_of)
        return cls(list(sources), list(targets), saving, exported, kept, load_plans)


def _prepare(
    groups: Groups,
    load_plans: Sequence[_LoadPlan],
    states: Mapping[int, tuple[Any, ...]],
    facts: Mapping[bytes, bytes],
    fork_rng: bool,
    trusted: bool,
) -> None:
    """Transfer states to their groups and check them against the environments."""
    state_transfer, packed = groups.state_transfer, {}
    for k, driver, places, source_refs, transferred, sources, _ in load_plans:
        digests = [states[source][1] for _, source in source_refs]
        args = places, sources, digests, facts, fork_rng, trusted, _registry_for(driver)
        contents = [states[source][0] for source in transferred]
        if contents and not driver.shares_objects and state_transfer.should_transfer(contents):
            command = driver.pack("prepare_states", *args)
            packed[k] = driver.with_buffers(command, state_transfer.export(contents))
        else:
            packed[k] = driver.pack(
                "prepare_states", *args, list(map(state_transfer.read, contents))
            )
    _warn_doubts(groups.ledger.command(packed, values_of))


def _warn_doubts(doubts: Sequence[str]) -> None:
    for doubt in dict.fromkeys(doubts):
        warnings.warn(
            f"the loaded state may continue differently: {doubt}", stacklevel=caller_stacklevel()
        )


def _places(driver: Driver, envs: Sequence[int]) -> list[int]:
    return [env - driver.lo for env in envs]


def _restart_seeds(groups: Groups) -> dict[int, Seeding]:
    """Return the restart seeds of the environments that have any."""
    return {
        driver.lo + place: seeding
        for driver in groups.drivers
        for place, seeding in enumerate(driver.seeds or ())
    }


def _parse_restart_seeds(state: EnvStates) -> list[Seeding | None]:
    """Read and validate the restart seeds of saved states."""
    try:
        entries = state.extra(_SEEDS) or [None] * len(state)
        seeds = [None if one is None else (one[0], one[1]) for one in entries]
    except (FaultError, LookupError, TypeError) as fault:
        raise StateError(
            -1, "load_state", f"invalid restart seeds: expected (seed, count) pairs: {fault}"
        ) from None
    for seed, count in filter(None, seeds):
        if not isinstance(seed, int | None) or not isinstance(count, int) or count < 0:
            raise StateError(
                -1,
                "load_state",
                "invalid restart seeds: expected an int seed or None and a count of at least 0, "
                f"got {seed!r} and {count!r}",
            )
    return seeds


def _set_restart_seeds(groups: Groups, seeds: Mapping[int, Seeding | None]) -> None:
    for driver in groups.drivers:
        if driver.seeds is None:
            continue
        for env, seeding in seeds.items():
            if seeding is not None and driver.lo <= env < driver.hi:
                driver.seeds[env - driver.lo] = seeding
