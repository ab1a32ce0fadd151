"""Random operations on our vector environments beside Gymnasium's own, in all modes of reset."""

from __future__ import annotations

import random
from functools import partial

import gymnasium
import numpy as np
import operations
import pytest
from example_envs import TalliedEnv
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AutoresetMode
from operations import ENV_FNS, NUM_ENVS, LockstepPair, a_call, a_name, a_seed, operation, values

from xuance_envs.compat.gymnasium import AsyncVectorEnv, SyncVectorEnv

# Gymnasium says what raised, and what is closed too early.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

OwnSync = gymnasium.vector.SyncVectorEnv
OwnAsync = partial(gymnasium.vector.AsyncVectorEnv, context="fork")
Quick = partial(AsyncVectorEnv, context="forkserver")

PAIRS = {
    "sync": (SyncVectorEnv, OwnSync),
    "async": (Quick, OwnSync),
    "async-a worker each": (partial(Quick, in_series=1), OwnSync),
    "async-caller": (partial(Quick, caller_steps=True), OwnSync),
    "async-own": (Quick, OwnAsync),
}

# Gymnasium before 1.4 asserts that arguments of resets are valid, and does not count actions.
CHECKED = tuple(map(int, gymnasium.__version__.split(".")[:2])) >= (1, 4)

pairs = pytest.mark.parametrize("name", PAIRS)
modes = pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.value)


class BesideGymnasium(LockstepPair):
    """Leaves out what Gymnasium's two classes do differently, and ours like one of them."""

    def __init__(self, envs, reference):
        super().__init__(envs, reference)
        self.in_processes = isinstance(envs, AsyncVectorEnv)
        self.same_kind = self.in_processes == isinstance(reference, gymnasium.vector.AsyncVectorEnv)
        self.by_hand = envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED
        self.has_begun = False
        self.ended = np.zeros(NUM_ENVS, bool)

    def plays(self, done):
        if self.envs.closed:
            return self.in_processes and self.same_kind
        if done.name.startswith("reset") and "options" in done.kwargs and not self.has_begun:
            return "reset_mask" not in done.kwargs["options"]
        if done.name == "step" and self.by_hand and self.ended.any():
            # Gymnasium's SyncVectorEnv refuses what has ended, its AsyncVectorEnv does not.
            (given,) = done.args
            return self.same_kind and len(given) == NUM_ENVS and TalliedEnv.FAIL not in given
        return True

    def plain(self, value):
        """Infos without the order of their keys, which Gymnasium's two classes have differently."""
        return in_order(value)

    def after(self, done, expected):
        if expected.error is None:
            if done.name in ("step", "step_wait"):
                self.ended = expected.value[2] | expected.value[3]
            elif done.name in ("reset", "reset_async"):
                mask = done.kwargs.get("options", {}).get("reset_mask", ...)
                self.ended[mask] = False
                self.has_begun = True
        elif done.name == "step" or "fail" in done.kwargs.get("options", {}):
            self.recover(expected.error)

    def recover(self, error):
        """Gymnasium has stepped some environments by then, and a worker that failed is gone."""
        if self.in_processes and self.same_kind:
            return  # it came at the wrong time, and changed nothing
        if self.in_processes and isinstance(error, ZeroDivisionError):
            for again in (operation("reset"), operation("get_attr", "level")):
                assert again.on(self.envs).kind == ClosedEnvironmentError.__name__, str(again)
            self.envs.close()
            self.reference.close()
        else:
            self.do(operation("reset", seed=1))


def in_order(value):
    if isinstance(value, dict):
        return {key: in_order(value[key]) for key in sorted(value)}
    return type(value)(map(in_order, value)) if isinstance(value, list | tuple) else value


def a_mask(rng: random.Random):
    return np.array([rng.random() < 0.5 for _ in range(NUM_ENVS - 1)] + [True])


def a_wrong_mask(rng: random.Random):
    good = a_mask(rng)
    return rng.choice([good.tolist(), good[1:], good.astype(int), np.zeros_like(good)])


def options(rng: random.Random):
    some = rng.choice([{}, {"level": 3}, {"reset_mask": a_mask(rng)}, {"reset_mask": a_mask(rng)}])
    return rng.choice([None, some, some])


def draw_plain(rng: random.Random) -> operations.Operation:
    """What no environment's process dies of."""
    name, args, kwargs = rng.choice(
        [("touch", (), {}), ("touch", (), {"by": 2}), ("describe", ("I",), {"mark": "!"})]
    )
    return operations.weighted(
        rng,
        {
            lambda: operation("step", operations.actions(rng)): 30,
            lambda: operation("reset", seed=a_seed(rng), options=options(rng)): 8,
            lambda: operation("call", name, *args, **kwargs): 6,
            lambda: operation("get_attr", rng.choice(["level", "doubled"])): 8,
            lambda: operation("set_attr", "level", values(rng)): 6,
            lambda: operation("set_attr", "level", [1] * (NUM_ENVS - 1)): 1,
            lambda: operation("render"): 5,
            lambda: operation("close"): 0.3,
        },
    )


def draw_in_parts(rng: random.Random) -> operations.Operation:
    """The same, and commands in two halves, which may be at the wrong time."""
    return operations.weighted(
        rng,
        {
            lambda: draw_plain(rng): 40,
            lambda: operation("step_async", operations.actions(rng)): 4,
            lambda: operation("step_wait"): 16,
            lambda: operation("reset_async", seed=a_seed(rng), options=options(rng)): 2,
            lambda: operation("reset_wait"): 10,
            lambda: operation("call_async", "touch"): 2,
            lambda: operation("call_wait"): 10,
        },
    )


def draw_faulty(rng: random.Random) -> operations.Operation:
    """What also raises, for reasons of the caller's or of an environment's."""
    name, args, kwargs = a_call(rng)
    wrong = {"reset_mask": a_wrong_mask(rng)}
    count = rng.choice([4, 6])
    return operations.weighted(
        rng,
        {
            lambda: draw_plain(rng): 60,
            lambda: operation("step", operations.actions(rng, 0.2)): 3,
            lambda: operation("step", operations.actions(rng, count=count)): CHECKED,
            lambda: operation("reset", seed=[1] * (NUM_ENVS + 1)): CHECKED,
            lambda: operation("reset", options=wrong): CHECKED,
            lambda: operation("reset", options={"fail": rng.randrange(NUM_ENVS)}): 0.3,
            lambda: operation("call", name, *args, **kwargs): 8,
            lambda: operation("call", "level"): 1,
            lambda: operation("get_attr", a_name(rng)): 4,
            lambda: operation("set_attr", "layer", values(rng)): 2,
        },
    )


def assert_alike(name, mode, seeds):
    kind, own = PAIRS[name]

    def pair():
        made = [of(ENV_FNS, autoreset_mode=mode) for of in (own, kind)]
        return operations.closing(BesideGymnasium(*reversed(made)))

    draw = draw_in_parts if own is OwnAsync else draw_faulty
    operations.assert_alike(pair, draw, seeds, 60)


@pairs
@modes
def test_any_operations_in_any_order_do_what_gymnasiums_do(name, mode):
    assert_alike(name, mode, range(8 if name == "sync" else 2))


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
@pairs
@modes
def test_thousands_of_sequences_of_operations_do_what_gymnasiums_do(name, mode, part):
    assert_alike(name, mode, operations.tenth(part, 400 if name == "sync" else 80))
