from __future__ import annotations

import copy
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded

from xuance_envs.gym import legacy
from xuance_envs.gym.gym_env import Gym_Env

gym = pytest.importorskip("gym")
old = gym.spaces


class FourValues(gym.Env):
    """As environments were before gym 0.26: bare reset, four values, seed(), render(mode)."""

    metadata = {"render.modes": ["human", "ansi"], "video.frames_per_second": 30}  # noqa: RUF012
    reward_range = (0.0, 2.0)

    def __init__(self, length=4, size=2):
        self.observation_space = old.Box(-1e6, 1e6, (size,), np.float32)
        self.action_space = old.Discrete(3)
        self.length = length
        self.shown = []
        self.closed = False

    def seed(self, seed=None):
        self.generator = np.random.default_rng(seed)
        return [seed]

    def reset(self):
        self.t = 0
        return self._observe()

    def step(self, action):
        self.t += 1
        return self._observe(), float(action), self.t == self.length, {"t": self.t}

    def render(self, mode="human"):
        self.shown.append(mode)
        return f"step {self.t} as {mode}"

    def close(self):
        self.closed = True

    def _observe(self):
        return np.array([self.t, self.generator.random()], np.float32)


class FiveValues(gym.Env):
    """In gym 0.26's own form."""

    metadata = {"render_modes": ["rgb_array", "ansi"], "render_fps": 1}  # noqa: RUF012
    observation_space = old.Box(0, 1, (1,), np.float32)
    action_space = old.MultiDiscrete([2, 3])

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observe(), {"options": options}

    def step(self, action):
        return self._observe(), 1, np.bool_(False), False, {}

    def render(self):
        return f"as {self.render_mode}"

    def _observe(self):
        return self.np_random.random(1).astype(np.float32)


@pytest.fixture
def register():
    """Register environments with gym for one test."""
    before = dict(gym.envs.registry)
    yield gym.register
    gym.envs.registry.clear()
    gym.envs.registry.update(before)


@pytest.fixture
def four_values(register):
    register("FourValues-v0", FourValues)
    return "FourValues-v0"


@pytest.fixture
def five_values(register):
    register("FiveValues-v0", FiveValues, max_episode_steps=3)
    return "FiveValues-v0"


class TestStep:
    def test_four_values_become_five(self, four_values):
        env = Gym_Env(four_values, seed=0, library="gym")
        for _ in range(2):
            _, info = env.reset()
            assert info == {"episode_step": 0}
            results = [env.step(2) for _ in range(4)]
            assert [result[2:4] for result in results] == [(False, False)] * 3 + [(True, False)]
            assert [result[0][0] for result in results] == [1, 2, 3, 4]
            assert results[-1][4] == {"t": 4, "episode_step": 4, "episode_score": 8.0}

    def test_a_step_limit_works_with_four_values(self, register):
        register("Limited-v0", FourValues, max_episode_steps=3)
        env = Gym_Env("Limited-v0", seed=0, library="gym")
        assert env.max_episode_steps == 3
        for _ in range(2):
            env.reset()
            assert [env.step(0)[2:4] for _ in range(3)] == [(False, False)] * 2 + [(False, True)]

    @pytest.mark.parametrize("truncated", [True, False])
    def test_a_truncation_told_by_the_info(self, register, truncated):
        class Limited(FourValues):
            def step(self, action):
                observation, reward, done, info = super().step(action)
                return observation, reward, done, {**info, "TimeLimit.truncated": truncated}

        register("Limited-v0", Limited)
        env = Gym_Env("Limited-v0", seed=0, library="gym")
        env.reset()
        results = [env.step(0)[2:4] for _ in range(4)]
        assert results == [(False, False)] * 3 + [(not truncated, truncated)]

    def test_five_values_pass(self, five_values):
        env = Gym_Env(five_values, seed=0, library="gym")
        env.reset()
        results = [env.step(np.array([1, 2])) for _ in range(3)]
        assert [result[2:4] for result in results] == [(False, False)] * 2 + [(False, True)]
        assert results[-1][4] == {"episode_step": 3, "episode_score": 3.0}

    def test_another_number_of_values_is_refused(self, register):
        class ThreeValues(FourValues):
            def step(self, action):
                return super().step(action)[:3]

        register("ThreeValues-v0", ThreeValues)
        env = Gym_Env("ThreeValues-v0", seed=0, library="gym")
        env.reset()
        with pytest.raises(ValueError, match=r"expected four or five values.*ThreeValues.*got 3"):
            env.step(0)

    def test_a_step_before_any_reset_is_refused_as_gymnasium_does(self, four_values):
        with pytest.raises(ResetNeeded):
            Gym_Env(four_values, library="gym").step(0)

    @pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
    def test_environments_of_gym_itself(self, env_id):
        """They run under NumPy 2, and as Gymnasium's copies of them do."""
        ours, theirs = Gym_Env(env_id, seed=3, library="gym"), gymnasium.make(env_id)
        theirs.action_space.seed(0)
        np.testing.assert_array_equal(ours.reset()[0], theirs.reset(seed=3)[0])
        ends = 0
        for _ in range(500):
            action = theirs.action_space.sample()
            observation, reward, *flags, _ = ours.step(action)
            expected, expected_reward, *expected_flags, _ = theirs.step(action)
            np.testing.assert_allclose(observation, expected, rtol=1e-5, atol=1e-5)
            assert reward == pytest.approx(expected_reward, rel=1e-5, abs=1e-5)
            assert flags == expected_flags
            if any(flags):
                ends += 1
                np.testing.assert_array_equal(ours.reset()[0], theirs.reset()[0])
        assert ends >= 2


