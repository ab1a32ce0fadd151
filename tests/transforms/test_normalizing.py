"""Normalizing, beside a reference in float64 that keeps everything it has seen."""

from __future__ import annotations

import math
import os
import re
import signal
import warnings
from functools import partial

import numpy as np
import pytest
from gymnasium import spaces
from interrupts import Instant
from walking import LENGTHS, NUM_WALKS, STILL, WALKS, ReferenceWalks, Walk

from xuance_envs import DummyVecEnv, EnvError, SubprocVecEnv, transforms
from xuance_envs.transforms import (
    NormalizeObservations,
    NormalizeRewards,
    ScaleRewards,
    StackObservations,
)
from xuance_envs.transforms.moments import MomentBuffers, Moments

EPSILON, CLIP, GAMMA = 1e-8, 10.0, 0.99
SPLITS = [
    (DummyVecEnv, {}),
    (SubprocVecEnv, {"context": "forkserver", "in_series": 1}),
    (SubprocVecEnv, {"context": "forkserver", "in_series": 4, "caller_steps": True}),
]


class Reference:
    """What normalizing is, by its definition."""

    def __init__(self):
        self.observations, self.returns = [], []
        self.now = np.zeros(NUM_WALKS)

    def count(self, told, ids=slice(None), stepped=True):
        self.observations.append(told.all_observations)
        if stepped:
            self.now[ids] = GAMMA * self.now[ids] + told.rewards
            self.returns.append(self.now[ids].copy())
        else:
            self.now[ids] = 0

    def end(self, told, ids=None):
        self.now[np.arange(NUM_WALKS)[slice(None) if ids is None else ids][told.ended]] = 0

    def scaled(self, obs):
        seen = np.concatenate(self.observations)
        scaled = (obs - seen.mean(0)) / np.sqrt(seen.var(0) + EPSILON)
        return np.clip(scaled, -CLIP, CLIP)

    def divided(self, rewards):
        deviation = np.sqrt(np.concatenate(self.returns).var() + EPSILON)
        return np.clip(rewards / deviation, -CLIP, CLIP)


def normalized(kind=DummyVecEnv, env_fns=WALKS, **options):
    return NormalizeObservations(NormalizeRewards(kind(env_fns, **options), GAMMA))


def assert_float32(got, right):
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, right, rtol=3e-7, atol=1e-12)


def check_step(result, told, reference, where=None):
    obs, rewards, terminated, truncated, infos = result[:5]
    assert_float32(obs, reference.scaled(told.obs))
    assert_float32(rewards, reference.divided(told.rewards))
    assert (terminated | truncated).nonzero()[0].tolist() == told.ended
    for row, first in zip(told.ended, told.first, strict=True):
        assert_float32(infos[row]["reset_obs"], reference.scaled(first))
        assert infos[row]["reset_info"]["why"] == "reset"
    keys = [
        {"steps"} | ({"reset_obs", "reset_info"} if r in told.ended else set())
        for r in range(len(obs))
    ]
    assert [set(info) for info in infos] == keys


@pytest.mark.parametrize(
    ("kind", "options"), SPLITS, ids=["dummy", "a worker each", "caller steps"]
)
def test_both_sides_of_every_end_are_what_the_definition_says(kind, options):
    walks, reference = ReferenceWalks(), Reference()
    with normalized(kind, **options) as envs:
        told = walks.reset(seed=3)
        reference.count(told, stepped=False)
        assert_float32(envs.reset(seed=3)[0], reference.scaled(told.obs))
        for _ in range(40):
            told = walks.step()
            reference.count(told)
            check_step(envs.step(STILL), told, reference)
            reference.end(told)
        seen, returns = np.concatenate(reference.observations), np.concatenate(reference.returns)
        inner = envs.transforms[1]
        assert (envs.count, inner.count) == (len(seen), len(returns))
        np.testing.assert_allclose(envs.mean, seen.mean(0), rtol=1e-12)
        np.testing.assert_allclose(envs.variance, seen.var(0), rtol=1e-12)
        assert inner.mean == pytest.approx(returns.mean(), rel=1e-12)
        assert inner.variance == pytest.approx(returns.var(), rel=1e-12)
        np.testing.assert_allclose(inner.returns, reference.now, rtol=1e-12)


