"""Vector rewards of any length, dtype and memory layout, as NumPy casts them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from comparing import assert_same
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from xuance_envs import DummyVecEnv, ThreadVecEnv

DTYPES = [np.float16, np.float32, np.float64, np.int8, np.int32, np.int64, np.uint16, np.bool_]

LAYOUTS: dict[str, Any] = {
    "contiguous": lambda row: row.copy(),
    "every second": lambda row: np.repeat(row, 2)[::2],
    "backwards": lambda row: row[::-1].copy()[::-1],
    "a column": lambda row: np.stack([row, row], axis=1)[:, 1],
    "unaligned": lambda row: unaligned(row),
    "byte-swapped": lambda row: row.astype(row.dtype.newbyteorder()),
    "a subclass": lambda row: row.view(Subclass),
    "a list": lambda row: row.tolist(),
    "a read-only view": lambda row: np.broadcast_to(row, (1, *row.shape))[0],
}


class Subclass(np.ndarray[Any, Any]):
    pass


def unaligned(row: NDArray[Any]) -> NDArray[Any]:
    buffer = np.zeros(row.nbytes + 1, np.uint8)
    view = buffer[1:].view(row.dtype)
    view[:] = row
    return view


@st.composite
def rewards(draw: st.DrawFn) -> tuple[int, list[list[Any]], NDArray[np.float64]]:
    """Rewards of each environment by step, and what they are in float64."""
    k, num_envs, steps = draw(st.integers(1, 9)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    given: list[list[Any]] = []
    exact = np.zeros((steps, num_envs, k))
    for t in range(steps):
        given.append([])
        for i in range(num_envs):
            dtype = np.dtype(draw(st.sampled_from(DTYPES)))
            elements = st.integers(-(2**53), 2**53) if dtype == np.int64 else None
            row = draw(arrays.arrays(dtype, k, elements=elements))
            given[t].append(LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))](row))
            exact[t, i] = row
    return k, given, exact


class Given(gymnasium.Env[Any, Any]):
    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(2)

    def __init__(self, k: int, rewards: list[Any]) -> None:
        self.reward_space = spaces.Box(-np.inf, np.inf, (k,))
        self.rewards = rewards

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.count = 0
        return 0, {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return 0, self.rewards[self.count - 1], False, False, {}


@settings(max_examples=150)
@given(rewards(), st.booleans(), st.sampled_from([DummyVecEnv, ThreadVecEnv]))
def test_every_vector_is_stored_as_numpy_casts_it(
    case: tuple[int, list[list[Any]], NDArray[np.float64]], copy: bool, kind: Any
) -> None:
    k, given, exact = case
    fns = [lambda each=each: Given(k, list(each)) for each in zip(*given, strict=True)]
    with kind(fns, copy=copy) as envs:
        envs.reset()
        for expected in exact:
            found = envs.step([0] * len(fns))[1]
            assert_same(envs.exact_rewards, expected)
            with np.errstate(over="ignore", invalid="ignore"):
                assert_same(np.array(found), expected.astype(np.float32))
