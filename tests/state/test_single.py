"""One environment saved and put into a twin: exactly, or with an error that says why not."""

from __future__ import annotations

import copy
import gc
import importlib
import itertools
import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
from comparing import assert_same
from example_envs import TAXI
from gymnasium import spaces
from numpy.random import SeedSequence
from stateful_envs import MAKERS, Collector

from xuance_envs import (
    Atari_Env,
    DummyVecEnv,
    EnvError,
    Gym_Env,
    MountainCar,
    StateError,
    StateMismatchError,
    check_saving,
)
from xuance_envs.state import ale, mujoco
from xuance_envs.state.checkpointer import EnvCheckpointer
from xuance_envs.state.recorders import record

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

ATARI = {"image_size": 84, "noop_max": 3}


def needs(*libraries: str) -> None:
    for library in libraries:
        pytest.importorskip(library)


def breakout(**how: Any) -> Atari_Env:
    return Atari_Env("Breakout", **{**ATARI, **how})


def raw_atari(**how: Any) -> Any:
    gymnasium.register_envs(importlib.import_module("ale_py"))
    return gymnasium.make("ALE/Breakout-v5", **how)


def stacked() -> Any:
    gymnasium.register_envs(importlib.import_module("ale_py"))
    game = gymnasium.make("ALE/Pong-v5", frameskip=1)
    game = gymnasium.wrappers.AtariPreprocessing(game, noop_max=3)
    return gymnasium.wrappers.FrameStackObservation(game, 4)


EXACT: dict[str, Any] = {
    **MAKERS,
    "ours": lambda: Gym_Env("CartPole-v1"),
    "ours, seeded": lambda: Gym_Env("CartPole-v1", seed=3),
    "mountain car": MountainCar,
    "taxi": lambda: gymnasium.make(TAXI),
}
ATARIS: dict[str, Any] = {
    "breakout": breakout,
    "every frame": lambda: breakout(frame_skip=1),
    "drawn skip": lambda: breakout(frame_skip=(2, 5)),
    "memory": lambda: breakout(obs_type="ram"),
    "colours": lambda: breakout(obs_type="rgb", image_size=None),
    "very sticky": lambda: breakout(repeat_action_probability=0.9),
    "ale-py's own": raw_atari,
    "its drawn skip": lambda: raw_atari(frameskip=(2, 5)),
    "continuous": lambda: raw_atari(continuous=True, continuous_action_threshold=0.3),
    "stacked": stacked,
}


@pytest.mark.parametrize("name", EXACT)
def test_it_goes_on_exactly(name: str) -> None:
    # Each state of Taxi holds all its transitions.
    check_saving(EXACT[name], steps=4 if name == "taxi" else 120)


LONG_ATARIS = {"every frame", "colours", "its drawn skip"}  # as others, with one more option


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] * (name in LONG_ATARIS)) for name in ATARIS],
)
def test_games_go_on_exactly(name: str) -> None:
    needs("ale_py", "cv2")
    check_saving(ATARIS[name], steps=60)


@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "Humanoid-v5", "Ant-v4", "Reacher-v5"])
def test_simulations_go_on_exactly(env_id: str) -> None:
    needs("mujoco")
    check_saving(lambda: gymnasium.make(env_id), steps=70)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "MountainCarContinuous-v0", "FrozenLake-v1"])
def test_those_of_the_older_gym_go_on_exactly(env_id: str) -> None:
    needs("gym")
    check_saving(lambda: Gym_Env(env_id, library="gym"), steps=120)


def test_a_lander_goes_on_exactly_by_replay() -> None:
    needs("Box2D", "pygame")
    check_saving(lambda: Gym_Env("LunarLander-v3"), steps=150)
    check_saving(lambda: Gym_Env("LunarLander-v3", continuous=True, enable_wind=True), steps=80)


def landers(made: Any) -> Any:
    """Return two vec envs in the middle of an episode that was begun without a seed."""
    needs("Box2D", "pygame")
    both = DummyVecEnv([made] * 2), DummyVecEnv([made] * 2)
    for seed, envs in enumerate(both):
        envs.reset(seed=seed)
        envs.set_attr("gravity", -4.0 - seed)
        envs.reset()
        for action in (2, 3) * 8:
            envs.step([action, 0])
    return both