def test_it_is_the_same_bit_for_bit_however_environments_are_split():
    def run(kind, options):
        with normalized(kind, **options) as envs:
            results = [envs.reset(seed=1)[0]]
            for _ in range(25):
                obs, rewards, *_, infos = envs.step(STILL)
                results += [obs, rewards, *(i["reset_obs"] for i in infos if "reset_obs" in i)]
            return [result.tobytes() for result in results], envs.state_dict()

    first, *others = [run(*split) for split in SPLITS]
    assert all(other == first for other in others)


def test_some_that_are_reset_are_counted_and_begin_anew():
    walks, reference = ReferenceWalks(), Reference()
    with normalized() as envs:
        reference.count(walks.reset(seed=0), stepped=False)
        envs.reset(seed=0)
        for ids in ([3, 1], [0]):
            told = walks.step()
            reference.count(told)
            check_step(envs.step(STILL), told, reference)
            reference.end(told)
            before = envs.buf_obs
            told = walks.reset(env_ids=ids)
            reference.count(told, ids, stepped=False)
            obs, infos = envs.reset(env_ids=ids)
            assert_float32(obs, reference.scaled(told.obs))
            assert len(infos) == len(ids)
            others = [i for i in range(NUM_WALKS) if i not in ids]
            assert envs.buf_obs[others].tolist() == before[others].tolist()
            assert envs.buf_obs[ids].tolist() == obs.tolist()
            np.testing.assert_allclose(envs.transforms[1].returns, reference.now, rtol=1e-12)


@pytest.mark.parametrize(
    ("kind", "options"), SPLITS, ids=["dummy", "a worker each", "caller steps"]
)
def test_what_is_sent_and_received_is_counted_as_it_comes(kind, options):
    walks, reference = ReferenceWalks(), Reference()
    began = np.ones(NUM_WALKS, bool)
    with normalized(kind, **options) as envs:
        envs.async_reset(seed=5)
        for number in range(60):
            batch = envs.recv(min_envs=1 + number % 2)
            ids = batch.env_ids.tolist()
            new = [i for i in ids if began[i]]
            old = [i for i in ids if not began[i]]
            parts = {}
            if new:
                told = walks.reset(seed=5, env_ids=new)
                parts.update(zip(new, told.obs, strict=True))
                reference.count(told, new, stepped=False)
            told = None
            if old:
                told = walks.step(STILL[old], old)
                parts.update(zip(old, told.obs, strict=True))
                reference.observations.append(told.all_observations)
                reference.now[old] = GAMMA * reference.now[old] + np.float32(told.rewards)
                reference.returns.append(reference.now[old].copy())
            assert_float32(batch.obs, reference.scaled(np.array([parts[i] for i in ids])))
            assert (batch.rewards[[ids.index(i) for i in new]] == 0).all()
            if told is not None:
                rows = [ids.index(i) for i in old]
                assert_float32(batch.rewards[rows], reference.divided(np.float32(told.rewards)))
                for row, first in zip(told.ended, told.first, strict=True):
                    info = batch.infos[rows[row]]
                    assert_float32(info["reset_obs"], reference.scaled(first))
                reference.now[[old[row] for row in told.ended]] = 0
            began[ids] = False
            envs.send(STILL[ids], batch.env_ids)


def test_a_reset_of_some_takes_in_what_the_others_were_doing():
    with normalized() as envs, normalized() as plain:
        for each in (envs, plain):
            each.async_reset(seed=0)
            each.recv(min_envs=NUM_WALKS)
            each.send(STILL, range(NUM_WALKS))
        plain.recv(min_envs=NUM_WALKS)
        for each in (envs, plain):
            each.reset(seed=1, env_ids=[2])
        assert envs.state_dict() == plain.state_dict()
        assert envs.transforms[1].returns.tolist() == plain.transforms[1].returns.tolist()


