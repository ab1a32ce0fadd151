"""Checks of what the caller of a vector environment gives it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["checked_env_ids", "checked_functions", "env_indices", "seeds_of"]


def checked_functions(
    env_fns: Iterable[Callable[..., Any]], env_seed: int | None
) -> tuple[list[Callable[..., Any]], list[Mapping[str, Any]]]:
    """The functions that make the environments, and the keyword arguments of each.

    Args:
        env_fns: any iterable of callables.
        env_seed: if given, function i is called with ``env_seed=env_seed + i``.

    Raises:
        TypeError: something in it is not callable.
        ValueError: it is empty.
    """
    functions = list(env_fns)
    if not functions:
        raise ValueError("env_fns: expected at least one function, got none")
    for i, function in enumerate(functions):
        if not callable(function):
            raise TypeError(
                f"env_fns[{i}]: expected a callable that makes an environment, got {function!r}"
            )
    if env_seed is None:
        return functions, [{}] * len(functions)
    return functions, [{"env_seed": env_seed + i} for i in range(len(functions))]


def checked_env_ids(
    env_ids: Sequence[int] | NDArray[np.integer[Any]] | None, num_envs: int
) -> list[int]:
    """The environments asked for, all for None.

    Raises:
        ValueError: one does not exist, or is there twice.
    """
    if env_ids is None:
        return list(range(num_envs))
    try:
        ids = [operator.index(env) for env in env_ids]
        if any(isinstance(env, bool | np.bool_) for env in env_ids):
            raise TypeError
    except TypeError:
        raise ValueError(f"env_ids: expected a sequence of ints, got {env_ids!r}") from None
    for env in ids:
        if not 0 <= env < num_envs:
            raise ValueError(f"env_ids: expected environments from 0 to {num_envs - 1}, got {env}")
    if len(set(ids)) != len(ids):
        raise ValueError(f"env_ids: expected each environment at most once, got {ids}")
    return ids


def env_indices(
    env_ids: Sequence[int] | NDArray[np.integer[Any]], num_envs: int
) -> NDArray[np.intp]:
    """The environments asked for, as an index of arrays; quick for an array of integers.

    Raises:
        ValueError: one does not exist, or is there twice.
    """
    if type(env_ids) is np.ndarray and env_ids.dtype.kind in "iu" and env_ids.ndim == 1:
        indices: NDArray[np.intp] = env_ids.astype(np.intp)
        exist = len(indices) and indices.min() >= 0 and env_ids.max() < num_envs
        if exist and np.bincount(indices).max() == 1:
            return indices
    return np.array(checked_env_ids(env_ids, num_envs), dtype=np.intp)


def seeds_of(seed: int | Sequence[int | None] | None, ids: Sequence[int]) -> list[int | None]:
    """The seed of each environment: an int is counted up by the environment's index.

    Raises:
        ValueError: there are not as many seeds as environments.
    """
    if seed is None:
        return [None] * len(ids)
    if isinstance(seed, int | np.integer):
        return [int(seed) + env for env in ids]
    seeds = list(seed)
    if len(seeds) != len(ids):
        raise ValueError(
            f"seed: expected an int or {len(ids)} seeds, one per environment, got {len(seeds)}"
        )
    return [None if one is None else operator.index(one) for one in seeds]
