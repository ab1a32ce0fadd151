"""Groups of environments saved and loaded: who is asked for what, in which order."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from xuance_envs.engine.data.step_infos import StepInfos
from xuance_envs.engine.driver import Driver, Seeding
from xuance_envs.engine.group.states import REPLACED, packed_registry
from xuance_envs.engine.groups import Groups
from xuance_envs.engine.ledger import ends_all
from xuance_envs.errors import (
    EnvError,
    StateError,
    WorkerDiedError,
    WorkerTimeoutError,
    callers_level,
)
from xuance_envs.state.env_states import EnvStates
from xuance_envs.state.faults import FaultError
from xuance_envs.state.pickling import dumps_plain

__all__ = ["clone", "load", "put_in", "save"]

_LARGE = 1 << 24

_AT_ONCE = 1 << 26
"""States of so many bytes are on the way to this process at a time."""

_Shares = Sequence[tuple[int, Driver, Sequence[int]]]
"""Groups, and some environments of each, as :meth:`~xuance_envs.engine.groups.Groups.shares` has
them."""

_SEEDS = "seeds"
"""The name under which is kept what seeds of restarts follow from."""


def save(groups: Groups, ids: Sequence[int]) -> EnvStates:
    """The states of some environments.

    Raises:
        StateError: one cannot be saved.
    """
    with _lending(groups):
        shares = groups.shares(ids)
        _start_saving(groups, shares)
        states, facts = _saved(groups, shares)
        contents = {env: data for env, (data, *_) in states.items() if not isinstance(data, int)}
        for sizes in _portions(states):
            for env, lent in _handed_over(groups, sizes).items():
                contents[env] = groups.lender.read(lent)
            groups.lender.take_back()
    state = EnvStates.told([(bytes(contents[env]), *states[env][1:]) for env in ids], facts)
    largest = max((len(one.env) for one in state.envs), default=0)
    if largest > _LARGE:
        warnings.warn(
            f"the state of one environment has {largest / 2**20:.0f} MiB: a wrapper that keeps "
            "what it records has that in its state, too",
            RuntimeWarning,
            stacklevel=callers_level(),
        )
    seeds = _seeds(groups)
    return state.adding(_SEEDS, [seeds.get(env) for env in ids]) if seeds else state


def load(
    groups: Groups, state: EnvStates, ids: Sequence[int], *, of_all: bool = False
) -> StepInfos:
    """Puts states into some environments; once more, where a worker was replaced meanwhile.

    Args:
        groups: of the environments.
        state: as many states.
        ids: the environments.
        of_all: whether the infos are wanted of all environments, not only of these.

    Returns:
        Their infos; their observations are in the arrays.

    Raises:
        StateError: a state cannot be read; nothing has changed then.
        StateMismatchError: one is of an environment that is not like the one it is for; neither.
        EnvError: an environment raised.
    """
    state.check_here("load_state")
    seeds = _checked_seeds(state)
    source_of = {env: (False, id(one.env)) for env, one in zip(ids, state.envs, strict=True)}
    states = {id(one.env): (one.env, one.digest) for one in state.envs}
    facts = {digest: dumps_plain(fact) for digest, fact in state.facts.items()}
    ways = _ways(groups, ids, source_of)
    with _lending(groups):
        infos = _brought(groups, ways, states, facts, ids, of_all, trusted=state.trusted)
    _take_seeds(groups, dict(zip(ids, seeds, strict=True)))
    return infos


def clone(
    groups: Groups,
    sources: Sequence[int],
    targets: Sequence[int],
    fork_rng: bool,
    *,
    of_all: bool = False,
) -> StepInfos:
    """Puts the states of some environments into others; all are read before any is written.

    They are put in once more, where a worker was replaced meanwhile.

    Args:
        groups: of both.
        sources: the environment each target is to become like.
        targets: none of them twice.
        fork_rng: whether each goes on with random streams of its own.
        of_all: as for :func:`load`.

    Returns:
        The targets' infos; their observations are in the arrays.

    Raises:
        Exception: as for :func:`load`.
    """
    route = groups.last_route
    if route is None or not (route.sources == sources and route.targets == targets):
        route = groups.last_route = _Route.of(groups, sources, targets)
    with _lending(groups):
        _start_saving(groups, route.saving, route.going, route.kept)
        seeds = {} if fork_rng else _seeds(groups)
        saved, facts = _saved(groups, route.saving)
        for env, lent in _handed_over(groups, _sizes(saved)).items():
            saved[env] = lent, *saved[env][1:]
        infos = _brought(groups, route.ways, saved, facts, targets, of_all, fork_rng)
    if seeds:
        seeded = zip(targets, sources, strict=True)
        _take_seeds(groups, {target: seeds[s] for target, s in seeded if s in seeds})
    return infos


def _brought(
    groups: Groups,
    ways: Sequence[_Way],
    states: Mapping[int, tuple[Any, ...]],
    facts: Mapping[bytes, bytes],
    ids: Sequence[int],
    of_all: bool,
    fork_rng: bool = False,
    trusted: bool = True,
) -> StepInfos:
    """Has states read, compared with the environments they are for, and put in.

    Once more, where a worker was replaced meanwhile.

    Args:
        groups: all of them.
        ways: how the states come to those of these environments.
        states: each, or what stands for it, and the digest of what it was saved from.
        facts: about these, packed.
        ids: the environments.
        of_all: as for :func:`load`.
        fork_rng: whether random streams are to be others from then on.
        trusted: whether states may name classes of any module.

    Returns:
        Their infos; their observations are in the arrays.
    """

    def attempt() -> StepInfos:
        _prepare(groups, ways, states, facts, fork_rng, trusted)
        return put_in(groups, {way.group: way.load for way in ways}, ids, of_all=of_all)

    try:
        return attempt()
    except (EnvError, WorkerDiedError, WorkerTimeoutError) as error:
        if not _was_replaced(error):
            raise
        return attempt()


def _was_replaced(error: EnvError | WorkerDiedError | WorkerTimeoutError) -> bool:
    """Whether a state was not put in because another worker took the place of one."""
    return error.reason == REPLACED if isinstance(error, EnvError) else error.restarted


def put_in(
    groups: Groups, packed: Mapping[int, Any], ids: Sequence[int], *, of_all: bool = False
) -> StepInfos:
    """Has groups put states in.

    Args:
        groups: the groups.
        packed: by group, what its driver packed.
        ids: the environments.
        of_all: as for :func:`load`.

    Returns:
        Their infos; their observations are in the arrays.
    """
    groups.ledger.start(packed)
    envs = None if of_all else np.array(ids, dtype=np.intp)
    infos = groups.results.infos(groups.ledger.finish(groups.results.forget), envs)
    groups.ledger.take()
    return infos


@contextmanager
def _lending(groups: Groups) -> Iterator[None]:
    """Lends groups states, and has them keep some, until none of them can be at it any more.

    After an interrupt that came while they were, that is seen to by ``check_open``.
    """
    groups.has_lent = True
    try:
        yield
    except BaseException as error:
        if not (groups.ledger.owing or ends_all(error)):
            groups.forget_states()
        raise
    groups.lender.take_back()
    groups.has_lent = False


def _start_saving(
    groups: Groups,
    shares: _Shares,
    going: Collection[int] | None = None,
    kept: Collection[int] = (),
) -> None:
    """Asks groups for states of theirs.

    Args:
        groups: all of them.
        shares: those whose states are wanted, and of which environments.
        going: the environments whose states are wanted elsewhere; None for all.
        kept: those whose states are wanted within their group.
    """
    packed = {}
    for k, driver, mine in shares:
        leaving = None if going is None else _places(driver, [e for e in mine if e in going])
        staying = _places(driver, [env for env in mine if env in kept])
        most = None if driver.is_local else groups.lender.most
        given = _registry(driver), leaving, staying, most
        packed[k] = driver.pack("save_states", _places(driver, mine), *given)
    groups.ledger.start(packed)


def _registry(driver: Driver) -> bytes | None:
    """What a group has to know of what was registered for classes of others."""
    return None if driver.is_local else packed_registry()


def _saved(groups: Groups, shares: _Shares) -> tuple[dict[int, Any], dict[bytes, bytes]]:
    """Waits for states that groups have been asked for.

    Returns:
        By environment, its state, or how many bytes of it are to be handed over, the digest of what
        it was saved from, and whether it is one by replay; and what belongs to the digests, packed.
    """
    facts: dict[bytes, bytes] = {}
    saved: dict[int, Any] = {}
    for (*_, mine), (states, its_facts) in zip(shares, _answers(groups), strict=True):
        facts.update(its_facts)
        saved.update(zip(mine, states, strict=True))
    return saved, facts


def _sizes(saved: Mapping[int, Any]) -> dict[int, int]:
    """By environment, how many bytes of its state are to be handed over, where some are."""
    return {env: size for env, (size, *_) in saved.items() if isinstance(size, int)}


def _portions(saved: Mapping[int, Any]) -> Iterator[dict[int, int]]:
    """The same in turns, so that not all of them are there twice at the same time."""
    portion: dict[int, int] = {}
    for env, size in _sizes(saved).items():
        if portion and sum(portion.values()) + size > _AT_ONCE:
            yield portion
            portion = {}
        portion[env] = size
    if portion:
        yield portion


def _handed_over(groups: Groups, sizes: Mapping[int, int]) -> dict[int, Any]:
    """Has groups hand states over.

    Args:
        groups: all of them.
        sizes: by environment, how many bytes of its state its group has told.

    Returns:
        By environment, what stands for it.
    """
    if not sizes:
        return {}
    room = dict(zip(sizes, groups.lender.lend_room(list(sizes.values())), strict=True))
    packed = {}
    for k, driver, mine in groups.shares(list(sizes)):
        handing = driver.pack("hand_over", _places(driver, mine))
        packed[k] = driver.lending(handing, [room[env] for env in mine])
    groups.ledger.start(packed)
    _answers(groups)
    return room


class _Way(NamedTuple):
    """How states come to a group.

    Attributes:
        group: its place.
        driver: its driver.
        places: where its environments that are loaded are in it.
        chosen: for each, whether its group has kept the state that it is given, and which it is.
        brought: those of the states that it does not have already.
        sources: for each environment, whether it has, and then where in it the state is from,
            otherwise which of those brought it is.
        load: the command to put them in, as the driver packed it.
    """

    group: int
    driver: Driver
    places: list[int]
    chosen: list[tuple[bool, int]]
    brought: list[int]
    sources: list[tuple[bool, int]]
    load: Any


def _ways(
    groups: Groups, ids: Sequence[int], source_of: Mapping[int, tuple[bool, int]]
) -> list[_Way]:
    """How states come to the groups of some environments.

    Args:
        groups: all of them.
        ids: the environments that are loaded.
        source_of: by environment, whether its group has kept the state, and which it is.
    """
    ways = []
    for k, driver, mine in groups.shares(ids):
        chosen = [source_of[env] for env in mine]
        brought = list(dict.fromkeys([source for is_here, source in chosen if not is_here]))
        number = dict(zip(brought, range(len(brought)), strict=True))
        lo, places = driver.lo, _places(driver, mine)
        sources = [(here, source - lo if here else number[source]) for here, source in chosen]
        load_ = driver.pack("load_states", places)
        ways.append(_Way(k, driver, places, chosen, brought, sources, load_))
    return ways


class _Route(NamedTuple):
    """How environments become like others.

    Attributes:
        sources: the environment each target is to become like.
        targets: these.
        saving: the groups of the sources, and which of each.
        going: the sources whose states are wanted elsewhere.
        kept: those whose states are wanted within their group.
        ways: how the states come to the groups of the targets.
    """

    sources: Sequence[int]
    targets: Sequence[int]
    saving: _Shares
    going: Collection[int]
    kept: Collection[int]
    ways: Sequence[_Way]

    @classmethod
    def of(cls, groups: Groups, sources: Sequence[int], targets: Sequence[int]) -> _Route:
        """That of some environments."""
        group_of, drivers = groups.group_of, groups.drivers
        source_of: dict[int, tuple[bool, int]] = {}
        going, kept = set[int](), set[int]()
        for source, target in zip(sources, targets, strict=True):
            k = group_of[target]
            # What may be replaced loses what it keeps: the caller has it then.
            is_here = k == group_of[source] and drivers[k].seeds is None
            source_of[target] = is_here, source
            (kept if is_here else going).add(source)
        saving = groups.shares(sorted(going | kept))
        ways = _ways(groups, targets, source_of)
        return cls(list(sources), list(targets), saving, going, kept, ways)


def _prepare(
    groups: Groups,
    ways: Sequence[_Way],
    states: Mapping[int, tuple[Any, ...]],
    facts: Mapping[bytes, bytes],
    fork_rng: bool,
    trusted: bool,
) -> None:
    """Has states read, and compared with the environments they are for; see :func:`_brought`."""
    lender, packed = groups.lender, {}
    for k, driver, places, chosen, brought, sources, _ in ways:
        digests = [states[source][1] for _, source in chosen]
        given = places, sources, digests, facts, fork_rng, trusted, _registry(driver)
        contents = [states[source][0] for source in brought]
        if contents and not driver.is_local and lender.lends(contents):
            command = driver.pack("prepare_states", *given)
            packed[k] = driver.lending(command, lender.lend(contents))
        else:
            packed[k] = driver.pack("prepare_states", *given, list(map(lender.read, contents)))
    groups.ledger.start(packed)
    _warn(_answers(groups))


def _answers(groups: Groups) -> list[Any]:
    """What groups that have been asked answer, in their order."""
    answers = [answer for _, answer in groups.ledger.finish()]
    groups.ledger.take()
    return answers


def _places(driver: Driver, envs: Sequence[int]) -> list[int]:
    return [env - driver.lo for env in envs]


def _seeds(groups: Groups) -> dict[int, Seeding]:
    """By environment, what seeds of restarts follow from, as far as there may be any."""
    return {
        driver.lo + place: seeding
        for driver in groups.drivers
        for place, seeding in enumerate(driver.seeds or ())
    }


def _checked_seeds(state: EnvStates) -> list[Seeding | None]:
    """What is kept with states of their seeds.

    Raises:
        StateError: it is something else.
    """
    try:
        given = state.extra(_SEEDS) or [None] * len(state)
        seeds = [None if one is None else (one[0], one[1]) for one in given]
    except (FaultError, LookupError, TypeError) as fault:
        raise StateError(-1, "load_state", f"expected seeds: {fault}") from None
    for seed, count in filter(None, seeds):
        if not isinstance(seed, int | None) or not isinstance(count, int) or count < 0:
            raise StateError(-1, "load_state", f"expected a seed and a count, got {seed}, {count}")
    return seeds


def _take_seeds(groups: Groups, seeds: Mapping[int, Seeding | None]) -> None:
    for driver in groups.drivers:
        if driver.seeds is None:
            continue
        for env, seeding in seeds.items():
            if seeding is not None and driver.lo <= env < driver.hi:
                driver.seeds[env - driver.lo] = seeding


def _warn(answers: Sequence[Sequence[str]]) -> None:
    for doubt in dict.fromkeys([doubt for doubts in answers for doubt in doubts]):
        warnings.warn(
            f"a state is loaded that may go on otherwise: {doubt}", stacklevel=callers_level()
        )