# --- the mathematics ----------------------------------------------------------------------------


def moments_to_dict(batches):
    moments = Moments.empty(batches[0].shape[1:], EPSILON)
    room = MomentBuffers(len(batches[0]), batches[0].shape[1:])
    for batch in batches:
        moments = moments.with_samples(room, batch)
    return moments


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (40, 30)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16])
def test_samples_of_any_shape_are_counted_and_scaled(shape, dtype):
    samples = (np.random.default_rng(0).normal(size=(11, 5, *shape)) * 100).astype(dtype)
    moments, room = Moments.empty(shape, EPSILON), MomentBuffers(8, shape, 1.5)
    for batches in (samples[:1], *np.split(samples[1:], 5)):
        moments = moments.with_samples(room, *batches)
    exact = samples.astype(np.float64).reshape(-1, *shape)
    np.testing.assert_allclose(moments.mean, exact.mean(0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(moments.variance, exact.var(0), rtol=1e-12)
    np.testing.assert_allclose(moments.deviation, np.sqrt(exact.var(0) + EPSILON), rtol=1e-12)
    scaled = np.empty((5, *shape), np.float32)
    room.scale(samples[3], moments, scaled)
    deviations = (samples[3].astype(np.float64) - moments.mean) / moments.deviation
    np.testing.assert_array_equal(scaled, np.clip(deviations, -1.5, 1.5).astype(np.float32))


@pytest.mark.parametrize("offset", [0.0, 1e3, -1e6])
def test_what_is_far_from_zero_loses_no_digits(offset):
    rng = np.random.default_rng(0)
    samples = rng.normal(size=(200, 7, 4))
    moments = moments_to_dict(samples + offset)
    exact = (samples + offset) - offset
    np.testing.assert_allclose(
        moments.mean - offset, exact.mean((0, 1)), atol=1e-15 * abs(offset) + 1e-13
    )
    np.testing.assert_allclose(moments.variance, exact.var((0, 1)), rtol=1e-10)


@pytest.mark.parametrize(
    "steps", [10_000, pytest.param(1_000_000, marks=pytest.mark.long)], ids=["some", "a million"]
)
def test_steps_leave_no_error_behind(steps):
    rng = np.random.default_rng(1)
    moments, room = Moments.empty((3,), EPSILON), MomentBuffers(8, (3,))
    scale, shift = np.array([1.0, 0.1, 2.0]), np.array([0.0, 5.0, -50.0])
    count, total, squares = 0, np.zeros(3, np.longdouble), np.zeros(3, np.longdouble)
    for _ in range(steps // 1000):
        samples = rng.normal(size=(1000, 8, 3)) * scale + shift
        for batch in samples:
            moments = moments.with_samples(room, batch)
        plain = samples.reshape(-1, 3).astype(np.longdouble) - shift
        count += len(plain)
        total += plain.sum(0)
        squares += (plain**2).sum(0)
    mean = (total / count + shift).astype(np.float64)
    variance = (squares / count - (total / count) ** 2).astype(np.float64)
    assert moments.count == count
    np.testing.assert_allclose(moments.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(moments.variance, variance, rtol=1e-12)


def test_it_is_stable_baselines3s_where_both_mean_the_same():
    """From no samples on, and until an episode ends: theirs do not count last observations."""
    sb3 = pytest.importorskip("stable_baselines3.common.vec_env")
    theirs = sb3.VecNormalize(sb3.DummyVecEnv([partial(Walk, 1000)] * 4), gamma=GAMMA)
    theirs.obs_rms.count = theirs.ret_rms.count = 0
    theirs.seed(7)
    with normalized(env_fns=[partial(Walk, 1000)] * 4) as ours:
        np.testing.assert_allclose(ours.reset(seed=7)[0], theirs.reset(), rtol=1e-5, atol=1e-6)
        for _ in range(50):
            obs, rewards, *_ = ours.step(STILL[:4])
            their_obs, their_rewards, *_ = theirs.step(STILL[:4])
            np.testing.assert_allclose(obs, their_obs, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(rewards, their_rewards, rtol=1e-5, atol=1e-6)
    theirs.close()


@pytest.mark.parametrize("clip", [0.01, 1.0, 100.0])
def test_rewards_are_kept_within_the_limit_learning_and_frozen(clip):
    with (
        NormalizeRewards(DummyVecEnv(WALKS), GAMMA, clip=clip) as envs,
        NormalizeRewards(DummyVecEnv(WALKS), GAMMA, clip=math.inf) as free,
    ):
        envs.reset(seed=1)
        free.reset(seed=1)
        for step in range(20):
            if step == 10:
                envs.freeze()
                free.freeze()
            rewards, right = envs.step(STILL)[1], free.step(STILL)[1]
            assert rewards.tolist() == right.clip(-clip, clip).tolist()
            assert envs.exact_rewards.tolist() == free.exact_rewards.clip(-clip, clip).tolist()


# --- spaces -------------------------------------------------------------------------------------


class InParts(Walk):
    """A walk seen as a Dict."""

    def __init__(self, length):
        super().__init__(length)
        self.inner = self.observation_space
        self.observation_space = spaces.Dict(
            {
                "eye": spaces.Box(0, 255, (4, 4, 3), np.uint8),
                "joints": spaces.Dict({"hip": self.inner, "knee": self.inner}),
                "which": spaces.Discrete(3),
            }
        )

    def seen(self):
        return {
            "eye": np.full((4, 4, 3), self.steps, np.uint8),
            "joints": {"hip": self.place, "knee": 2 * self.place},
            "which": 1,
        }


def test_observations_with_the_same_name_are_refused():
    box = spaces.Box(-1, 1, (1,))
    twice = spaces.Dict({"a.b": box, "a": spaces.Dict({"b": box})})

    class Twice(Walk):
        def __init__(self):
            super().__init__(5)
            self.observation_space = twice

        def reset(self, **given):
            return twice.sample(), {}

    with (
        DummyVecEnv([Twice]) as envs,
        pytest.raises(ValueError, match=r"distinct names .* got \['a.b', 'a.b'\]"),
    ):
        NormalizeObservations(envs)


def test_chosen_keys_of_a_dict_are_normalized_and_the_rest_is_as_it_was():
    in_parts = [partial(InParts, length) for length in LENGTHS]
    with (
        NormalizeObservations(DummyVecEnv(in_parts), keys=["joints"]) as envs,
        NormalizeObservations(DummyVecEnv(WALKS)) as flat,
    ):
        assert envs.observation_space["joints"]["hip"] == spaces.Box(-10, 10, (3,), np.float32)
        assert envs.observation_space["eye"].dtype == np.uint8
        assert envs.obs_shape["eye"] == (4, 4, 3)
        assert list(envs.mean) == ["joints.hip", "joints.knee"]
        pairs = [(envs.reset(seed=2)[0], flat.reset(seed=2)[0])]
        for step in range(1, 12):
            obs, *_, infos = envs.step(STILL)
            flat_obs, *_, flat_infos = flat.step(STILL)
            pairs.append((obs, flat_obs))
            assert obs["eye"][3, 0, 0, 0] == step
            for info, flat_info in zip(infos, flat_infos, strict=True):
                if "reset_obs" in info:
                    got, right = info["reset_obs"], flat_info["reset_obs"]
                    assert got["joints"]["hip"].tolist() == right.tolist()
                    assert not got["eye"].any()
        for obs, flat_obs in pairs:
            assert obs["joints"]["hip"].tobytes() == flat_obs.tobytes()
            np.testing.assert_allclose(obs["joints"]["knee"], flat_obs, rtol=1e-5, atol=1e-6)
            assert obs["which"].tolist() == [1] * NUM_WALKS
        state = envs.state_dict()
        other = NormalizeObservations(DummyVecEnv(in_parts), keys=["joints"])
        other.load_state_dict(state)
        assert other.state_dict() == state
        with pytest.raises(ValueError, match=r"mean\.joints\.hip.*got NormalizeObs\w+\.count, "):
            other.load_state_dict(flat.state_dict())


@pytest.mark.parametrize(
    ("make_env", "options", "expected"),
    [
        (partial(Walk, 5, (8, 8, 3), np.uint8), {}, r"other than images, got Box\(0, 255.*divide"),
        (partial(InParts, 5), {}, r"under 'eye' other than images.*select other keys with keys"),
        (
            partial(InParts, 5),
            {"keys": ["which"]},
            r"under 'which' in a Box of numbers, got Discrete",
        ),
        (partial(InParts, 5), {"keys": ["knee"]}, r"keys: expected some of \['eye', .*\['knee'\]"),
        (partial(InParts, 5), {"keys": []}, r"keys: expected some of"),
        (partial(Walk, 5), {"keys": ["hip"]}, "keys requires a Dict observation space"),
        (partial(Walk, 5), {"epsilon": 0.0}, "epsilon: expected a finite number above 0, got 0.0"),
        (
            partial(Walk, 5),
            {"epsilon": math.nan},
            "epsilon: expected a finite number above 0, got nan",
        ),
        (partial(Walk, 5), {"clip": -1.0}, "clip: expected a number above 0, got -1.0"),
        (partial(Walk, 5), {"clip": "10"}, "clip: expected a number above 0, got '10'"),
    ],
    ids=str,
)
def test_what_cannot_be_normalized_is_refused(make_env, options, expected):
    with DummyVecEnv([make_env]) as envs, pytest.raises(ValueError, match=expected):
        NormalizeObservations(envs, **options)


def test_other_arguments_of_rewards_are_refused():
    with DummyVecEnv(WALKS) as envs:
        for gamma in (-0.1, 1.1, math.nan, None):
            with pytest.raises(ValueError, match="gamma: expected a number from 0 to 1, got"):
                NormalizeRewards(envs, gamma)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float16, np.float32])
def test_observations_of_any_kind_of_number_become_float32(dtype):
    with NormalizeObservations(DummyVecEnv([partial(Walk, 5, (3,), dtype)] * 4)) as envs:
        plain, seen = ReferenceWalks([partial(Walk, 5, (3,), dtype)] * 4), []
        assert envs.observation_space == spaces.Box(-10, 10, (3,), np.float32)
        seen.append(plain.reset(seed=0).all_observations)
        envs.reset(seed=0)
        for _ in range(7):
            told = plain.step(STILL[:4])
            seen.append(told.all_observations)
            obs = envs.step(STILL[:4])[0]
            every = np.concatenate(seen)
            scaled = (told.obs - every.mean(0)) / np.sqrt(every.var(0) + EPSILON)
            np.testing.assert_allclose(obs, scaled, rtol=1e-5, atol=1e-6)


class Still(Walk):
    """A walk that stays where it is, and is worth nothing."""

    def seen(self):
        return np.array([5.0, -3.0, 0.0])

    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, 0.0, *rest


def test_one_environment_without_any_variance_gives_zeros():
    with normalized(env_fns=[partial(Still, 3)]) as envs:
        assert envs.reset()[0].tolist() == [[0, 0, 0]]
        for _ in range(5):
            obs, rewards, *_, infos = envs.step(STILL[:1])
            assert (obs.tolist(), rewards.tolist()) == ([[0, 0, 0]], [0])
            assert infos[0].get("reset_obs", obs[0]).tolist() == [0, 0, 0]
        assert (envs.count, envs.variance.tolist()) == (7, [0, 0, 0])


def test_what_is_normalized_once_is_not_normalized_again():
    with DummyVecEnv(WALKS) as plain:
        once = NormalizeObservations(NormalizeRewards(plain))
        with pytest.raises(ValueError, match=r"observations of .* are already normalized"):
            NormalizeObservations(StackObservations(once, 2))
        with pytest.raises(ValueError, match=r"rewards of .* are already normalized"):
            NormalizeRewards(ScaleRewards(once, 2.0))


# --- what cannot be counted ---------------------------------------------------------------------


class Spoilt(Walk):
    """A walk that shows something else in some steps."""

    def __init__(self, length, what, when, reward=False, dtype=np.float64):
        super().__init__(length, dtype=dtype)
        self.what, self.when, self.in_reward, self.number = what, when, reward, -1

    def seen(self):
        self.number += 1
        seen = super().seen()
        if self.number == self.when and not self.in_reward:
            seen[1] = self.what
        return seen

    def step(self, action):
        obs, reward, *rest = super().step(action)
        spoilt = self.in_reward and self.number == self.when
        return obs, self.what if spoilt else reward, *rest


@pytest.mark.parametrize("what", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("frozen", [False, True], ids=["learning", "frozen"])
@pytest.mark.parametrize(
    ("when", "length", "told"),
    [(3, 9, r"'step': .* at \[1\] of the observation in step 3"), (3, 2, r"'reset': .*in step 2")],
    ids=["within", "after an end"],
)
def test_nan_and_infinity_are_named_and_not_counted(what, frozen, when, length, told):
    env_fns = [partial(Walk, 9), partial(Spoilt, length, what, when), partial(Walk, 9)]
    with normalized(env_fns=env_fns) as envs:
        envs.reset(seed=0)
        if frozen:
            envs.freeze()
        for _ in range(2 if length == 9 else 1):
            envs.step(STILL[:3])
        before = envs.transforms[0].learned()
        with pytest.raises(EnvError, match=f"(?s)environment 1 failed in {told}") as caught:
            envs.step(STILL[:3])
        assert str(what) in str(caught.value)
        assert envs.transforms[0].learned() == before
        envs.reset(env_ids=[1])
        assert np.isfinite(envs.step(STILL[:3])[0]).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("what", [math.nan, math.inf])
def test_nan_and_infinity_of_small_float_types_are_named(dtype, what):
    functions = [partial(Walk, 9, dtype=dtype), partial(Spoilt, 9, what, 1, dtype=dtype)]
    with NormalizeObservations(DummyVecEnv(functions)) as envs:
        envs.reset(seed=0)
        told = rf"environment 1 failed in .step.: .* got {what} at \[1\] of the observation"
        with pytest.raises(EnvError, match=told):
            envs.step(STILL[:2])


@pytest.mark.parametrize("what", [math.nan, -math.inf])
def test_a_reward_that_is_no_number_is_named_and_not_counted(what):
    env_fns = [partial(Walk, 9), partial(Spoilt, 9, what, 2, reward=True)]
    with normalized(env_fns=env_fns) as envs:
        envs.reset(seed=0)
        envs.step(STILL[:2])
        before = envs.transforms[1].learned()
        with pytest.raises(EnvError, match=f"environment 1 .*after the reward {what} in step 2"):
            envs.step(STILL[:2])
        assert envs.transforms[1].learned() == before
        assert np.isfinite(envs.step(STILL[:2])[1]).all()
        envs.freeze()


def test_infinite_rewards_of_both_signs_are_named_as_one_is():
    spoilt = [partial(Spoilt, 9, what, 1, reward=True) for what in (math.inf, -math.inf)]
    with NormalizeRewards(DummyVecEnv([partial(Walk, 9), *spoilt])) as envs:
        envs.reset(seed=0)
        with pytest.raises(
            EnvError, match=r"environment 1 .*the return inf after the reward inf in"
        ):
            envs.step(STILL[:3])
        assert envs.count == 0


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize(
    ("frozen", "others", "what"), [(True, 1e160, math.nan), (False, 1e152, 1e200)]
)
def test_the_number_that_is_named_is_the_one_that_was_refused(frozen, others, what):
    functions = [partial(Spoilt, 9, others, 1), partial(Spoilt, 9, what, 1)]
    with NormalizeObservations(DummyVecEnv(functions)) as envs:
        envs.reset(seed=0)
        if frozen:
            envs.freeze()
        with pytest.raises(EnvError, match=rf"environment 1 .*got {re.escape(str(what))} at"):
            envs.step(STILL[:2])


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("are_errors", [False, True], ids=["warned", "warnings are errors"])
def test_what_is_too_large_for_its_square_is_named_and_not_counted(are_errors):
    env_fns = [partial(Walk, 9), partial(Spoilt, 9, -1e200, 2)]
    rewarding = [partial(Walk, 9), partial(Spoilt, 9, 1e200, 2, reward=True)]
    with (
        NormalizeObservations(DummyVecEnv(env_fns)) as envs,
        NormalizeRewards(DummyVecEnv(rewarding)) as rewarded,
        warnings.catch_warnings(),
    ):
        if are_errors:
            warnings.simplefilter("error")
        for each, told in (
            (envs, r"got -1e\+200 at \[1\]"),
            (rewarded, r"after the reward 1e\+200"),
        ):
            each.reset(seed=0)
            each.step(STILL[:2])
            before = each.learned()
            with pytest.raises(EnvError, match=f"(?s)environment 1 .*{told} .*in step 2"):
                each.step(STILL[:2])
            assert each.learned() == before


def test_the_row_of_a_worker_that_was_lost_counts_nothing():
    options = {"context": "forkserver", "in_series": 2, "on_worker_failure": "restart"}
    with normalized(SubprocVecEnv, WALKS, **options) as envs:
        envs.reset(seed=0)
        envs.step(STILL)
        inner = envs.transforms[1]
        counts, returns, last = (envs.count, inner.count), inner.returns, envs.raw_observations
        os.kill(envs.call("pid", env_ids=[2])[0], signal.SIGKILL)
        obs, rewards, _, truncated, infos = envs.step(STILL)
        ended = [i for i, info in enumerate(infos) if "reset_obs" in info]
        assert {2, 3} <= set(ended)
        assert infos[2]["worker_restarted"]
        assert truncated[[2, 3]].all()
        assert envs.count == counts[0] + NUM_WALKS - 2 + len(ended)
        assert inner.count == counts[1] + NUM_WALKS - 2
        assert inner.returns[[2, 3]].tolist() == [0, 0]
        assert returns[2] != 0
        scaled = (last[2] - envs.mean) / np.sqrt(envs.variance + EPSILON)
        assert_float32(obs[2], scaled)
        assert rewards[[2, 3]].tolist() == [0, 0]


# --- interrupts ---------------------------------------------------------------------------------


def test_a_step_that_is_interrupted_at_any_instant_counts_once():
    """Also in the step after it, which must find nothing half done."""

    envs, plain = (normalized(env_fns=[partial(Walk, 4)] * 3) for _ in range(2))
    number, came = 0, True
    while came:
        for each in (envs, plain):
            each.reset(seed=number)
            for _ in range(3 * (number % 2)):  # every second time the next one ends an episode
                each.step(STILL[:3])
            each.step_async(STILL[:3])
        with Instant(number // 2, [os.path.dirname(transforms.__file__)]) as instant:
            envs.step_wait()
        came = instant.came or number % 2 == 0
        if envs.waiting:
            envs.step_wait()
        plain.step_wait()
        for _ in range(2):
            for buffer in ("buf_obs", "buf_rews", "buf_dones", "exact_rewards"):
                right = getattr(plain, buffer).tolist()
                assert getattr(envs, buffer).tolist() == right, instant.place
            assert envs.state_dict() == plain.state_dict(), instant.place
            assert envs.step(STILL[:3])[0].tolist() == plain.step(STILL[:3])[0].tolist()
        number += 1
    assert number > 50
    envs.close()
    plain.close()