class TestReset:
    def test_a_seed_method_is_called(self, four_values):
        env, plain = Gym_Env(four_values, seed=5, library="gym"), FourValues()
        plain.seed(5)
        np.testing.assert_array_equal(env.reset()[0], plain.reset())
        np.testing.assert_array_equal(env.reset()[0], plain.reset())
        assert env.np_random_seed == 5

    def test_a_seed_argument_is_passed_through_wrappers(self, register):
        register("Wrapped-v0", lambda: gym.Wrapper(gym.Wrapper(FiveValues())))
        env, plain = Gym_Env("Wrapped-v0", seed=5, library="gym"), FiveValues()
        assert env.reset()[0] == plain.reset(seed=5)[0]
        assert env.reset()[0] == plain.reset()[0]

    def test_a_seed_method_is_called_through_wrappers(self, register):
        register("Wrapped-v0", lambda: gym.Wrapper(gym.Wrapper(FourValues())))
        env, plain = Gym_Env("Wrapped-v0", seed=5, library="gym"), FourValues()
        plain.seed(5)
        np.testing.assert_array_equal(env.reset()[0], plain.reset())

    def test_without_either_its_generator_is_seeded(self, register):
        class Unseeded(FiveValues):
            def reset(self):
                return self._observe()

        register("Unseeded-v0", Unseeded)
        first, second, other = (
            Gym_Env("Unseeded-v0", seed=seed, library="gym").reset()[0] for seed in (5, 5, 6)
        )
        assert first == second != other

    def test_options_are_passed_when_given(self, five_values, four_values):
        env = Gym_Env(five_values, library="gym")
        assert env.reset(options={"a": 1})[1]["options"] == {"a": 1}
        assert env.reset()[1]["options"] is None
        with pytest.raises(TypeError, match="options"):
            Gym_Env(four_values, library="gym").reset(options={"a": 1})

    def test_an_observation_that_looks_like_observation_and_info(self, register):
        class Pair(FourValues):
            def __init__(self):
                super().__init__()
                self.observation_space = old.Tuple([old.Discrete(9), old.Dict(x=old.Discrete(9))])

            def _observe(self):
                return self.t, {"x": self.t}

        class PairAndInfo(Pair):
            def reset(self):
                return super().reset(), {"own": 1}

        register("Pair-v0", Pair)
        register("PairAndInfo-v0", PairAndInfo)
        observation, info = Gym_Env("Pair-v0", library="gym").reset()
        assert (observation, info) == ((0, {"x": 0}), {"episode_step": 0})
        observation, info = Gym_Env("PairAndInfo-v0", library="gym").reset()
        assert (observation, info) == ((0, {"x": 0}), {"own": 1, "episode_step": 0})


