"""Groups of environments saved and loaded: who is asked for what, in which order."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from xuance_envs.engine.data.step_infos import StepInfos
from xuance_envs.engine.driver import Driver, Seeding
from xuance_envs.engine.group.states import packed_registry
from xuance_envs.engine.groups import Groups
from xuance_envs.errors import StateError
from xuance_envs.state.env_states import EnvStates
from xuance_envs.state.faults import FaultError
from xuance_envs.state.pickling import dumps_plain
from xuance_envs.state.saved_env import Facts, SavedEnv

__all__ = ["clone", "load", "put_in", "save"]

_LARGE = 1 << 24

_SEEDS = "seeds"
"""The name under which is kept what seeds of restarts follow from."""


def save(groups: Groups, ids: Sequence[int]) -> EnvStates:
    """The states of some environments.

    Raises:
        StateError: one cannot be saved.
    """
    with _lending(groups):
        states, facts = _saved(groups, ids, lambda driver, mine: (None, ()))
        saved = {
            env: SavedEnv(groups.lender.read(data), digest, replays)
            for env, (data, digest, replays) in states.items()
        }
    largest = max((len(one.env) for one in saved.values()), default=0)
    if largest > _LARGE:
        warnings.warn(
            f"the state of one environment has {largest / 2**20:.0f} MiB: a wrapper that keeps "
            "what it records has that in its state, too",
            RuntimeWarning,
            stacklevel=4,
        )
    state = EnvStates([saved[env] for env in ids], facts)
    seeds = _seeds(groups)
    return state.adding(_SEEDS, [seeds.get(env) for env in ids]) if seeds else state


def load(
    groups: Groups, state: EnvStates, ids: Sequence[int], *, of_all: bool = False
) -> StepInfos:
    """Puts states into some environments.

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
    with _lending(groups):
        _prepare(groups, source_of, states, state.facts, trusted=state.trusted, registers=True)
    infos = _put_in(groups, ids, of_all)
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

    Args:
        groups: of both.
        sources: the environment each target is to become like.
        targets: none of them twice.
        fork_rng: whether each goes on with random streams of its own.
        of_all: as for :func:`load`.

    Returns:
        The targets' infos; their observations are in the arrays.
    """
    source_of = dict(zip(targets, sources, strict=True))
    stays = {t: groups.group_of[s] == groups.group_of[t] for t, s in source_of.items()}
    wanted = {source for target, source in source_of.items() if not stays[target]}
    kept = {source for target, source in source_of.items() if stays[target]}

    def saving(driver: Driver, mine: Sequence[int]) -> Any:
        return tuple(_places(driver, [s for s in mine if s in some]) for some in (wanted, kept))

    with _lending(groups):
        saved, facts = _saved(groups, sorted(set(sources)), saving)
        states = {source: (data, digest) for source, (data, digest, _) in saved.items()}
        origins = {target: (stays[target], source) for target, source in source_of.items()}
        _prepare(groups, origins, states, facts, fork_rng=fork_rng)
    seeds = {} if fork_rng else _seeds(groups)
    infos = _put_in(groups, targets, of_all)
    _take_seeds(groups, {target: seeds.get(source) for target, source in source_of.items()})
    return infos


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
    infos = groups.results.infos(groups.ledger.finish(), envs)
    groups.ledger.take()
    return infos


@contextmanager
def _lending(groups: Groups) -> Iterator[None]:
    """Lends groups states, which are taken back when none of them can be at it any more."""
    try:
        yield
    finally:
        if not groups.ledger.owing:  # else an interrupt came, and check_open does it
            groups.lender.take_back()


def _saved(
    groups: Groups, ids: Sequence[int], going: Callable[[Driver, Sequence[int]], Any]
) -> tuple[dict[int, tuple[Any, bytes, bool]], Facts]:
    """Has environments saved.

    Args:
        groups: theirs.
        ids: the environments.
        going: of some of a group, those whose states are wanted elsewhere, and within the group.

    Returns:
        By environment, its state or what stands for it, the digest of what it was saved from, and
        whether it is one by replay; and what belongs to the digests.
    """
    lender = groups.lender

    def saving(driver: Driver, mine: Sequence[int]) -> Any:
        most = None if driver.is_local else lender.most
        registry = None if driver.is_local else packed_registry()
        given = registry, *going(driver, mine), most
        return driver.pack("save_states", _places(driver, mine), *given)

    facts: dict[bytes, Any] = {}
    saved: dict[int, Any] = {}
    for mine, (states, its_facts) in _ask(groups, ids, saving):
        facts.update(its_facts)
        saved.update(zip(mine, states, strict=True))
    sizes = {env: size for env, (size, *_) in saved.items() if isinstance(size, int)}
    if sizes:
        room = dict(zip(sizes, lender.lend_room(list(sizes.values())), strict=True))

        def handing(driver: Driver, mine: Sequence[int]) -> Any:
            packed = driver.pack("hand_over", _places(driver, mine))
            return driver.lending(packed, [room[env] for env in mine])

        _ask(groups, list(sizes), handing)
        saved.update({env: (lent, *saved[env][1:]) for env, lent in room.items()})
    return saved, facts


def _prepare(
    groups: Groups,
    source_of: Mapping[int, tuple[bool, int]],
    states: Mapping[int, tuple[Any, bytes]],
    facts: Facts,
    fork_rng: bool = False,
    trusted: bool = True,
    registers: bool = False,
) -> None:
    """Has states read, and compared with the environments they are for.

    Args:
        groups: of these.
        source_of: by environment, whether its group has kept the state, and which it is.
        states: each, or what stands for it, and the digest of what it was saved from.
        facts: about these.
        fork_rng: whether random streams are to be others from then on.
        trusted: whether states may name classes of any module.
        registers: whether groups may not know yet what is registered for classes of others.
    """
    lender, packed_facts = groups.lender, dumps_plain(facts)

    def preparing(driver: Driver, mine: Sequence[int]) -> Any:
        chosen = [source_of[env] for env in mine]
        brought = list(dict.fromkeys(source for is_here, source in chosen if not is_here))
        number = {source: k for k, source in enumerate(brought)}
        sources = [
            (is_here, source - driver.lo if is_here else number[source])
            for is_here, source in chosen
        ]
        digests = [states[source][1] for _, source in chosen]
        registry = packed_registry() if registers and not driver.is_local else None
        given = sources, digests, packed_facts, fork_rng, trusted, registry
        contents = [states[source][0] for source in brought]
        command = "prepare_states", _places(driver, mine)
        if not driver.is_local and lender.lends(contents):
            return driver.lending(driver.pack(*command, *given), lender.lend(contents))
        return driver.pack(*command, *given, list(map(lender.read, contents)))

    _warn([answer for _, answer in _ask(groups, list(source_of), preparing)])


def _put_in(groups: Groups, ids: Sequence[int], of_all: bool) -> StepInfos:
    packed = {
        k: driver.pack("load_states", _places(driver, mine))
        for k, driver, mine in groups.shares(ids)
    }
    return put_in(groups, packed, ids, of_all=of_all)


def _ask(
    groups: Groups, ids: Sequence[int], pack: Callable[[Driver, Sequence[int]], Any]
) -> list[tuple[Sequence[int], Any]]:
    """Asks the groups of some environments; by group, these environments and the answer."""
    shares = groups.shares(ids)
    groups.ledger.start({k: pack(driver, mine) for k, driver, mine in shares})
    answers = [answer for _, answer in groups.ledger.finish()]
    groups.ledger.take()
    return [(mine, answer) for (*_, mine), answer in zip(shares, answers, strict=True)]


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


def _warn(answers: Sequence[Sequence[Sequence[str]]]) -> None:
    for doubt in dict.fromkeys(doubt for doubts in answers for each in doubts for doubt in each):
        warnings.warn(f"a state is loaded that may go on otherwise: {doubt}", stacklevel=5)
