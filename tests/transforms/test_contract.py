"""The contract suite, unchanged, over each transform, set so that it changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from backends import DUMMY, WORKERS, Maker, made
from contract import contract
from transformed import BEYOND, STACKED, WITHOUT_EFFECT, within

NOT_THEIRS = frozenset(
    {
        # Its state comes from environments that no transform was around: refused for that.
        "test_saving_an_environment_that_is_not_alike_is_refused",
        # They show two memories in turn: what the step before showed outlasts an interrupt.
        "test_arrays_without_copying_every_step_returns_views_of_the_same_memory",
    }
)

globals().update(contract(NOT_THEIRS))

FAR = pytest.mark.far("everywhere")
pytestmark = FAR

QUICK = {"stacked-dummy"}
"""What is not left to the long tests, for the tests that run everywhere."""

IN_WORKERS = (
    *("NormalizeObservations", "ClipActions", "StackObservations", "EpisodeStatistics", "stacked"),
)
"""What runs over workers, too: observations, actions, memory, infos, and six others in a stack."""

IN_A_STACK = frozenset(
    {
        "test_interrupts_thousands_of_signals_within_a_step_repeat_nothing",
        "test_operations_thousands_of_sequences_of_operations_do_what_a_loop_would",
    }
)
"""What takes minutes. Of the transforms in the stack, it runs over the stack alone."""

BACKENDS = [within(name, DUMMY) for name in WITHOUT_EFFECT]
BACKENDS += [within(name, WORKERS) for name in IN_WORKERS]
ROWS = [
    pytest.param(backend, marks=FAR if backend.name in QUICK else pytest.mark.long)
    for backend in BACKENDS
]


@pytest.fixture(params=ROWS, ids=str)
def make(request: pytest.FixtureRequest) -> Iterator[Maker]:
    name = request.param.name.partition("-")[0]
    reason = BEYOND.get((name, request.node.originalname))
    if reason is not None:
        pytest.skip(reason)
    if name in STACKED and request.node.originalname in IN_A_STACK:
        pytest.skip("it runs over the stack, which contains this transform")
    yield from made(request.param)


@pytest.fixture
def make_either(make: Maker) -> Maker:
    return make


@pytest.fixture
def make_on_all(make: Maker) -> Maker:
    return make