class TestRender:
    def test_the_mode_is_passed_to_a_render_that_takes_it(self, four_values):
        with pytest.warns(UserWarning, match="render_modes"):  # gym's own
            env = Gym_Env(four_values, 0, "ansi", library="gym")
        env.reset()
        env.step(0)
        assert env.render_mode == "ansi"
        assert env.render() == env.render("ansi") == "step 1 as ansi"
        with pytest.raises(ValueError, match=r"'rgb_array'.*'ansi'"):
            env.render("rgb_array")

    def test_human_mode_shows_every_step(self, four_values):
        with pytest.warns(UserWarning, match="render_modes"):
            env = Gym_Env(four_values, 0, "human", library="gym")
        env.reset()
        env.step(0)
        env.step(0)
        assert env.get_wrapper_attr("shown") == ["human"] * 3

    def test_a_mode_given_at_construction(self, five_values):
        env = Gym_Env(five_values, 0, "ansi", library="gym")
        env.reset()
        assert (env.render_mode, env.render()) == ("ansi", "as ansi")

    def test_collected_frames(self, five_values):
        env = Gym_Env(five_values, 0, "ansi_list", library="gym")
        env.reset()
        env.step(np.array([0, 0]))
        assert env.render_mode == "ansi_list"
        assert env.render() == ["as ansi"] * 2
        assert env.max_episode_steps == 3
        assert [env.step(np.array([0, 0]))[3] for _ in range(2)] == [False, True]


class TestAttributes:
    def test_what_gymnasium_environments_have(self, five_values, four_values):
        env = Gym_Env(four_values, library="gym", size=2)
        assert isinstance(env.unwrapped, gymnasium.Env)
        assert env.observation_space == spaces.Box(-1e6, 1e6, (2,), np.float32)
        assert env.action_space == spaces.Discrete(3)
        assert env.reward_range == (0.0, 2.0)
        assert env.max_episode_steps is None
        assert env.metadata["render_modes"] == ["human", "ansi"]
        assert env.metadata["render_fps"] == 30
        assert env.spec.id == four_values
        assert env.spec.kwargs == {"size": 2}
        limited = Gym_Env(five_values, library="gym")
        assert limited.spec.max_episode_steps == 3
        assert limited.metadata["render_modes"] == ["rgb_array", "ansi"]

    def test_the_action_space_is_seeded(self, four_values):
        samples = [
            [env.action_space.sample() for _ in range(30)]
            for env in (Gym_Env(four_values, seed, library="gym") for seed in (5, 5, 6))
        ]
        assert samples[0] == samples[1] != samples[2]

    def test_attributes_of_the_legacy_environment_are_reached(self, register):
        class Shaped(gym.Wrapper):
            shape = "round"

        register("Shaped-v0", lambda: Shaped(FourValues()), max_episode_steps=9)
        env = Gym_Env("Shaped-v0", seed=0, library="gym")
        env.reset()
        assert (env.unwrapped.t, env.get_wrapper_attr("shape")) == (0, "round")
        env.set_wrapper_attr("length", 2)
        env.set_wrapper_attr("shape", "square")
        assert env.unwrapped.legacy_env.unwrapped.length == 2
        assert env.unwrapped.legacy_env.shape == "square"
        assert [env.step(0)[2] for _ in range(2)] == [False, True]
        assert not env.has_wrapper_attr("colour")
        with pytest.raises(AttributeError, match="colour"):
            env.get_wrapper_attr("colour")
        env.set_wrapper_attr("colour", "red")
        assert env.colour == "red"

    def test_the_generator_is_the_environments_own(self, five_values):
        env, plain = Gym_Env(five_values, seed=5, library="gym"), FiveValues()
        assert env.np_random_seed == -1
        env.reset()
        plain.reset(seed=5)
        assert env.np_random.random() == plain.np_random.random()
        env.np_random = np.random.default_rng(1)
        assert env.step(np.array([0, 0]))[0] == np.random.default_rng(1).random(1).astype("f")

    def test_private_attributes_are_not_reached(self, four_values):
        env = Gym_Env(four_values, library="gym")
        assert not env.has_wrapper_attr("_observe")
        with pytest.raises(AttributeError, match="_observe"):
            env.unwrapped._observe()

    def test_a_deep_copy_goes_its_own_way(self, four_values):
        env = Gym_Env(four_values, seed=5, library="gym")
        env.reset()
        env.step(1)
        other = copy.deepcopy(env)
        results = [[each.step(1) for _ in range(3)] for each in (env, other)]
        for ours, theirs in zip(*results, strict=True):
            np.testing.assert_array_equal(ours[0], theirs[0])
            assert ours[1:] == theirs[1:]

    def test_close_twice(self, four_values):
        env = Gym_Env(four_values, library="gym")
        env.close()
        env.close()
        assert env.get_wrapper_attr("closed")


