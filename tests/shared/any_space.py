"""Hypothesis strategies for spaces of all kinds, with nesting."""

from __future__ import annotations

import copy

import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st

_SHAPES = st.sampled_from([(), (0,), (1,), (3,), (2, 0), (2, 3), (2, 1, 2)])
_DTYPES = st.sampled_from([np.dtype(code) for code in "?bBhHiIlLqQefd"])


@st.composite
def boxes(draw):
    dtype, shape = draw(_DTYPES), draw(_SHAPES)
    if dtype.kind == "b":
        low, high = False, True
    elif dtype.kind == "f":
        low, high = draw(st.sampled_from([(-1, 1), (0, 1000), (-np.inf, np.inf)]))
    else:  # the full range, as far as Box can sample it
        low, high = max(np.iinfo(dtype).min, -(2**40)), min(np.iinfo(dtype).max, 2**40)
    return spaces.Box(np.full(shape, low, dtype), np.full(shape, high, dtype), shape, dtype.type)


_COUNTS = st.lists(st.integers(1, 5), min_size=1, max_size=3)
discretes = st.builds(
    lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 9), st.integers(-3, 3)
)
multi_discretes = st.one_of(
    _COUNTS.map(spaces.MultiDiscrete),
    _COUNTS.map(lambda counts: spaces.MultiDiscrete([counts, counts])),
    _COUNTS.map(lambda counts: spaces.MultiDiscrete(counts, dtype=np.int32)),
)
multi_binaries = st.sampled_from([1, 4, (2, 3)]).map(spaces.MultiBinary)
fixed_shapes = st.one_of(boxes(), discretes, multi_discretes, multi_binaries)

texts = st.integers(1, 8).map(spaces.Text)
graphs = st.sampled_from([None, spaces.Box(-1, 1, (2,)), spaces.Discrete(3)]).map(
    lambda edges: spaces.Graph(spaces.Box(-1, 1, (3,)), edges)
)
sequences = st.builds(
    lambda inner, stack: spaces.Sequence(inner, stack=stack),
    st.sampled_from([spaces.Discrete(4), spaces.Box(-1, 1, (2,)), spaces.MultiBinary(2)]),
    st.booleans(),
)
one_ofs = st.lists(fixed_shapes | texts, min_size=1, max_size=3).map(spaces.OneOf)
objects = st.one_of(texts, graphs, sequences, one_ofs)


def _branches(inner):
    keys = st.text("abxy _", min_size=1, max_size=3)
    return st.one_of(
        st.dictionaries(keys, inner, min_size=1, max_size=3).map(spaces.Dict),
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
    )


any_space = st.recursive(fixed_shapes | objects, _branches, max_leaves=5)
array_space = st.recursive(fixed_shapes, _branches, max_leaves=5)


def samples(space, count, seed):
    """Sample ``count`` values of a copy of the space, with a seed."""
    space = copy.deepcopy(space)
    space.seed(seed)
    return [space.sample() for _ in range(count)]
