"""Environments stepped by hand, and bitwise comparison with their results."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def assert_same(got: Any, expected: Any, where: str = "value") -> None:
    """Raise unless two values have equal type, dtype, shape, structure and bits."""
    __tracebackhide__ = True
    if not alike(got, expected):
        raise AssertionError(
            f"{where}: got {got!r} ({type(got).__name__}), "
            f"expected {expected!r} ({type(expected).__name__})"
        )
    if isinstance(expected, dict):
        for key in expected:
            assert_same(got[key], expected[key], f"{where}[{key!r}]")
    elif isinstance(expected, list | tuple):
        for i, (one, other) in enumerate(zip(got, expected, strict=True)):
            assert_same(one, other, f"{where}[{i}]")
    elif isinstance(expected, np.ndarray) and expected.dtype == object:
        assert_same(got.tolist(), expected.tolist(), where)


def alike(got: Any, expected: Any) -> bool:
    """Return whether two values are equal, without their contents."""
    if isinstance(got, np.generic) and isinstance(expected, np.generic):
        # If two C integer types have the same width, NumPy has a dtype for each and pickles only
        # one of them. The dtypes compare equal.
        return got.dtype == expected.dtype and got.tobytes() == expected.tobytes()
    if type(got) is not type(expected):
        return False
    if isinstance(expected, dict):
        return list(got) == list(expected)
    if isinstance(expected, list | tuple):
        return len(got) == len(expected)
    if isinstance(expected, np.ndarray):
        if (got.dtype, got.shape) != (expected.dtype, expected.shape):
            return False
        return expected.dtype == object or got.tobytes() == expected.tobytes()
    if isinstance(expected, float | complex):
        return np.array(got).tobytes() == np.array(expected).tobytes()
    return np.array_equal(got, expected)


def row(space: spaces.Space, batch: Any, i: int) -> Any:
    """Return the value of environment i in a batch, in the form of :func:`in_form`."""
    if isinstance(space, spaces.Dict):
        return {key: row(inner, batch[key], i) for key, inner in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(row(inner, part, i) for inner, part in zip(space, batch, strict=True))
    return in_form(space, batch[i])


def in_form(space: spaces.Space, value: Any) -> Any:
    """Convert a value's leaves of fixed shape to arrays, in any dtype."""
    if isinstance(space, spaces.Dict):
        return {key: in_form(inner, value[key]) for key, inner in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(in_form(inner, part) for inner, part in zip(space, value, strict=True))
    return np.asarray(value) if isinstance(space, ARRAY_SPACES) else value


def in_own_dtype(space: spaces.Space, value: Any) -> Any:
    """Convert a value's leaves of fixed shape to arrays, in the space's dtype."""
    if isinstance(space, spaces.Dict):
        return {key: in_own_dtype(inner, value[key]) for key, inner in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(in_own_dtype(inner, part) for inner, part in zip(space, value, strict=True))
    return np.asarray(value, space.dtype) if isinstance(space, ARRAY_SPACES) else value


def batch_of(space: spaces.Space, values: list[Any]) -> Any:
    """Batch values: in arrays, dicts or tuples of batches, or lists for other spaces."""
    if isinstance(space, spaces.Dict):
        return {key: batch_of(inner, [v[key] for v in values]) for key, inner in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(batch_of(inner, [v[i] for v in values]) for i, inner in enumerate(space))
    return np.stack(values) if isinstance(space, ARRAY_SPACES) else list(values)


@dataclass
class HandStep:
    """Results of one step of one environment; the last two only at an episode's end."""

    obs: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[Any, Any]
    reset_obs: Any = None
    reset_info: Any = None

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated


class HandSteps:
    """One environment stepped by hand, the reference for all backends."""

    def __init__(self, env: Any, seed: int | None = None) -> None:
        self.env = env
        self.first = copy.deepcopy(env.reset() if seed is None else env.reset(seed=seed))

    def step(self, action: Any) -> HandStep:
        result = HandStep(*copy.deepcopy(self.env.step(copy.deepcopy(action))))
        if result.ended:
            result.reset_obs, result.reset_info = copy.deepcopy(self.env.reset())
        return result


def assert_same_step(space: spaces.Space, result: Any, expected: list[HandStep]) -> None:
    """Raise unless a vectorized step equals the steps by hand."""
    __tracebackhide__ = True
    obs, rewards, terminated, truncated, infos = result
    assert_same(rewards, np.array([hand.reward for hand in expected], np.float32), "rewards")
    assert_same(terminated, np.array([hand.terminated for hand in expected]), "terminated")
    assert_same(truncated, np.array([hand.truncated for hand in expected]), "truncated")
    for i, hand in enumerate(expected):
        assert_same(row(space, obs, i), in_own_dtype(space, hand.obs), f"obs {i}")
        info = dict(infos[i])
        if hand.ended:
            reset_obs = in_form(space, info.pop("reset_obs"))
            assert_same(reset_obs, in_own_dtype(space, hand.reset_obs), f"reset_obs {i}")
            assert_same(info.pop("reset_info"), hand.reset_info, f"reset_info {i}")
        assert_same(info, hand.info, f"infos[{i}]")


def assert_same_reset(space: spaces.Space, result: Any, expected: list[HandSteps]) -> None:
    """Raise unless a vectorized reset equals the resets by hand."""
    __tracebackhide__ = True
    obs, infos = result
    assert len(infos) == len(expected)
    for i, (hand_obs, hand_info) in enumerate(hand.first for hand in expected):
        assert_same(row(space, obs, i), in_own_dtype(space, hand_obs), f"obs {i}")
        assert_same(infos[i], hand_info, f"infos[{i}]")
