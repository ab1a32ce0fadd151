"""Every number and array in an info comes back with its own type, from every backend."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from xuance_envs import DummyVecEnv, SubprocVecEnv
from xuance_envs.engine.by_value import exact_form
from xuance_envs.engine.data.space_layout import describe
from xuance_envs.engine.serialization import dumps_for_main, dumps_for_worker, loads

CHARS = sorted({np.dtype(char).char for char in np.typecodes["All"]} - {"O", "V"})


def dtype_of(char: str) -> np.dtype[Any]:
    sized = {"S": "S3", "U": "U3", "M": "M8[ns]", "m": "m8[3D]"}
    return np.dtype(sized.get(char, char))


PLAIN = [dtype_of(char) for char in CHARS]
DTYPES = [
    *PLAIN,
    *[dtype.newbyteorder() for dtype in PLAIN],
    *[np.dtype([("a", "b"), ("b", dtype), ("c", dtype, 2)]) for dtype in PLAIN],
    *[np.dtype([("a", "b"), ("b", dtype)], align=True) for dtype in PLAIN],
]


def values_of(dtype: np.dtype[Any]) -> list[Any]:
    content = bytes(place % 100 for place in range(3 * dtype.itemsize))
    array = np.frombuffer(content, dtype).copy() if dtype.kind not in "Ub" else np.ones(3, dtype)
    return [array, array[0], np.array(array[1]), np.array([array, array]).T]


def form(value: Any) -> Any:
    return type(value), value.dtype.byteorder, exact_form(value.dtype), value.shape


def check(got: Any, expected: Any) -> None:
    assert form(got) == form(expected), f"{describe(got)}, expected {describe(expected)}"
    assert got.dtype == expected.dtype
    if "g" not in str(form(expected)).lower() and not expected.dtype.isalignedstruct:  # no gaps
        assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dumps", [dumps_for_main, dumps_for_worker])
def test_a_value_travels_with_its_type(dumps: Any) -> None:
    class Local:  # by value
        pass

    for dtype in DTYPES:
        for value in values_of(dtype):
            check(loads(dumps(value)), value)
            check(loads(dumps((value, Local)))[0], value)


class Typed(gymnasium.Env[Any, Any]):
    """Gives one value of a type after the other under one key; those of equal types in turn."""

    observation_space = spaces.Discrete(9)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        dtypes = sorted(DTYPES, key=lambda dtype: (dtype.str, str(dtype)))
        lists = [values_of(dtype) for dtype in dtypes]
        self.values = [values[k] for k in range(4) for values in lists for _ in range(2)]
        self.at = -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return 0, {}

    def step(self, action: Any) -> Any:
        self.at += 1
        return 0, 0.0, False, False, {"value": self.values[self.at], "also": self.at}


@pytest.mark.parametrize("make", [DummyVecEnv, SubprocVecEnv])
def test_infos_keep_the_types_of_their_values(make: Any) -> None:
    expected = Typed().values
    with make([Typed]) as envs:
        envs.reset()
        for value in expected:
            infos = envs.step([0])[4]
            check(infos[0]["value"], value)
