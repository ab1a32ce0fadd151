"""The contract: what a vector environment is made from, and what it says about itself."""

from __future__ import annotations

import importlib.util
import multiprocessing
from functools import partial

import gymnasium
import numpy as np
import pytest
from example_envs import DuckEnv, EchoEnv, NamedEnv, ReusingEnv, ScriptedEnv, Wrapped
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import OrderEnforcing, RecordEpisodeStatistics, TimeLimit

from xuance_envs.gym.gym_env import Atari_Env, Gym_Env, MountainCar
from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv
from xuance_envs.vector_envs.vector_env import VecEnv

NESTED = spaces.Dict(a=spaces.Box(-1, 1, (2, 3)), b=spaces.Discrete(4), c=spaces.MultiBinary(5))


def test_it_says_how_many_environments_there_are(make_on_all):
    for count in (1, 2, 5):
        envs = make_on_all([DuckEnv] * count)
        assert envs.num_envs == count
        assert isinstance(envs, VecEnv)
        assert f"num_envs={count}" in repr(envs)


@pytest.mark.everywhere
def test_its_spaces_are_those_of_one_environment(make_on_all):
    envs = make_on_all([partial(EchoEnv, NESTED, spaces.Discrete(7, start=-1))] * 5)
    assert envs.observation_space == NESTED
    assert envs.action_space == spaces.Discrete(7, start=-1)


SHAPES = [
    (spaces.Box(-1, 1, (2, 3)), (2, 3)),
    (spaces.Box(-1, 1, ()), ()),
    (spaces.Discrete(4), ()),
    (NESTED, {"a": (2, 3), "b": (), "c": (5,)}),
]


@pytest.mark.parametrize(("space", "shape"), SHAPES, ids=str)
def test_obs_shape_is_that_of_one_observation_and_a_dict_of_them_for_a_dict(make, space, shape):
    assert make([partial(EchoEnv, space)] * 5).obs_shape == shape


class Stating(gymnasium.Wrapper):
    """A wrapper that states a limit."""

    def __init__(self, env, limit):
        super().__init__(env)
        self.max_episode_steps = limit


class ActingState(gymnasium.Wrapper):
    """A wrapper whose attributes are those of what it wraps, as in the older gym."""

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(f"accessing private attribute {name!r} is prohibited")
        return getattr(self.env.unwrapped, name)


def with_spec(env):
    env.spec = EnvSpec("Named-v0", max_episode_steps=60)
    return env


LIMITS = {
    "an attribute": (partial(NamedEnv, max_episode_steps=77), 77),
    "a spec": (partial(gymnasium.make, "CartPole-v1"), 500),
    "a spec changed": (partial(gymnasium.make, "CartPole-v1", max_episode_steps=9), 9),
    "XuanCe's": (partial(Gym_Env, "CartPole-v1", max_episode_steps=9), 9),
    "around another": (lambda: TimeLimit(NamedEnv(max_episode_steps=77), 5), 5),
    "within a wrapper": (lambda: Wrapped(OrderEnforcing(NamedEnv(max_episode_steps=77))), 77),
    "within wrappers": (lambda: Wrapped(TimeLimit(NamedEnv(max_episode_steps=77), 5)), 5),
    "outside a limit": (lambda: Stating(TimeLimit(NamedEnv(), 5), 3), 3),
    "within what shows all attributes": (
        lambda: ActingState(TimeLimit(NamedEnv(max_episode_steps=77), 5)),
        5,
    ),
    "a spec within a wrapper": (lambda: Wrapped(gymnasium.make("CartPole-v1")), 500),
    "only a spec": (lambda: Wrapped(with_spec(NamedEnv())), 60),
    "a spec without a limit": (partial(gymnasium.make, "CartPole-v1", max_episode_steps=-1), 1000),
    "none": (NamedEnv, 1000),
    "no gymnasium.Env": (DuckEnv, 1000),
}
if importlib.util.find_spec("ale_py"):
    LIMITS["Atari within a wrapper"] = (
        lambda: RecordEpisodeStatistics(Atari_Env("Pong")),
        27_000,
    )


@pytest.mark.parametrize(("make_env", "limit"), LIMITS.values(), ids=LIMITS)
def test_max_episode_steps_is_what_the_environment_states_or_else_1000(make, make_env, limit):
    assert make([make_env] * 5).max_episode_steps == limit


@pytest.mark.everywhere
def test_max_episode_steps_is_the_first_environments(make):
    limits = [30, 20, 10, 40, 50]
    envs = make([partial(NamedEnv, max_episode_steps=limit) for limit in limits])
    assert envs.max_episode_steps == 30


