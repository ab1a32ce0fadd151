"""Validation of the arguments of vectorized environments."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import ArrayLike, NDArray

from xuance_envs.engine.group.outcome import Autoreset
from xuance_envs.engine.group.recipe import Recipe
from xuance_envs.errors import counted
from xuance_envs.state.env_states import EnvStates, list_of_ints

Seeds = int | Sequence[int | None] | None  # environment i gets seed + i, or the i-th of a sequence
EnvIds = Sequence[int] | None  # indices of environments; None for all


def repeated_functions(
    env_fns: Callable[..., Any] | Iterable[Callable[..., Any]], num_envs: int | None
) -> Iterable[Callable[..., Any]]:
    """Return one function per environment; a single function is used ``num_envs`` times."""
    if callable(env_fns):
        return [env_fns] * checked_count("num_envs", num_envs)
    if num_envs is not None:
        raise ValueError(
            "num_envs: expected None, because env_fns has one callable per environment, got "
            f"{num_envs}"
        )
    return env_fns


def checked_recipe(
    env_fns: Iterable[Callable[..., Any]],
    env_seed: int | None,
    autoreset: Autoreset = Autoreset.SAME_STEP,
    num_workers_hint: str = "num_workers={}",
) -> Recipe:
    """Validate ``env_fns`` and ``env_seed``; the hint is part of the error about ``env_seed``."""
    functions = checked_functions(env_fns)
    if env_seed is None:
        keywords: list[Mapping[str, Any]] = [{}] * len(functions)
    else:
        seed = checked_seed("env_seed", env_seed)
        for i, function in enumerate(functions):
            if not _accepts(function, "env_seed"):
                raise TypeError(
                    f"{seed} was taken as env_seed; did you mean {num_workers_hint.format(seed)}? "
                    "With env_seed, each function must accept the keyword argument env_seed, "
                    f"and env_fns[{i}] does not"
                )
        keywords = [{"env_seed": seed + i} for i in range(len(functions))]
    return Recipe(functions, keywords, autoreset=autoreset)


def checked_functions(env_fns: Iterable[Callable[..., Any]]) -> list[Callable[..., Any]]:
    functions: Any = None
    if not isinstance(env_fns, str):
        with suppress(TypeError):
            functions = list(env_fns)
    if functions is None:
        raise TypeError(
            f"env_fns: expected a list of functions, one per environment, got {env_fns!r}"
        )
    if not functions:
        raise ValueError("env_fns: expected at least one function, got none")
    for i, function in enumerate(functions):
        if not callable(function):
            raise TypeError(
                f"env_fns[{i}]: expected a callable that returns an environment, got {function!r}"
            )
    return list(functions)


def _accepts(function: Callable[..., Any], name: str) -> bool:
    try:
        parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
    except (TypeError, ValueError):  # written in C
        return True
    return any(
        each.kind is each.VAR_KEYWORD
        or (each.name == name and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY))
        for each in parameters
    )


def checked_env_ids(
    env_ids: Sequence[int] | NDArray[np.integer[Any]] | None,
    num_envs: int,
    name: str = "env_ids",
    *,
    distinct: bool = True,
) -> list[int]:
    """Validate environment indices; None selects all. Errors begin with ``name``."""
    if env_ids is None:
        return list(range(num_envs))
    if isinstance(env_ids, str | Path):
        raise ValueError(
            f"{name}: expected a sequence of ints, got {str(env_ids)!r}; to write states to a "
            f"file, use save_state().save({str(env_ids)!r})"
        )
    try:
        ids = list_of_ints(env_ids)
    except TypeError:
        raise ValueError(f"{name}: expected a sequence of ints, got {env_ids!r}") from None
    if ids and not (min(ids) >= 0 and max(ids) < num_envs):
        env = next(env for env in ids if not 0 <= env < num_envs)
        expected = "only index 0" if num_envs == 1 else f"indices from 0 to {num_envs - 1}"
        raise ValueError(f"{name}: expected {expected}, got {env}")
    if distinct and len(set(ids)) != len(ids):
        raise ValueError(f"{name}: expected each environment at most once, got {ids}")
    return ids


def env_indices(
    env_ids: Sequence[int] | NDArray[np.integer[Any]] | None, num_envs: int
) -> NDArray[np.intp]:
    """Validate environment indices and return them as an array, with a fast path for int arrays."""
    if type(env_ids) is np.ndarray and env_ids.dtype.kind in "iu" and env_ids.ndim == 1:
        indices: NDArray[np.intp] = env_ids.astype(np.intp)
        ids = indices.tolist()  # faster than NumPy's reductions for small batches
        if ids and min(ids) >= 0 and max(ids) < num_envs and len(set(ids)) == len(ids):
            return indices
    return np.array(checked_env_ids(env_ids, num_envs), dtype=np.intp)


def seed_per_env(seed: Seeds, ids: Sequence[int]) -> list[int | None]:
    """Return one seed per environment; from an int, environment i gets ``seed + i``."""
    if seed is None:
        return [None] * len(ids)
    if isinstance(seed, int | str | bytes | Mapping | Set) or not np.iterable(seed):
        first = checked_seed("seed", seed, f", or {len(ids)} of them, one per environment")
        return [first + env for env in ids]
    seeds = list(seed)
    if len(seeds) != len(ids):
        raise ValueError(
            f"seed: expected an int or {counted(len(ids), 'seed')}, one per environment, got a "
            f"sequence of {len(seeds)}"
        )
    return [None if one is None else checked_seed(f"seed[{i}]", one) for i, one in enumerate(seeds)]


def checked_seed(name: str, seed: Any, otherwise: str = "") -> int:
    """Validate a seed: like Gymnasium, accept a non-negative int of any size."""
    with suppress(TypeError):
        # operator.index accepts np.bool_ in NumPy 1.
        if not isinstance(seed, np.bool_) and (number := operator.index(seed)) >= 0:
            return number
    raise ValueError(f"{name}: expected a non-negative int{otherwise}, got {seed!r}")


def checked_states(state: Any, count: int | None = None) -> EnvStates:
    """Validate a saved state and its number of environments."""
    if not isinstance(state, EnvStates):
        hint = ""
        if isinstance(state, str | Path):
            hint = f"; EnvStates.load({str(state)!r}) reads a file"
        elif isinstance(state, bytes):
            hint = "; EnvStates.from_bytes reads bytes"
        raise TypeError(f"state: expected an EnvStates, got {type(state).__name__}{hint}")
    if count is not None and len(state) != count:
        expected = counted(count, "environment")
        raise ValueError(f"state: expected states of {expected}, got {len(state)}")
    return state


def checked_count(name: str, value: Any, least: int = 1) -> int:
    """Validate an int of at least ``least``, also of NumPy, and return it as an int of Python."""
    with suppress(TypeError):
        if not isinstance(value, bool | np.bool_) and (number := operator.index(value)) >= least:
            return number
    raise ValueError(f"{name}: expected an int of at least {least}, got {value!r}")


def checked_number(
    name: str,
    value: Any,
    is_valid: Callable[[float], bool] = lambda number: True,
    expected: str = "a number",
) -> float:
    """Validate a number, also of NumPy, and return it as a float."""
    with suppress(TypeError, ValueError, OverflowError):
        if not isinstance(value, str | bytes) and is_valid(number := float(value)):
            return number
    raise ValueError(f"{name}: expected {expected}, got {value!r}")


def checked_fraction(name: str, value: Any) -> float:
    return checked_number(name, value, lambda number: 0 <= number <= 1, "a number from 0 to 1")


def checked_timeout(name: str, seconds: float | None) -> float | None:
    if seconds is None:
        return None
    return checked_number(name, seconds, lambda value: value > 0, "a positive number or None")


def checked_weights(name: str, weights: ArrayLike, reward_space: Box | None) -> NDArray[np.float64]:
    """Return the weights ``(k,)`` of rewards in this space, as a new array."""
    if reward_space is None:
        raise ValueError(
            f"{name}: expected vector rewards, but the rewards are numbers (reward_space is None)"
        )
    try:
        found = np.array(weights, np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name}: weights: expected numbers, got {weights!r}") from None
    if found.shape != reward_space.shape or not np.isfinite(found).all():
        raise ValueError(
            f"{name}: weights: expected {counted(reward_space.shape[0], 'finite number')}, one per "
            f"component of the reward, got {weights!r}"
        )
    return found


def is_int(value: Any) -> bool:
    """Return True for Python's and NumPy's ints, except bools."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
