from __future__ import annotations

import copy
import math
import warnings
from functools import partial

import gymnasium
import numpy as np
import pytest
from comparing import assert_same
from example_envs import TAXI
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import (
    OrderEnforcing,
    PassiveEnvChecker,
    TimeAwareObservation,
    TimeLimit,
    TransformReward,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from xuance_envs import DummyVecEnv, EnvError
from xuance_envs.gym.gym_env import Gym_Env, MountainCar


class Counter(gymnasium.Env):
    """Observes how often it was stepped and a random number; reuses what it returns."""

    metadata = {"render_modes": ["rgb_array", "ansi"], "render_fps": 1}  # noqa: RUF012

    def __init__(self, render_mode=None, reward=0.5):
        self.observation_space = Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = Discrete(1000)
        self.render_mode = render_mode
        self.reward = reward
        self.observation = np.zeros(2, np.float32)
        self.info = {"own": 1}
        self.times_closed = 0

    def reset(self, *, seed=None, options=None):
        if options == {"fail": True}:
            raise RuntimeError("cannot reset")
        super().reset(seed=seed)
        self.observation[:] = 0, self.np_random.random()
        return self.observation, self.info

    def step(self, action):
        self.observation[0] += 1
        return self.observation, self.reward, False, False, self.info

    def render(self):
        return f"drawn as {self.render_mode}"

    def close(self):
        self.times_closed += 1


@pytest.fixture
def register():
    """Register environments for one test."""
    before = dict(gymnasium.registry)
    yield gymnasium.register
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


@pytest.fixture
def counter(register):
    register("Counter-v0", Counter, disable_env_checker=True, max_episode_steps=100)
    return "Counter-v0"


def double_rewards(env):
    return TransformReward(env, lambda reward: 2 * reward)


class DoublingTimeLimit(TimeLimit):
    def step(self, action):
        observation, reward, *flags, info = super().step(action)
        return observation, 2 * reward, *flags, info


def assert_same_trajectory(ours, theirs, steps, seed):
    """Compare all that two environments return, `ours` seeded already; return the episodes."""

    def reset(**seeding):
        observation, info = ours.reset()
        expected, expected_info = theirs.reset(**seeding)
        assert_same(observation, expected)
        assert_same(info, {**expected_info, "episode_step": 0})

    theirs.action_space.seed(seed)
    reset(seed=seed)
    episodes, episode_step, episode_score = 0, 0, 0.0
    for _ in range(steps):
        action = theirs.action_space.sample()
        result, expected = ours.step(action), theirs.step(action)
        episode_step += 1
        episode_score += float(expected[1])
        counts = {"episode_step": episode_step, "episode_score": episode_score}
        for value, expected_value in zip(
            result, (*expected[:4], {**expected[4], **counts}), strict=True
        ):
            assert_same(value, expected_value)
        if expected[2] or expected[3]:
            episodes, episode_step, episode_score = episodes + 1, 0, 0.0
            reset()
    return episodes


class TestIsWhatMakeReturns:
    @pytest.mark.parametrize(
        ("env_id", "steps"),
        [
            ("CartPole-v1", 4000),
            ("MountainCar-v0", 2000),
            ("Pendulum-v1", 2000),
            (TAXI, 2000),
            ("HalfCheetah-v5", 2100),
        ],
    )
    def test_trajectory(self, env_id, steps):
        if env_id.startswith("HalfCheetah"):
            pytest.importorskip("mujoco")
            pytest.importorskip("imageio")
        ours, theirs = Gym_Env(env_id, seed=3), gymnasium.make(env_id)
        assert assert_same_trajectory(ours, theirs, steps, seed=3) >= 2
        ours.close()
        theirs.close()

    @settings(max_examples=25, deadline=None)
    @given(
        seed=st.integers(0, 2**32 - 1),
        limit=st.sampled_from([-1, 1, 2, 3, 9, 30, 1000]),
        unchecked=st.booleans(),
    )
    def test_trajectory_with_any_seed_and_limit(self, seed, limit, unchecked):
        options = {"max_episode_steps": limit, "disable_env_checker": unchecked}
        ours = Gym_Env("CartPole-v1", seed, **options)
        theirs = gymnasium.make("CartPole-v1", **options)
        assert_same_trajectory(ours, theirs, 60, seed)

    @pytest.mark.parametrize("limit", [None, 11])
    @pytest.mark.parametrize(
        "wrap",
        [
            double_rewards,
            lambda env: TimeLimit(double_rewards(env), 7),
            lambda env: OrderEnforcing(TimeLimit(env, 7)),
            lambda env: TimeLimit(env, 1000),
            lambda env: TimeLimit(PassiveEnvChecker(TimeLimit(env, 9)), 7),
            lambda env: double_rewards(TimeLimit(env, 9)),
            lambda env: DoublingTimeLimit(env, 9),
        ],
    )
    def test_trajectory_through_wrappers_of_its_own(self, register, wrap, limit):
        register("Wrapped-v0", lambda: wrap(CartPoleEnv()), max_episode_steps=limit)
        ours, theirs = Gym_Env("Wrapped-v0", seed=3), gymnasium.make("Wrapped-v0")
        assert str(ours.env) == str(theirs)
        assert assert_same_trajectory(ours, theirs, 300, seed=3) >= 2

    def test_trajectory_through_wrappers_of_the_spec(self):
        spec = TimeAwareObservation(gymnasium.make("CartPole-v1")).spec
        ours, theirs = Gym_Env(spec, seed=3), gymnasium.make(spec)
        assert str(ours.env) == str(theirs)
        assert assert_same_trajectory(ours, theirs, 300, seed=3) >= 2

    @pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", TAXI])
    def test_spec_and_chain(self, env_id):
        ours, theirs = Gym_Env(env_id, seed=3), gymnasium.make(env_id)
        for _ in range(2):
            assert ours.spec == theirs.spec
            assert str(ours.env) == str(theirs)
            assert type(ours.unwrapped) is type(theirs.unwrapped)
            assert ours.unwrapped is ours.env.unwrapped
            assert ours.observation_space == theirs.observation_space
            assert ours.action_space == theirs.action_space
            assert ours.metadata == theirs.metadata
            assert ours.render_mode is theirs.render_mode
            ours.reset()
            for _ in range(3):
                ours.step(ours.action_space.sample())
        assert gymnasium.make(ours.spec).spec == theirs.spec

    def test_arguments_reach_the_environment_and_the_spec(self):
        arguments = {"render_mode": "rgb_array", "max_episode_steps": 7, "g": 9.0}
        ours = Gym_Env("Pendulum-v1", **arguments)
        assert ours.spec == gymnasium.make("Pendulum-v1", **arguments).spec
        assert ours.unwrapped.g == 9.0
        assert ours.render_mode == "rgb_array"
        assert ours.max_episode_steps == 7

    @pytest.mark.parametrize("limit", [1, 2, 3, 5, 8])
    @pytest.mark.parametrize("by_hand", [0, 1, 2])
    def test_stepping_the_chain_by_hand_is_counted(self, limit, by_hand):
        env = Gym_Env("CartPole-v1", max_episode_steps=limit)
        for _ in range(3):
            env.reset(seed=0)
            steppers = [env.env if i % 3 == by_hand else env for i in range(limit)]
            flags = [stepper.step(i % 2)[3] for i, stepper in enumerate(steppers)]
            assert flags == [False] * (limit - 1) + [True]

    def test_a_changed_limit_holds_at_once(self, counter):
        env = Gym_Env(counter)
        env.reset()
        for _ in range(3):
            env.step(0)
        env.set_wrapper_attr("_max_episode_steps", 5)
        assert [env.step(0)[3] for _ in range(2)] == [False, True]

    def test_a_wrapper_whose_step_was_replaced_is_called(self, counter, monkeypatch):
        env = Gym_Env(counter)
        env.reset()
        monkeypatch.setattr(env.env, "step", lambda action: (action, 5.0, True, True, {}))
        env.reset()
        assert env.step(3)[:4] == (3, 5.0, True, True)

    def test_a_chain_rebuilt_by_hand_is_followed_from_the_next_reset(self, counter):
        env = Gym_Env(counter)
        env.reset()
        env.env = double_rewards(env.env)
        env.reset()
        assert [env.step(0)[4]["episode_score"] for _ in range(3)] == [1.0, 2.0, 3.0]

    def test_a_deep_copy_goes_its_own_way(self):
        env = Gym_Env("CartPole-v1", seed=0, max_episode_steps=6)
        env.reset()
        for _ in range(3):
            env.step(0)
        other = copy.deepcopy(env)
        for action in (0, 1):
            env.step(action)
        results = [other.step(1) for _ in range(3)]
        assert [truncated for *_, truncated, _ in results] == [False, False, True]
        assert [info["episode_step"] for *_, info in results] == [4, 5, 6]
        assert env.step(0)[3] is True

    def test_a_step_before_any_reset_is_refused_with_the_same_error(self):
        with pytest.raises(ResetNeeded) as expected:
            gymnasium.make("CartPole-v1").step(0)
        with pytest.raises(ResetNeeded) as error:
            Gym_Env("CartPole-v1", seed=1).step(0)
        assert str(error.value) == str(expected.value)

    @pytest.mark.parametrize("steps", [0, 1, 5])
    def test_an_invalid_action_raises_the_same_and_is_not_counted(self, steps):
        ours, theirs = Gym_Env("CartPole-v1"), gymnasium.make("CartPole-v1")
        messages = []
        for env in (ours, theirs):
            env.reset(seed=0)
            for i in range(steps):
                env.step(i % 2)
            with pytest.raises(AssertionError) as error:
                env.step(5)
            messages.append(str(error.value))
        assert messages[0] == messages[1]
        assert ours.step(1)[4]["episode_step"] == steps + 1

    @pytest.mark.parametrize("fault", ["reward is a string", "observation is reused"])
    def test_the_passive_checker_does_all_its_checks(self, register, fault):
        class Faulty(Counter):
            def step(self, action):
                observation = super().step(action)[0]
                if fault == "observation is reused":
                    return observation, 1.0, False, False, {}
                return observation.copy(), "1", False, False, {}

        register("Faulty-v0", Faulty)
        messages = []
        for env in (Gym_Env("Faulty-v0"), gymnasium.make("Faulty-v0")):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                env.reset(seed=0)
                for _ in range(4):
                    env.step(0)
            messages.append([str(warning.message) for warning in caught])
        assert messages[0] == messages[1]
        # Before Gymnasium 1.4 nothing looked for reuse.
        assert messages[0] or not hasattr(PassiveEnvChecker(Counter()), "checked_data_reuse")

    def test_wrappers_that_have_nothing_left_to_do_are_not_called(self, monkeypatch):
        env = Gym_Env("CartPole-v1", seed=0)
        calls = []
        for kind in (TimeLimit, OrderEnforcing, PassiveEnvChecker):

            def step(self, action, original=kind.step):
                calls.append(type(self))
                return original(self, action)

            monkeypatch.setattr(kind, "step", step)
        env.reset()
        env.step(0)
        assert set(calls) == {TimeLimit, OrderEnforcing, PassiveEnvChecker}
        env.step(1)
        calls.clear()
        for _ in range(20):
            if any(env.step(0)[2:4]):
                env.reset()
        assert calls == []


class TestSeed:
    def test_the_first_reset_is_as_with_that_seed_and_later_ones_go_on(self):
        env, other = Gym_Env("CartPole-v1", seed=5), gymnasium.make("CartPole-v1")
        assert_same(env.reset()[0], other.reset(seed=5)[0])
        assert env.np_random_seed == 5
        for _ in range(3):
            assert_same(env.reset()[0], other.reset()[0])

    def test_a_seed_given_to_the_first_reset_wins_and_replaces_it(self):
        env, other = Gym_Env("CartPole-v1", seed=5), gymnasium.make("CartPole-v1")
        assert_same(env.reset(seed=6)[0], other.reset(seed=6)[0])
        assert_same(env.reset()[0], other.reset()[0])

    def test_a_first_reset_that_failed_does_not_use_it_up(self, counter):
        env, other = Gym_Env(counter, seed=5), gymnasium.make(counter)
        with pytest.raises(RuntimeError, match="cannot reset"):
            env.reset(options={"fail": True})
        assert_same(env.reset()[0], other.reset(seed=5)[0])

    def test_the_action_space_is_seeded_at_once(self):
        samples = [
            [env.action_space.sample() for _ in range(30)]
            for env in (Gym_Env("CartPole-v1", seed=seed) for seed in (5, 5, 6))
        ]
        assert samples[0] == samples[1] != samples[2]

    def test_a_numpy_integer_is_a_seed(self):
        env, other = Gym_Env("CartPole-v1", seed=np.int64(5)), gymnasium.make("CartPole-v1")
        assert_same(env.reset()[0], other.reset(seed=5)[0])

    def test_other_types_are_refused(self):
        with pytest.raises(TypeError, match="float"):
            Gym_Env("CartPole-v1", seed=1.5)

    def test_unseeded_environments_differ(self):
        first, second = (Gym_Env("CartPole-v1").reset()[0] for _ in range(2))
        assert not np.array_equal(first, second)


class TestInfo:
    @pytest.mark.parametrize(
        "reward", [2, np.float32(0.1), np.array(3.0), True, np.full(1, 0.5, np.float32)]
    )
    @pytest.mark.parametrize("limit", [-1, 50])
    def test_types_whatever_the_reward_is(self, counter, reward, limit):
        env = Gym_Env(counter, reward=reward, max_episode_steps=limit)
        env.reset()
        for step in range(1, 5):
            _, returned, _, _, info = env.step(0)
            assert returned is reward
            assert type(info["episode_step"]) is int
            assert type(info["episode_score"]) is float
            assert info["episode_score"] == pytest.approx(step * np.asarray(reward).item())

    def test_no_reward_is_refused(self, counter):
        env = Gym_Env(counter, reward=None)
        env.reset()
        with pytest.raises(ValueError, match=r"invalid reward: .* got None"):
            env.step(0)

    def test_the_dict_that_the_environment_keeps_is_left_alone(self, counter):
        env = Gym_Env(counter)
        infos = [env.reset()[1], *(env.step(0)[4] for _ in range(4))]
        assert env.unwrapped.info == {"own": 1}
        assert [info["episode_step"] for info in infos] == [0, 1, 2, 3, 4]

    @pytest.mark.parametrize("limit", [-1, 50])
    def test_a_subclass_reads_and_writes_the_counts(self, counter, limit):
        class FromTen(Gym_Env):
            def reset(self, **kwargs):
                observation, info = super().reset(**kwargs)
                self._episode_step, self._episode_score = 10, 2.5
                return observation, info

        env = FromTen(counter, max_episode_steps=limit)
        for _ in range(2):
            env.reset()
            for step in range(1, 4):
                info = env.step(0)[4]
                counts = {"episode_step": 10 + step, "episode_score": 2.5 + 0.5 * step}
                assert info == {"own": 1, **counts}
                assert (env._episode_step, env._episode_score) == (*counts.values(),)

    def test_a_failed_reset_leaves_the_episode_as_it_was(self, counter):
        env = Gym_Env(counter, max_episode_steps=-1)
        env.reset()
        env.step(0)
        with pytest.raises(RuntimeError, match="cannot reset"):
            env.reset(options={"fail": True})
        assert env.step(0)[4] == {"own": 1, "episode_step": 2, "episode_score": 1.0}


class TestAttributes:
    @pytest.mark.parametrize(("limit", "expected"), [(None, 500), (9, 9), (1000, 1000), (-1, None)])
    def test_max_episode_steps(self, limit, expected):
        assert Gym_Env("CartPole-v1", max_episode_steps=limit).max_episode_steps == expected

    @pytest.mark.parametrize("limit", [None, 5, 90])
    def test_max_episode_steps_is_the_least_of_several_limits(self, register, limit):
        register("Two-v0", lambda: TimeLimit(CartPoleEnv(), 50), max_episode_steps=limit)
        assert Gym_Env("Two-v0").max_episode_steps == min(50, limit or 50)

    def test_max_episode_steps_is_read_through_wrappers(self, register):
        class Stating(CartPoleEnv):
            max_episode_steps = 30

        register("Stating-v0", lambda: OrderEnforcing(Stating()))
        assert Gym_Env("Stating-v0").max_episode_steps == 30
        assert Gym_Env("Stating-v0", max_episode_steps=5).max_episode_steps == 5

    @pytest.mark.parametrize("stated", [None, (-3.0, 3.0)])
    def test_reward_range(self, counter, stated, monkeypatch):
        assert Gym_Env(counter).reward_range == (-math.inf, math.inf)
        monkeypatch.setattr(Counter, "reward_range", stated, raising=False)
        assert Gym_Env(counter).reward_range == (stated or (-math.inf, math.inf))

    def test_library_must_be_known(self):
        with pytest.raises(ValueError, match=r"'gymnasium' or 'gym', got 'gymnasia'"):
            Gym_Env("CartPole-v1", library="gymnasia")

    def test_an_environment_that_knows_no_render_mode_is_given_none(self, register):
        class NoRendering(Counter):
            def __init__(self):
                super().__init__()

        register("NoRendering-v0", NoRendering, disable_env_checker=True)
        assert Gym_Env("NoRendering-v0").render_mode is None
        with pytest.raises(TypeError, match="render_mode"):
            Gym_Env("NoRendering-v0", render_mode="ansi")


@pytest.mark.parametrize("make", [partial(Gym_Env, "MountainCar-v0"), MountainCar])
def test_an_action_is_given_by_place_or_by_either_librarys_name(make):
    results = []
    for args, kwargs in [((2,), {}), ((), {"action": 2}), ((), {"actions": 2})]:
        env = make(seed=3)
        env.reset()
        results.append([np.asarray(env.step(*args, **kwargs)[0]).tolist() for _ in range(3)])
    assert results[0] == results[1] == results[2]
    with pytest.raises(AssertionError, match="None"):
        env.step()


class TestRenderAndClose:
    def test_render(self, counter):
        env = Gym_Env(counter, render_mode="ansi")
        env.reset()
        assert env.render() == env.render("ansi") == env.render(mode="ansi") == "drawn as ansi"
        assert env.render(render_mode="ansi") == "drawn as ansi"

    @pytest.mark.parametrize("made_with", ["ansi", None])
    def test_another_mode_is_refused(self, counter, made_with):
        env = Gym_Env(counter, render_mode=made_with)
        env.reset()
        with pytest.raises(ValueError, match=f"'rgb_array'.*render_mode={made_with!r}"):
            env.render("rgb_array")

    def test_a_window_that_is_not_there_is_warned_of_once(self, counter):
        env = Gym_Env(counter, render_mode="rgb_array")
        env.reset()
        with pytest.warns(UserWarning, match="made with render_mode='rgb_array'") as warned:
            frames = [env.render("human"), env.render(render_mode="human"), env.render("human")]
        assert frames == ["drawn as rgb_array"] * 3
        assert len(warned) == 1
        assert warned[0].filename == __file__

    def test_a_window_where_nothing_is_rendered_is_refused(self, counter):
        env = Gym_Env(counter)
        env.reset()
        with pytest.raises(ValueError, match=r"'human'.*render_mode=None"):
            env.render("human")

    def test_render_before_any_reset_is_refused_as_make_does(self):
        with pytest.raises(ResetNeeded):
            Gym_Env("CartPole-v1", render_mode="rgb_array").render()

    def test_collected_frames(self, counter):
        env = Gym_Env(counter, render_mode="ansi_list")
        env.reset()
        for _ in range(3):
            env.step(0)
        assert env.render("ansi_list") == ["drawn as ansi"] * 4

    def test_close_twice_closes_the_environment_once(self, counter):
        with Gym_Env(counter) as env:
            env.close()
        assert env.unwrapped.times_closed == 1


def test_a_vector_reward_is_refused_with_its_shape_and_the_way_out():
    class TwoGoals(CartPoleEnv):
        def step(self, action):
            observation, _, *rest = super().step(action)
            return observation, np.ones(2), *rest

    gymnasium.register("TwoGoals-v0", TwoGoals)
    try:
        for make_env in (TwoGoals, partial(Gym_Env, "TwoGoals-v0", disable_env_checker=True)):
            with DummyVecEnv([make_env]) as envs:
                envs.reset(seed=0)
                with pytest.raises(EnvError, match=r"reward: .* shape \(2,\).*LinearReward"):
                    envs.step([0])
    finally:
        del gymnasium.registry["TwoGoals-v0"]