@pytest.mark.everywhere("wrapped")
@pytest.mark.parametrize(
    "make_env", [NamedEnv, lambda: Wrapped(NamedEnv())], ids=["bare", "wrapped"]
)
def test_metadata_and_render_mode_are_the_environments(make_on_all, make_env):
    envs = make_on_all([make_env] * 5)
    assert envs.metadata == {"render_modes": ["rgb_array"], "render_fps": 7}
    assert envs.render_mode == "rgb_array"


def test_metadata_and_render_mode_may_be_missing(make):
    envs = make([DuckEnv] * 5)
    assert envs.metadata == {}
    assert envs.render_mode is None


def test_changing_the_metadata_does_not_change_the_environments(make):
    envs = make([NamedEnv] * 5)
    envs.metadata["render_fps"] = 1
    assert NamedEnv.metadata["render_fps"] == 7


def test_without_processes_the_environments_themselves_can_be_had():
    with DummyVecEnv([partial(NamedEnv, i) for i in range(5)]) as envs:
        assert [env.name for env in envs.envs] == [0, 1, 2, 3, 4]
        envs.envs[2].name = "changed"
        assert envs.get_attr("name") == (0, 1, "changed", 3, 4)


# --- what it is made from -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", [tuple, iter, lambda fns: (fn for fn in fns)])
def test_the_functions_may_come_in_any_iterable(make, kind):
    envs = make(kind([partial(NamedEnv, i) for i in range(5)]))
    assert envs.get_attr("name") == (0, 1, 2, 3, 4)


def test_a_function_may_be_any_callable(make):
    kept = []

    def closure():
        return NamedEnv(len(kept))

    envs = make(
        [NamedEnv, lambda: NamedEnv("lambda"), partial(NamedEnv, "partial"), closure, DuckEnv]
    )
    assert envs.get_attr("name", [0, 1, 2, 3]) == (None, "lambda", "partial", 0)


@pytest.mark.parametrize("env_fns", [[], (), iter([])], ids=["list", "tuple", "iterator"])
def test_no_function_at_all_is_refused(make, env_fns):
    with pytest.raises(ValueError, match="env_fns: expected at least one function, got none"):
        make(env_fns)


@pytest.mark.parametrize("wrong", [None, "CartPole-v1", 3])
def test_something_that_is_not_callable_is_refused_by_its_place(make, wrong):
    with pytest.raises(TypeError, match=rf"env_fns\[2\]: expected a callable.*got {wrong!r}"):
        make([DuckEnv, DuckEnv, wrong, DuckEnv])
    assert multiprocessing.active_children() == []


def test_a_function_alone_is_refused(make):
    with pytest.raises(TypeError, match="env_fns: expected a list of functions"):
        make(DuckEnv)


def test_environments_made_already_are_not_functions(make):
    with pytest.raises(TypeError, match=r"env_fns\[0\]: expected a callable"):
        make([DuckEnv()])


@pytest.mark.everywhere
def test_an_environment_need_not_be_a_gymnasium_env(make_on_all):
    envs = make_on_all([DuckEnv] * 5)
    obs, infos = envs.reset()
    assert obs.tolist() == [[0, 0]] * 5
    obs, rewards, *_ = envs.step([0] * 5)
    assert obs.tolist() == [[1, 1]] * 5
    assert rewards.tolist() == [1] * 5
    assert [dict(info) for info in infos] == [{}] * 5
    envs.close()


@pytest.mark.everywhere
def test_infos_need_not_look_alike_nor_environments_be_of_one_class(make):
    envs = make([DuckEnv, NamedEnv, partial(ScriptedEnv, [{"own": 1}]), DuckEnv, NamedEnv])
    with pytest.raises(RuntimeError, match="environment"):
        make([DuckEnv, ReusingEnv])
    envs.reset()
    assert [dict(info) for info in envs.step([0] * 5)[4]] == [{}, {}, {"own": 1}, {}, {}]


def test_lazy_frames_are_taken_as_observations(make):
    envs = make([MountainCar] * 5)
    obs, _ = envs.reset(seed=0)
    assert (obs.shape, obs.dtype) == ((5, 8), np.float32)
    assert np.array_equal(obs[:, :2], obs[:, 6:])
    obs, *_ = envs.step([2] * 5)
    assert np.array_equal(obs[:, :2], obs[:, 4:6])
    assert not np.array_equal(obs[:, 4:6], obs[:, 6:])


def test_metadata_that_cannot_travel_is_left_out_everywhere(make):
    class Odd(ReusingEnv):
        metadata = {"render_fps": 7, "clock": np.random}  # noqa: RUF012  # a module

    assert make([Odd] * 3).metadata == {"render_fps": 7}