class TestMake:
    @pytest.mark.parametrize("asked_for", [{}, {"disable_env_checker": False}])
    def test_the_passive_checker_of_gym_is_off(self, five_values, asked_for):
        env = legacy.make(five_values, **asked_for)
        assert "EnvChecker" not in str(env.unwrapped.legacy_env)

    def test_the_limit_can_be_changed(self, five_values):
        assert Gym_Env(five_values, library="gym", max_episode_steps=8).max_episode_steps == 8

    def test_resetting_by_itself_is_refused(self, five_values):
        with pytest.raises(ValueError, match="autoreset"):
            Gym_Env(five_values, library="gym", autoreset=True)

    def test_unknown_arguments_are_refused(self, five_values):
        with pytest.raises(TypeError, match="colour"):
            Gym_Env(five_values, library="gym", render_mode="ansi", colour="red")

    def test_gym_missing(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "gym", None)
        with pytest.raises(ImportError, match=r'pip install "xuance_envs\[gym\]"'):
            Gym_Env("CartPole-v1", library="gym")


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (
            old.Box(np.array([0, 1]), np.array([5, 9]), dtype=np.int16),
            spaces.Box(np.array([0, 1]), np.array([5, 9]), dtype=np.int16),
        ),
        (old.Box(0, 255, (3, 2), np.uint8), spaces.Box(0, 255, (3, 2), np.uint8)),
        (old.Box(-np.inf, np.inf, (2,)), spaces.Box(-np.inf, np.inf, (2,))),
        (old.Discrete(4, start=-2), spaces.Discrete(4, start=-2)),
        (
            old.MultiDiscrete([[2, 3], [4, 5]], dtype=np.int32),
            spaces.MultiDiscrete([[2, 3], [4, 5]], dtype=np.int32),
        ),
        (old.MultiBinary(3), spaces.MultiBinary(3)),
        (old.MultiBinary([3, 2]), spaces.MultiBinary([3, 2])),
        (old.Text(5, min_length=2, charset="abc"), spaces.Text(5, min_length=2, charset="abc")),
        (old.Sequence(old.Discrete(3)), spaces.Sequence(spaces.Discrete(3))),
        (
            old.Graph(old.Box(0, 1, (2,)), old.Discrete(3)),
            spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(3)),
        ),
        (old.Graph(old.Discrete(3), None), spaces.Graph(spaces.Discrete(3), None)),
        (
            old.Dict(b=old.Tuple([old.Discrete(2), old.Dict(c=old.MultiBinary(2))])),
            spaces.Dict(b=spaces.Tuple([spaces.Discrete(2), spaces.Dict(c=spaces.MultiBinary(2))])),
        ),
        (spaces.Discrete(3), spaces.Discrete(3)),
    ],
    ids=str,
)
def test_spaces_are_converted_with_all_inside_them(space, expected):
    converted = legacy.convert_space(space)
    assert converted == expected
    assert converted.dtype == expected.dtype
    converted.seed(0)
    expected.seed(0)
    assert repr(converted.sample()) == repr(expected.sample())


def test_the_order_of_a_dict_is_kept():
    space = old.Dict([("z", old.Discrete(2)), ("a", old.Discrete(3))])
    assert list(legacy.convert_space(space).spaces) == ["z", "a"]


def test_a_subclass_is_converted_as_what_it_derives_from():
    class Coin(old.Discrete):
        def __init__(self):
            super().__init__(2)

    assert legacy.convert_space(Coin()) == spaces.Discrete(2)


def test_a_space_of_no_known_kind_is_refused():
    class Odd(old.Space):
        pass

    with pytest.raises(TypeError, match=r"expected a Box.*got .*Odd"):
        legacy.convert_space(old.Tuple([Odd()]))


def test_gym_is_the_real_one_whatever_is_imported_first():
    code = "import xuance_envs.gym.legacy, gym; assert gym.make and gym is not xuance_envs.gym"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
