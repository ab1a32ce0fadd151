"""Checks of what the caller of a vector environment gives it."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.group.outcome import Autoreset
from xuance_envs.engine.group.recipe import Recipe
from xuance_envs.engine.restarts import RestartPolicy
from xuance_envs.state.env_states import EnvStates

__all__ = [
    "checked_env_ids",
    "checked_info_bytes",
    "checked_positive",
    "checked_recipe",
    "checked_restarts",
    "checked_seed",
    "env_indices",
    "seed_per_env",
    "split_envs",
]

_BOOLS = frozenset({bool, np.bool_})  # neither has classes derived from it


def checked_recipe(
    env_fns: Iterable[Callable[..., Any]],
    env_seed: int | None,
    autoreset: Autoreset = Autoreset.SAME_STEP,
) -> Recipe:
    """What environments are made from."""
    try:
        functions = list(env_fns)
    except TypeError:
        raise TypeError(
            f"env_fns: expected a list of functions, one for each environment, got {env_fns!r}"
        ) from None
    if not functions:
        raise ValueError("env_fns: expected at least one function, got none")
    for i, function in enumerate(functions):
        if not callable(function):
            raise TypeError(
                f"env_fns[{i}]: expected a callable that makes an environment, got {function!r}"
            )
    if env_seed is None:
        keywords: list[Mapping[str, Any]] = [{}] * len(functions)
    else:
        seed = checked_seed("env_seed", env_seed)
        keywords = [{"env_seed": seed + i} for i in range(len(functions))]
    return Recipe(functions, keywords, autoreset=autoreset)


def checked_env_ids(
    env_ids: Sequence[int] | NDArray[np.integer[Any]] | None, num_envs: int
) -> list[int]:
    """The environments asked for, all for None."""
    if env_ids is None:
        return list(range(num_envs))
    try:
        # First: NumPy 1 takes bools of its own for indices.
        if not _BOOLS.isdisjoint(map(type, env_ids)):
            raise TypeError
        ids = list(map(operator.index, env_ids))
    except TypeError:
        raise ValueError(f"env_ids: expected a sequence of ints, got {env_ids!r}") from None
    if ids and not (min(ids) >= 0 and max(ids) < num_envs):
        env = next(env for env in ids if not 0 <= env < num_envs)
        raise ValueError(f"env_ids: expected environments from 0 to {num_envs - 1}, got {env}")
    if len(set(ids)) != len(ids):
        raise ValueError(f"env_ids: expected each environment at most once, got {ids}")
    return ids


def env_indices(
    env_ids: Sequence[int] | NDArray[np.integer[Any]], num_envs: int
) -> NDArray[np.intp]:
    """The environments asked for, as an index of arrays; quick for an array of integers."""
    if type(env_ids) is np.ndarray and env_ids.dtype.kind in "iu" and env_ids.ndim == 1:
        indices: NDArray[np.intp] = env_ids.astype(np.intp)
        ids = indices.tolist()  # quicker than NumPy's reductions, for as few as there are
        if ids and min(ids) >= 0 and max(ids) < num_envs and len(set(ids)) == len(ids):
            return indices
    return np.array(checked_env_ids(env_ids, num_envs), dtype=np.intp)


def seed_per_env(seed: int | Sequence[int | None] | None, ids: Sequence[int]) -> list[int | None]:
    """The seed of each environment: an int is counted up by the environment's index."""
    if seed is None:
        return [None] * len(ids)
    if isinstance(seed, int | str | bytes) or not np.iterable(seed):
        first = checked_seed("seed", seed, f", or {len(ids)} of them, one per environment")
        return [first + env for env in ids]
    seeds = list(seed)
    if len(seeds) != len(ids):
        raise ValueError(
            f"seed: expected an int or {len(ids)} seeds, one per environment, got {len(seeds)}"
        )
    return [None if one is None else checked_seed(f"seed[{i}]", one) for i, one in enumerate(seeds)]


def checked_seed(name: str, seed: Any, otherwise: str = "") -> int:
    """A seed, as environments of Gymnasium take it: an int of any size that is not negative."""
    with suppress(TypeError):
        if (number := operator.index(seed)) >= 0:
            return number
    raise ValueError(f"{name}: expected an int from 0 on{otherwise}, got {seed!r}")


def split_envs(num_envs: int, in_series: int | str, cpus: int) -> list[tuple[int, int]]:
    """Splits environments among processes."""
    if in_series == "auto":
        count = min(num_envs, cpus)
        bounds = [num_envs * k // count for k in range(count + 1)]
        return list(itertools.pairwise(bounds))
    if not isinstance(in_series, int | np.integer) or isinstance(in_series, bool) or in_series < 1:
        raise ValueError(f"in_series: expected 'auto' or an int of at least 1, got {in_series!r}")
    size = int(in_series)
    return [(lo, min(lo + size, num_envs)) for lo in range(0, num_envs, size)]


def checked_restarts(
    on_worker_failure: str, max_restarts: int | None, on_exception: bool, *, resumes: bool = True
) -> RestartPolicy | None:
    """How workers that fail are replaced; None if they are not."""
    if on_worker_failure not in ("raise", "restart", *["resume"] * resumes):
        ways = "'raise', 'restart' or 'resume'" if resumes else "'raise' or 'restart'"
        raise ValueError(f"on_worker_failure: expected {ways}, got {on_worker_failure!r}")
    if max_restarts is not None and max_restarts < 0:
        raise ValueError(f"max_restarts: expected at least 0, or None, got {max_restarts!r}")
    if on_worker_failure != "raise":
        return RestartPolicy(max_restarts, on_exception, on_worker_failure == "resume")
    if on_exception:
        raise ValueError("restart_on_exception=True needs on_worker_failure='restart', or 'resume'")
    return None


def checked_states(state: Any, count: int | None = None) -> EnvStates:
    """States, if they are some, of so many environments."""
    if not isinstance(state, EnvStates):
        raise TypeError(f"state: expected an EnvStates, got {type(state).__name__}")
    if count is not None and len(state) != count:
        raise ValueError(f"state: expected those of {count} environments, got {len(state)}")
    return state


def checked_info_bytes(info_bytes: int) -> int:
    """How much room there is for the arrays in each environment's info."""
    room = -1
    with suppress(TypeError):
        room = operator.index(info_bytes)
    if room < 0 or isinstance(info_bytes, bool):
        raise ValueError(f"info_bytes: expected an int from 0 on, got {info_bytes!r}")
    return room


def checked_positive(**values: float | None) -> None:
    """Checks numbers that are more than 0, or None."""
    for name, value in values.items():
        if value is not None and not value > 0:
            raise ValueError(f"{name}: expected more than 0, or None, got {value!r}")
