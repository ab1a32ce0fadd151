"""Random operations on our vector environments beside Stable-Baselines3's own."""

from __future__ import annotations

import random
from functools import partial

import gymnasium
import numpy as np
import operations
import pytest
from example_envs import Wrapped
from operations import ENV_FNS, NUM_ENVS, LockstepPair, a_call, a_name, a_value, operation, some

theirs = pytest.importorskip("stable_baselines3.common.vec_env")

from xuance_envs.compat.sb3 import DummyVecEnv, SubprocVecEnv  # needs it

# Workers that were not forked would import torch, for shimmy's sake.
Fork = partial(SubprocVecEnv, start_method="fork")
OwnFork = partial(theirs.SubprocVecEnv, start_method="fork")

PAIRS = {
    "dummy": (DummyVecEnv, theirs.DummyVecEnv),
    "subproc": (Fork, theirs.DummyVecEnv),
    "subproc-a worker each": (partial(Fork, in_series=1), theirs.DummyVecEnv),
    "subproc-caller": (partial(Fork, caller_steps=True), theirs.DummyVecEnv),
    "subproc-own": (Fork, OwnFork),
}

pairs = pytest.mark.parametrize("name", PAIRS)


class BesideSB3(LockstepPair):
    """Leaves out what is known to differ: see "Coming from Stable-Baselines3"."""

    closed = False

    def plays(self, done):
        return done.name == "close" or not self.closed

    def plain(self, value):
        if not isinstance(value, tuple):
            return value
        obs, rewards, dones, infos = value
        expected = np.float32 if isinstance(self.reference, theirs.DummyVecEnv) else np.float64
        assert rewards.dtype in (expected, np.float64)
        return obs, rewards.astype(np.float64), dones, list(infos)

    def after(self, done, expected):
        self.closed = self.closed or done.name == "close"
        if expected.error is None:
            if done.name in ("reset", "step", "step_wait"):
                got, right = self.envs.reset_infos, self.reference.reset_infos
                operations.assert_same(list(got), list(right), f"reset_infos after {done}")
        elif done.name in ("reset", "step"):
            self.recover()

    def recover(self):
        """An environment failed while the others were being stepped."""
        if isinstance(self.envs, DummyVecEnv):
            for again in ("set_options", "seed", "reset"):
                self.do(operation(again, *([1] if again == "seed" else [])))
        else:
            self.do(operation("close"))


def draw_plain(rng: random.Random) -> operations.Operation:
    """What no environment's process dies of."""
    each = [rng.choice([{}, {"level": 3}]) for _ in range(NUM_ENVS)]
    ids = rng.choice([None, some(rng), rng.randrange(-NUM_ENVS, NUM_ENVS)])
    return operations.weighted(
        rng,
        {
            lambda: operation("step", np.array(operations.actions(rng))): 30,
            lambda: operation("reset"): 6,
            lambda: operation("seed", rng.randrange(100)): 3,
            lambda: operation("set_options", rng.choice([None, {"level": 3}, each])): 3,
            lambda: operation("env_method", "touch", by=2, indices=ids): 5,
            lambda: operation("env_method", "describe", "I am", indices=ids): 2,
            lambda: operation("env_method", "touch", by=2, indices=[0, 2, 0]): 1,
            lambda: operation("get_attr", rng.choice(["level", "doubled"]), indices=ids): 6,
            lambda: operation("get_attr", "level", indices=[0, 2, 0]): 1,
            lambda: operation("set_attr", "level", a_value(rng), indices=ids): 6,
            lambda: operation("has_attr", a_name(rng)): 2,
            lambda: operation("env_is_wrapped", Wrapped, indices=ids): 2,
            lambda: operation("env_is_wrapped", gymnasium.Wrapper): 1,
            lambda: operation("get_images"): 2,
            lambda: operation("render", rng.choice([None, "rgb_array"])): 2,
            lambda: operation("close"): 0.3,
        },
    )


def draw_faulty(rng: random.Random) -> operations.Operation:
    """What also raises."""
    name, args, kwargs = a_call(rng)
    ids = rng.choice([None, some(rng)])
    return operations.weighted(
        rng,
        {
            lambda: draw_plain(rng): 60,
            lambda: operation("step", np.array(operations.actions(rng, 0.2))): 3,
            lambda: operation("set_options", {"fail": rng.randrange(NUM_ENVS)}): 0.3,
            lambda: operation("env_method", name, *args, indices=ids, **kwargs): 6,
            lambda: operation("get_attr", a_name(rng), indices=ids): 6,
        },
    )


def assert_alike(name, seeds):
    kind, own = PAIRS[name]

    def pair():
        made = [of(ENV_FNS) for of in (own, kind)]
        return operations.closing(BesideSB3(*reversed(made)))

    draw = draw_plain if own is OwnFork else draw_faulty
    operations.assert_alike(pair, draw, seeds, 60)


@pairs
def test_any_operations_in_any_order_do_what_stable_baselines_does(name):
    assert_alike(name, range(8 if name == "dummy" else 2))


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
@pairs
def test_thousands_of_sequences_of_operations_do_what_stable_baselines_does(name, part):
    assert_alike(name, operations.tenth(part, 1_000 if name == "dummy" else 60))
