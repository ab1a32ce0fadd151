"""What transforms learn, as one takes it over from another."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.errors import VecEnvError
from xuance_envs.transforms.moments import MAX_MAGNITUDE, Moments
from xuance_envs.vector_envs.vector_env import VecEnv

__all__ = ["env_id_of", "moment_key", "moments_from_dict", "moments_to_dict"]


def env_id_of(vec_env: VecEnv) -> str:
    """The id of the environments; empty where they have none, or do not tell."""
    with suppress(AttributeError, NotImplementedError, VecEnvError):
        (spec,) = vec_env.get_attr("spec", env_ids=[0])
        return str(getattr(spec, "id", ""))
    return ""


def moment_key(what: str, name: str) -> str:
    """What is learned of one part of observations, by name."""
    return f"{what}.{name}" if name else what


def moments_to_dict(environment: str, moments: Mapping[str, Moments]) -> dict[str, Any]:
    """Moments as numbers and lists of numbers; exactly: a variance is squares over count."""
    learned: dict[str, Any] = {"environment": environment}
    for name, its in moments.items():
        learned["count"] = its.count
        learned[moment_key("mean", name)] = np.asarray(its.mean).tolist()
        learned[moment_key("squares", name)] = np.asarray(its.squares).tolist()
    return learned


def moments_from_dict(
    transform: str, environment: str, own: Mapping[str, Moments], learned: Mapping[str, Any]
) -> dict[str, Moments]:
    """The reverse of :func:`moments_to_dict`."""
    theirs = str(learned.get("environment", ""))
    if theirs and environment and theirs != environment:
        raise ValueError(f"{transform}: expected what was learned in {environment}, got {theirs}")
    names = [moment_key(what, name) for name in own for what in ("mean", "squares")]
    expected = {"environment", "count", *names}
    if learned.keys() != expected:
        raise ValueError(f"{transform}: expected {sorted(expected)}, got {sorted(learned)}")
    return {name: _moments(transform, name, its, learned) for name, its in own.items()}


def _moments(transform: str, name: str, own: Moments, learned: Mapping[str, Any]) -> Moments:
    mean, squares = (_numbers(learned[moment_key(what, name)]) for what in ("mean", "squares"))
    count = int(learned["count"])
    shape = np.shape(own.mean)
    if mean.shape != shape or squares.shape != shape:
        raise ValueError(
            f"{transform}: {moment_key('mean', name)} and {moment_key('squares', name)}: expected shape "
            f"{shape}, got {mean.shape} and {squares.shape}"
        )
    if count < 0 or not (np.abs(mean) <= MAX_MAGNITUDE).all() or not (squares >= 0).all():
        raise ValueError(
            f"{transform}: expected a count, finite means, and sums of squared deviations from 0 "
            f"on, got {count}, {mean} and {squares}"
        )
    if not shape:
        return Moments(count, float(mean), float(squares), own.epsilon)
    return Moments(count, mean, squares, own.epsilon)


def _numbers(value: Any) -> NDArray[np.float64]:
    return np.array(value, np.float64)
