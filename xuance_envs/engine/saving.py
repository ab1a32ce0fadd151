"""Groups of environments saved and loaded: who is asked for what, in which order."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from xuance_envs.engine.data.step_infos import StepInfos
from xuance_envs.engine.driver import Driver, Seeding
from xuance_envs.engine.groups import Groups
from xuance_envs.engine.serialization import dumps_for_worker
from xuance_envs.errors import StateError
from xuance_envs.state.env_states import EnvStates
from xuance_envs.state.faults import FaultError
from xuance_envs.state.handlers import registered
from xuance_envs.state.pickling import dumps_plain
from xuance_envs.state.saved_env import SavedEnv

__all__ = ["clone", "load", "put_in", "save"]

_LARGE = 1 << 24

_SEEDS = "seeds"
"""The name under which is kept what seeds of restarts follow from."""


def save(groups: Groups, ids: Sequence[int]) -> EnvStates:
    """The states of some environments.

    Raises:
        StateError: one cannot be saved.
    """
    asked, answers = _ask(groups, "save_states", ids, lambda mine, local: (None, _registry(local)))
    saved: dict[int, SavedEnv] = {}
    facts: dict[bytes, Any] = {}
    for envs, (states, its_facts) in zip(asked, answers, strict=True):
        facts.update(its_facts)
        for env, (data, digest, replays) in zip(envs, states, strict=True):
            saved[env] = SavedEnv(data, digest, replays)
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
    given = dict(zip(ids, state.envs, strict=True))
    facts = dumps_plain(state.facts)

    def arguments(mine: Sequence[int], local: bool) -> Any:
        saved = [given[env] for env in mine]
        return (
            [one.env for one in saved],
            [one.digest for one in saved],
            facts,
            False,
            state.trusted,
            _registry(local),
        )

    _warn(_ask(groups, "prepare_states", ids, arguments)[1])
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
    driver_of = {env: driver for driver in groups.drivers for env in range(driver.lo, driver.hi)}
    # Others need the state of one whose targets are not all in its own group.
    wanted = {s for t, s in source_of.items() if driver_of[t] is not driver_of[s]}
    needed = sorted(set(sources))

    def saving(mine: Sequence[int], local: bool) -> Any:
        lo = driver_of[mine[0]].lo
        return [env - lo for env in mine if env in wanted], _registry(local)

    facts: dict[bytes, Any] = {}
    saved: dict[int, Any] = {}
    asked, answers = _ask(groups, "save_states", needed, saving)
    for envs, (states, its_facts) in zip(asked, answers, strict=True):
        facts.update(its_facts)
        saved.update(zip(envs, states, strict=True))

    packed_facts = dumps_plain(facts)

    def preparing(mine: Sequence[int], local: bool) -> Any:
        home = driver_of[mine[0]]
        origins = [source_of[env] for env in mine]
        return (
            [s - home.lo if driver_of[s] is home else saved[s][0] for s in origins],
            [saved[s][1] for s in origins],
            packed_facts,
            fork_rng,
            True,
            None,
        )

    seeds = {} if fork_rng else _seeds(groups)
    _warn(_ask(groups, "prepare_states", targets, preparing)[1])
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


def _put_in(groups: Groups, ids: Sequence[int], of_all: bool) -> StepInfos:
    packed = {
        k: driver.pack("load_states", [env - driver.lo for env in mine])
        for k, driver, mine in _shares(groups, ids)
    }
    return put_in(groups, packed, ids, of_all=of_all)


def _ask(
    groups: Groups,
    command: str,
    ids: Sequence[int],
    arguments: Callable[[Sequence[int], bool], Any],
) -> tuple[list[Sequence[int]], list[Any]]:
    """Asks the groups of some environments; by group, these environments and the answer."""
    shares = list(_shares(groups, ids))
    packed = {
        k: driver.pack(
            command, [env - driver.lo for env in mine], *arguments(mine, driver.is_local)
        )
        for k, driver, mine in shares
    }
    groups.ledger.start(packed)
    answers = [answer for _, answer in groups.ledger.finish()]
    groups.ledger.take()
    return [mine for *_, mine in shares], answers


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


def _shares(groups: Groups, ids: Sequence[int]) -> list[tuple[int, Driver, list[int]]]:
    return [
        (k, driver, mine)
        for k, driver in enumerate(groups.drivers)
        if (mine := [env for env in ids if driver.lo <= env < driver.hi])
    ]


def _registry(local: bool) -> bytes | None:
    """What was registered for classes of others, for another process."""
    known = registered()
    return None if local or not known else dumps_for_worker(known)


def _warn(answers: Sequence[Sequence[Sequence[str]]]) -> None:
    for doubt in dict.fromkeys(doubt for doubts in answers for each in doubts for doubt in each):
        warnings.warn(f"a state is loaded that may go on otherwise: {doubt}", stacklevel=5)
