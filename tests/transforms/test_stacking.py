"""Stacks of observations, beside a deque for each environment."""

from __future__ import annotations

import os
import signal
from collections import deque
from functools import partial

import numpy as np
import pytest
from gymnasium import spaces
from walking import LENGTHS, NUM_WALKS, STILL, WALKS, ReferenceWalks, Walk

from xuance_envs import DummyVecEnv, SubprocVecEnv
from xuance_envs.transforms import NormalizeObservations, StackObservations

N = 3
SHAPES = [(3,), (2, 2), (5, 4, 1)]


class Stacks:
    """Expected results of plain walks, stacked."""

    def __init__(self, walks, n=N):
        self.walks, self.n = walks, n
        self.held = {}

    def reset(self, seed=None, env_ids=None):
        told = self.walks.reset(seed, env_ids)
        ids = range(NUM_WALKS) if env_ids is None else env_ids
        for env, obs in zip(ids, told.obs, strict=True):
            self.held[env] = deque([obs] * self.n, self.n)
        return self.of(ids)

    def step(self, env_ids=None):
        ids = list(range(NUM_WALKS)) if env_ids is None else list(env_ids)
        told = self.walks.step(STILL[ids], ids)
        for env, obs in zip(ids, told.obs, strict=True):
            self.held[env].append(obs)
        last = self.of(ids)
        for row, obs in zip(told.ended, told.first, strict=True):
            self.held[ids[row]] = deque([obs] * self.n, self.n)
        return last, {row: self.of([ids[row]])[0] for row in told.ended}

    def of(self, ids):
        return np.array([np.concatenate(self.held[env], axis=-1) for env in ids])


def check(batch, last, first):
    assert batch[0].tolist() == last.tolist()
    got = {row: info["reset_obs"] for row, info in enumerate(batch[4]) if "reset_obs" in info}
    assert got.keys() == first.keys()
    for row, obs in first.items():
        assert got[row].tolist() == obs.tolist()
        got[row][...] = 0  # is the caller's


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("n", [1, 2, 5])
def test_no_stack_reaches_back_into_the_episode_before(n, shape, copy):
    env_fns = [partial(Walk, length, shape) for length in LENGTHS]
    stacks = Stacks(ReferenceWalks(env_fns), n)
    with StackObservations(DummyVecEnv(env_fns, copy=copy), n) as envs:
        assert envs.obs_shape == (*shape[:-1], n * shape[-1])
        assert envs.observation_space.dtype == np.float64
        assert envs.reset(seed=4)[0].tolist() == stacks.reset(4).tolist()
        for number in range(25):
            result = envs.step(STILL)
            check(result, *stacks.step())
            assert envs.buf_obs.tolist() == result[0].tolist()
            if copy:
                result[0][...] = 0
            if number % 4 == 3:
                ids = [4, number % 3]
                assert envs.reset(env_ids=ids)[0].tolist() == stacks.reset(env_ids=ids).tolist()


@pytest.mark.parametrize("in_series", [1, 2, 4])
def test_stacks_of_what_is_sent_and_received(in_series):
    stacks, begun = Stacks(ReferenceWalks()), set()
    options = {"context": "forkserver", "in_series": in_series}
    with StackObservations(SubprocVecEnv(WALKS, **options), N) as envs:
        envs.async_reset(seed=5)
        for number in range(40):
            batch = envs.recv(min_envs=1 + number % 2)
            held = envs.buf_obs
            ids = batch.env_ids.tolist()
            last = np.zeros_like(batch.obs)
            first = {}
            for row, env in enumerate(ids):
                if env not in begun:
                    last[row] = stacks.reset(5, [env])[0]
                    begun.add(env)
                    continue
                (last[row],), ends = stacks.step([env])
                first.update({row: ends[0]} if ends else {})
            check(batch, last, first)
            assert envs.buf_obs is held
            envs.send(STILL[ids], batch.env_ids)
        envs.reset(env_ids=[0])
        assert not envs.waiting


def test_a_reset_of_some_after_first_ready_leaves_the_others_stacks():
    stacks = Stacks(ReferenceWalks())
    with StackObservations(DummyVecEnv(WALKS), N) as envs:
        envs.async_reset(seed=5)
        stacks.reset(5)
        envs.recv(min_envs=NUM_WALKS)
        envs.send(STILL, range(NUM_WALKS))
        stacks.step()
        assert envs.reset(env_ids=[1])[0].tolist() == stacks.reset(env_ids=[1]).tolist()
        check(envs.step(STILL), *stacks.step())


def test_the_last_stack_of_a_lost_worker_is_returned_as_it_was():
    options = {"context": "forkserver", "in_series": 2, "on_worker_failure": "restart"}
    with StackObservations(SubprocVecEnv(WALKS, **options), N) as envs:
        envs.reset(seed=0)
        for kills in range(3):
            for _ in range(3 * (kills < 2)):  # the second time, one has just begun an episode
                last, *_, infos = envs.step(STILL)
            expected = [infos[i].get("reset_obs", last[i]) for i in (2, 3)]
            os.kill(envs.call("pid", env_ids=[2])[0], signal.SIGKILL)
            last, *_, infos = envs.step(STILL)
            assert infos[3]["worker_restarted"]
            assert last[[2, 3]].tolist() == np.array(expected).tolist()
            for i in (2, 3):
                frames = np.split(infos[i]["reset_obs"], N)
                assert frames[0].tolist() == frames[1].tolist() == frames[2].tolist()


def test_normalized_observations_can_be_stacked_and_stacks_normalized():
    with (
        StackObservations(NormalizeObservations(DummyVecEnv(WALKS)), N) as outside,
        NormalizeObservations(StackObservations(DummyVecEnv(WALKS), N)) as inside,
    ):
        assert outside.obs_shape == inside.obs_shape == (9,)
        assert outside.observation_space == spaces.Box(-10, 10, (9,), np.float32)
        for envs in (outside, inside):
            envs.reset(seed=0)
            assert np.isfinite(envs.step(STILL)[0]).all()


def test_bounds_are_those_of_each_observation():
    class Bounded(Walk):
        def __init__(self):
            super().__init__(4, (2,))
            bounds = np.array([[0.0, -1.0], [1e9, 1e9]])
            self.observation_space = spaces.Box(*bounds, dtype=np.float64)

    with StackObservations(DummyVecEnv([Bounded]), 2) as envs:
        assert envs.observation_space.low.tolist() == [0, -1, 0, -1]


@pytest.mark.parametrize(
    ("make_env", "n", "expected"),
    [
        (partial(Walk, 4), 0, "num_stack: expected an int of at least 1, got 0"),
        (partial(Walk, 4), "2", "num_stack: expected an int of at least 1, got '2'"),
        (partial(Walk, 4, ()), 2, "expected observations with at least one axis, got Box"),
    ],
)
def test_what_cannot_be_stacked_is_refused(make_env, n, expected):
    with DummyVecEnv([make_env]) as envs, pytest.raises(ValueError, match=expected):
        StackObservations(envs, n)


def test_n_is_an_alias_of_num_stack():
    with DummyVecEnv([partial(Walk, 4)]) as envs:
        stacked = [StackObservations(envs, **{name: 3}) for name in ("num_stack", "n")]
        assert stacked[0].observation_space == stacked[1].observation_space
        for given, got in (({}, "neither"), ({"num_stack": 3, "n": 3}, "both")):
            with pytest.raises(TypeError, match=f"or its alias n, got {got}"):
                StackObservations(envs, **given)
