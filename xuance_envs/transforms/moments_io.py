"""Conversion of learned moments to and from plain data."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from xuance_envs.errors import VecEnvError
from xuance_envs.transforms.moments import MAX_MAGNITUDE, Moments
from xuance_envs.vector_envs.vector_env import VecEnv


def env_id_of(vec_env: VecEnv) -> str:
    """Return the environments' id; an empty string if they have none."""
    with suppress(AttributeError, NotImplementedError, VecEnvError):
        (spec,) = vec_env.get_attr("spec", env_ids=[0])
        return str(getattr(spec, "id", ""))
    return ""


def moment_key(what: str, name: str) -> str:
    """Return a key such as ``mean.position``, or ``mean`` if ``name`` is empty."""
    return f"{what}.{name}" if name else what


def moments_to_dict(environment: str, moments: Mapping[str, Moments]) -> dict[str, Any]:
    """Convert moments to numbers and lists; ``squares``, unlike the variance, is not rounded."""
    learned: dict[str, Any] = {"environment": environment}
    for name, its in moments.items():
        learned["count"] = its.count
        learned[moment_key("mean", name)] = np.asarray(its.mean).tolist()
        learned[moment_key("squares", name)] = np.asarray(its.squares).tolist()
    return learned


def moments_from_dict(
    transform: str, environment: str, own: Mapping[str, Moments], learned: Mapping[str, Any]
) -> dict[str, Moments]:
    """Check data of :func:`moments_to_dict` and convert it to moments."""
    given = str(learned.get("environment", ""))
    if given and environment and given != environment:
        raise ValueError(
            f"{transform}: expected statistics learned in {environment}, got those of {given}"
        )
    names = [moment_key(what, name) for name in own for what in ("mean", "squares")]
    expected = {"environment", "count", *names}
    if learned.keys() != expected:
        wanted, got = (
            ", ".join(f"{transform}.{key}" for key in sorted(keys)) for keys in (expected, learned)
        )
        raise ValueError(f"state: expected the keys {wanted}, got {got}")
    return {name: _moments(transform, name, its, learned) for name, its in own.items()}


def _moments(transform: str, name: str, own: Moments, learned: Mapping[str, Any]) -> Moments:
    keys = [moment_key(what, name) for what in ("mean", "squares")]
    mean, squares = (np.array(learned[key], np.float64) for key in keys)
    count, shape = int(learned["count"]), np.shape(own.mean)
    if mean.shape != shape or squares.shape != shape:
        raise ValueError(
            f"{transform}: {' and '.join(keys)}: expected shape {shape}, got {mean.shape} and "
            f"{squares.shape}"
        )
    are_sums = (squares >= 0) & np.isfinite(squares)
    if count < 0 or not (np.abs(mean) <= MAX_MAGNITUDE).all() or not are_sums.all():
        raise ValueError(
            f"{transform}: expected a non-negative count, finite means and finite, non-negative "
            f"sums of squared deviations, got {count}, {mean} and {squares}"
        )
    if not shape:
        return Moments(count, float(mean), float(squares), own.epsilon)
    return Moments(count, mean, squares, own.epsilon)