def counting_lander() -> Any:
    kind: Any = importlib.import_module("gymnasium.envs.box2d.lunar_lander").LunarLander

    class Counting(kind):  # type: ignore[misc]
        """Its rewards depend on all its episodes."""

        episodes, seeds = 0, None

        def reset(self, **options: Any) -> Any:
            self.episodes += 1
            self.history = [*getattr(self, "history", []), self.episodes]
            return super().reset(**options)

        def step(self, action: Any) -> Any:
            obs, reward, *rest = super().step(action)
            return obs, reward + sum(self.history), *rest

    return Counting()


def test_attributes_of_a_lander_are_state() -> None:
    envs, others = landers(counting_lander)
    with envs, others:
        others.reset()
        others.load_state(envs.save_state())
        assert others.get_attr("gravity") == (-4.0, -4.0)
        for action in (0, 2) * 20:
            expected, found = envs.step([action, 1]), others.step([action, 1])
            assert_same(found[:2], expected[:2])
        envs.reset()
        others.reset()
        assert_same(others.step([2, 2])[:2], envs.step([2, 2])[:2])


def test_a_forked_lander_is_where_its_source_is() -> None:
    envs, others = landers(lambda: gymnasium.make("LunarLander-v3"))
    with envs, others:
        envs.clone_state(0, 1, fork_rng=True)
        assert_same(*envs.step([0, 0])[0])  # without engines, nothing is random
        one, other = envs.step([2, 2])[0]
        assert not np.array_equal(one, other)


class Wind(gymnasium.Wrapper):  # type: ignore[type-arg]
    def step(self, action: Any) -> Any:
        self.unwrapped.lander.ApplyForceToCenter((30.0, 0.0), True)  # type: ignore[attr-defined]
        return self.env.step(action)


def test_a_lander_that_something_else_moved_is_refused() -> None:
    envs, others = landers(lambda: Wind(gymnasium.make("LunarLander-v3")))
    with envs, others, pytest.raises(EnvError, match=r"prev_shaping: .* repeating them gave"):
        others.load_state(envs.save_state())


# -- controls: each correction is needed ---------------------------------------------------------


def failures(make: Any, points: int) -> int:
    """How many of so many continuations differ."""
    env, twin = make(), make()
    for each in (env, twin):
        record(each)
    env.reset(seed=1)
    twin.reset(seed=2)
    space = env.action_space
    space.seed(3)
    failed = 0
    for _ in range(points):
        for _ in range(3):
            if any(env.step(space.sample())[2:4]):
                env.reset()
        EnvCheckpointer(twin).prepare(EnvCheckpointer(env).save(), trusted=False).apply()
        actions = [space.sample() for _ in range(6)]
        try:
            for action in actions:
                one, other = env.step(action), twin.step(action)
                assert_same(np.asarray(other[0]), np.asarray(one[0]))
                assert_same(other[1], one[1])
                if one[2] or one[3]:
                    env.reset()
                    twin.reset()
        except AssertionError:
            failed += 1
    env.close()
    twin.close()
    return failed


def one_frame_at_a_time() -> Atari_Env:
    return breakout(frame_skip=1, repeat_action_probability=0.5)


def test_the_action_that_sticks_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    needs("ale_py", "cv2")
    assert failures(one_frame_at_a_time, 60) == 0
    monkeypatch.setattr(ale, "_without_sticky_actions", lambda state: state)
    assert failures(one_frame_at_a_time, 60) > 0


def test_which_action_sticks_is_told_rightly(monkeypatch: pytest.MonkeyPatch) -> None:
    needs("ale_py", "cv2")
    monkeypatch.setattr(ale, "last_executed_action", lambda state, requested, _: requested[-1][:2])
    assert failures(one_frame_at_a_time, 60) > 0


def test_the_buffer_of_a_simulation_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    needs("mujoco")

    def humanoid() -> Any:
        return gymnasium.make("Humanoid-v5")

    assert failures(humanoid, 10) == 0
    view = mujoco._view
    monkeypatch.setattr(mujoco, "_view", lambda *place: memoryview(bytearray(view(*place))))
    assert failures(humanoid, 10) > 0


def test_older_draws_are_found_in_the_blocks_before() -> None:
    twister = np.random.MT19937(5)
    drawn = [int(word) for word in np.random.Generator(twister).bit_generator.random_raw(2000)]
    state = twister.state["state"]
    written = [b"%d" % word for word in [*state["key"].tolist(), state["pos"]]]
    back = ale._draws_newest_first(written)
    assert [next(back) for _ in range(1700)] == drawn[::-1][:1700]
    assert all(ale._temper(ale._untemper(word)) == word for word in drawn)


# -- what is found out ---------------------------------------------------------------------------


class Global(gymnasium.Wrapper):
    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        return obs, float(reward) + np.random.random(), *rest


def test_what_depends_on_global_generators_is_found_out() -> None:
    with pytest.raises(
        StateError, match=r"in step 1 after saving, the reward differs.*numpy\.random"
    ):
        check_saving(lambda: Global(gymnasium.make("CartPole-v1")))


def test_games_made_elsewhere_say_what_to_do() -> None:
    needs("ale_py")
    env = raw_atari()
    env.reset(seed=1)
    with pytest.raises(Exception, match="made by a vectorized environment"):
        EnvCheckpointer(env).save()
    env.close()


def test_a_check_compares_what_a_load_compares():
    numbers = itertools.count(1)

    class Another(Collector):
        def __init__(self):
            super().__init__()
            self.action_space = spaces.Discrete(next(numbers))

    with pytest.raises(StateMismatchError, match="differs in its action space"):
        check_saving(Another, steps=2)


def test_a_changed_model_is_noticed() -> None:
    needs("mujoco")
    env, twin = gymnasium.make("HalfCheetah-v5"), gymnasium.make("HalfCheetah-v5")
    env.reset(seed=1)
    twin.reset(seed=1)
    data = EnvCheckpointer(env).save()
    twin.unwrapped.model.body_mass[2] *= 1.1
    with pytest.raises(Exception, match="its model: initial values"):
        EnvCheckpointer(twin).prepare(data, trusted=False)


@pytest.mark.parametrize("make", [lambda: Gym_Env("CartPole-v1"), breakout])
def test_a_second_save_needs_no_new_plan(make: Any) -> None:
    """Spaces store their own texts when the fingerprint asks for them."""
    if make is breakout:
        needs("ale_py", "cv2")
    env = make()
    env.reset(seed=0)
    source = EnvCheckpointer(env)
    source.save()
    plan = source.saved_plan
    source.save()
    assert source.saved_plan is plan


def test_what_reads_a_state_goes_with_it() -> None:
    env, twin = Collector(), Collector()
    env.reset(seed=1)
    source, target = EnvCheckpointer(env), EnvCheckpointer(twin)
    found = []
    gc.disable()  # so that nothing waits for it: a state may have many megabytes
    try:
        for _ in range(5):  # other threads leave garbage, too, but not each time
            gc.collect()
            target.prepare(source.save(), trusted=True).apply()
            found.append(gc.collect())
        assert 0 in found
    finally:
        gc.enable()


def copy_to_spawn(generator: np.random.Generator) -> np.random.Generator:
    """Copy a generator's seeds: NumPy 1 copies a generator without them."""
    return np.random.default_rng(copy.deepcopy(generator.bit_generator.seed_seq))


def test_generators_go_on_spawning() -> None:
    env, twin, third = (gymnasium.make("CartPole-v1") for _ in range(3))
    for each in (env, twin, third):
        each.reset(seed=4)
        each.unwrapped.np_random.spawn(2)
    twin.unwrapped.np_random.spawn(3)
    EnvCheckpointer(twin).prepare(EnvCheckpointer(env).save(), trusted=False).apply()
    EnvCheckpointer(third).prepare(EnvCheckpointer(twin).save(), trusted=False).apply()
    expected = env.unwrapped.np_random
    for found in (twin.unwrapped.np_random, third.unwrapped.np_random):
        copied = copy_to_spawn(found)
        assert found.bit_generator.seed_seq.entropy == 4
        assert type(pickle.loads(pickle.dumps(found.bit_generator.seed_seq))) is SeedSequence
        assert repr(found.bit_generator.seed_seq) == repr(expected.bit_generator.seed_seq)
        children = [one.spawn(2)[1].random() for one in (copied, found)]
        again = copy_to_spawn(found)
        assert again.spawn(1)[0].random() == found.spawn(1)[0].random()
        assert children[0] == children[1] == copy_to_spawn(expected).spawn(2)[1].random()
    # What was spawned of a loaded one counts when it is saved again.
    expected.spawn(3)
    EnvCheckpointer(env).prepare(EnvCheckpointer(twin).save(), trusted=False).apply()
    assert env.unwrapped.np_random.spawn(1)[0].random() == expected.spawn(1)[0].random()
