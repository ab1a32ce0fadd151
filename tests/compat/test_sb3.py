"""Our vector environments beside Stable-Baselines3's, and its algorithms and wrappers on them."""

from __future__ import annotations

import multiprocessing
from collections import OrderedDict
from functools import partial

import gymnasium
import numpy as np
import pytest
from compat_envs import GivenEnv, InfoEnv, LethalEnv, SampleEnv
from example_envs import PLAIN, EchoEnv, NamedEnv
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence

torch = pytest.importorskip("torch")
tqdm = pytest.importorskip("tqdm")
pytest.importorskip("stable_baselines3")

from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common import vec_env as theirs
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

from xuance_envs import DummyVecEnv as XuanCeDummy
from xuance_envs.compat import to_sb3
from xuance_envs.compat.sb3 import DummyVecEnv, SubprocVecEnv
from xuance_envs.engine.data.info_batch import InfoBatch
from xuance_envs.errors import AlreadySteppingError, ClosedVecEnvError, NotSteppingError

cartpole = partial(gymnasium.make, "CartPole-v1", max_episode_steps=40)
# Other processes would import torch anew, and theirs the tests, too.
Fork = partial(theirs.SubprocVecEnv, start_method="fork")
OurFork = partial(SubprocVecEnv, start_method="fork")

KINDS = {"dummy": DummyVecEnv, "subproc": SubprocVecEnv}
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
PAIRS = {"dummy": (DummyVecEnv, theirs.DummyVecEnv), "subproc": (SubprocVecEnv, Fork)}
with_torch = pytest.mark.parametrize("kind", [DummyVecEnv, OurFork], ids=KINDS)
pairs = pytest.mark.parametrize(("kind", "own"), PAIRS.values(), ids=PAIRS)


class CountingEnv(NamedEnv):
    counted = 0
    calls = 0  # of all environments in the process

    def count(self):
        self.counted += 1
        return self.counted

    def place(self):
        CountingEnv.calls += 1
        return CountingEnv.calls


def spaces_of_sb3():
    some = OrderedDict(
        discrete=spaces.Discrete(4),
        many=spaces.MultiDiscrete([2, 3]),
        bits=spaces.MultiBinary(3),
        box=spaces.Box(0, 1, (2,)),
    )
    return [*some.values(), spaces.Dict(some), spaces.Tuple(list(some.values()))]


# --- beside theirs ------------------------------------------------------------------------------


def assert_alike(vec_env, own, steps):
    for each in (vec_env, own):
        assert each.seed(3) == [3, 4, 5]
    assert data_equivalence(vec_env.reset(), own.reset())
    assert data_equivalence(list(vec_env.reset_infos), list(own.reset_infos))
    own.action_space.seed(0)
    for _ in range(steps):
        actions = np.array([own.action_space.sample() for _ in range(3)])
        obs, rewards, dones, infos = vec_env.step(actions)
        own_obs, own_rewards, own_dones, own_infos = own.step(actions)
        assert data_equivalence(obs, own_obs, exact=True)
        assert rewards.tolist() == own_rewards.tolist()
        assert data_equivalence(dones, own_dones)
        assert data_equivalence(infos, own_infos, exact=True), (infos, own_infos)
        assert data_equivalence(list(vec_env.reset_infos), list(own.reset_infos))
        assert_buffers_alike(vec_env, own)


def assert_buffers_alike(vec_env, own):
    for name in ("buf_obs", "buf_rews", "buf_dones", "buf_infos"):
        assert hasattr(vec_env, name) == hasattr(own, name)
        if hasattr(own, name):  # DummyVecEnv's
            assert data_equivalence(getattr(vec_env, name), getattr(own, name)), name


@pairs
@pytest.mark.parametrize(
    "env_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "MountainCarContinuous-v0"]
)
def test_steps_are_theirs(closing, kind, own, env_id):
    functions = [partial(gymnasium.make, env_id, max_episode_steps=30)] * 3
    assert_alike(closing(kind(functions)), closing(own(functions)), 200)


@pairs
def test_infos_of_every_kind_are_theirs(closing, kind, own):
    functions = [partial(InfoEnv, number) for number in range(3)]
    assert_alike(closing(kind(functions)), closing(own(functions)), 60)


@pairs
@pytest.mark.parametrize("space", spaces_of_sb3(), ids=lambda space: type(space).__name__)
def test_observations_of_every_space_are_theirs(closing, kind, own, space):
    functions = [partial(SampleEnv, space)] * 3
    vec_env, other = closing(kind(functions)), closing(own(functions))
    for each in (vec_env, other):
        each.seed(5)
    got, expected = vec_env.reset(), other.reset()
    for _ in range(5):
        assert type(got) is type(expected)
        assert data_equivalence(plain(got), plain(expected))
        actions = [space.sample() for _ in range(3)]
        if kind is SubprocVecEnv and isinstance(space, spaces.Dict | spaces.Tuple):
            break  # a batch of such actions is a list in both, but theirs passes it on as it is
        got, expected = vec_env.step(actions)[0], other.step(actions)[0]
        if kind is DummyVecEnv:
            assert data_equivalence(vec_env.buf_obs, other.buf_obs)


def plain(obs):
    return dict(obs) if isinstance(obs, dict) else obs


@pairs
def test_they_look_like_theirs(closing, kind, own):
    functions = [partial(NamedEnv, name) for name in range(3)]
    vec_env, other = closing(kind(functions)), closing(own(functions))
    assert isinstance(vec_env, theirs.VecEnv)
    assert isinstance(vec_env, getattr(theirs, type(vec_env).__name__))
    for name in ("num_envs", "observation_space", "action_space", "render_mode", "metadata"):
        assert getattr(vec_env, name) == getattr(other, name)
    assert np.array_equal(vec_env.render(), other.render())
    assert np.array_equal(vec_env.get_images(), other.get_images())
    with pytest.warns(UserWarning, match="something_else"):
        vec_env.render(mode="something_else")


# --- reaching in --------------------------------------------------------------------------------


@pairs
def test_a_method_runs_once_for_each_given_index(closing, kind, own):
    for vec_env in (closing(kind([CountingEnv] * 3)), closing(own([CountingEnv] * 3))):
        assert vec_env.env_method("count", indices=[0, 2, 0]) == [1, 1, 2]
        assert vec_env.env_method("count") == [3, 1, 2]


def test_methods_run_in_the_order_of_the_indices(closing):
    vec_env = closing(SubprocVecEnv([CountingEnv] * 3, in_series=3))
    assert vec_env.env_method("place", indices=[2, 0, 1]) == [1, 2, 3]


@with_torch
def test_wrappers_of_single_environments_are_found(closing, kind):
    vec_env = closing(kind([cartpole, lambda: Monitor(cartpole())]))
    assert vec_env.env_is_wrapped(Monitor) == [False, True]
    assert vec_env.env_is_wrapped(gymnasium.wrappers.TimeLimit, indices=[1]) == [True]
    assert vec_env.env_is_wrapped(gymnasium.Wrapper) == [True, True]


# --- the end, and what is refused ---------------------------------------------------------------


@pytest.mark.parametrize(
    "actions",
    [
        *([[0.5], [1.5], [2.5]], np.array([[0.5], [1.5], [2.5]]), np.array([[0, 1]] * 4)),
        *(np.array([0.5, 1.5]), [np.array([1, 2, 3])] * 2, np.float32([[3], [4]])),
    ],
    ids=repr,
)
def test_a_dummy_takes_as_many_actions_as_it_has_environments(closing, actions):
    for count in (1, 2):
        envs = closing(DummyVecEnv([GivenEnv] * count))
        own = closing(theirs.DummyVecEnv([GivenEnv] * count))
        for each in (envs, own):
            each.reset()
            each.step(actions)
        # Such as fit are given in the dtype of the space, also one that is one environment's.
        fits = np.shape(actions[:count]) in ((count, 1), (1,))
        for mine, its in zip(envs.get_attr("last"), own.get_attr("last"), strict=True):
            assert fits or mine == its
        with pytest.raises((ValueError, IndexError)):
            envs.step(actions[: count - 1])


@with_torch
@pytest.mark.parametrize(
    ("space", "rows"),
    [
        (spaces.Tuple([spaces.Discrete(3)] * 2), [(0, 1), (0, 2)]),
        (spaces.Dict(a=spaces.Discrete(3)), [{"a": 1}, {"a": 2}]),
    ],
    ids=["tuple", "dict"],
)
def test_actions_of_several_parts_are_one_for_each_environment(closing, kind, space, rows):
    objects = np.empty(2, object)
    objects[:] = rows
    functions = [partial(EchoEnv, PLAIN, space)] * 2
    for envs in (kind(functions), to_sb3(XuanCeDummy(functions))):
        closing(envs).reset()
        for actions in (rows, tuple(rows), objects):
            envs.step(actions)
            assert [received[-1] for received in envs.get_attr("received")] == rows


def test_workers_take_an_action_for_each_environment(closing):
    envs = closing(SubprocVecEnv([GivenEnv] * 2))
    envs.reset()
    with pytest.raises(ValueError, match="actions for 2 environments"):
        envs.step(np.zeros((3, 1), np.float32))


def test_environments_of_one_dummy_are_distinct():
    env = cartpole()
    with pytest.raises(ValueError, match="object"):
        DummyVecEnv([lambda: env] * 2)
    with pytest.raises(ValueError, match="same instance"):
        DummyVecEnv([lambda: gymnasium.Wrapper(env), lambda: gymnasium.Wrapper(env)])


def test_what_is_no_gymnasium_environment_is_refused_by_their_rules():
    with pytest.raises(ValueError, match="not a Gymnasium environment"):
        DummyVecEnv([lambda: 3])


def test_start_methods(closing):
    for method in ("fork", "spawn", "forkserver"):
        closing(SubprocVecEnv([cartpole], start_method=method)).reset()
    with pytest.raises(ValueError, match="cannot find context for 'illegal_method'"):
        SubprocVecEnv([cartpole], start_method="illegal_method")


@kinds
def test_closing_leaves_nothing(kind):
    vec_env = kind([cartpole] * 3)
    vec_env.reset()
    vec_env.step_async(np.zeros(3, int))
    vec_env.close()
    vec_env.close()
    assert multiprocessing.active_children() == []


def test_attributes_are_set_in_the_environments_of_a_new_worker_too(closing):
    vec_env = closing(SubprocVecEnv([LethalEnv] * 2, in_series=1, on_worker_failure="restart"))
    vec_env.set_attr("level", 3)
    vec_env.set_attr("level", 4, indices=1)
    vec_env.reset()
    vec_env.step(np.array([1, 0]))
    vec_env.step(np.array([0, 0]))
    vec_env.step(np.array([0, 1]))
    assert vec_env.get_attr("level") == [3, 4]


def test_states_of_the_worker_processes_show(closing):
    vec_env = closing(SubprocVecEnv([cartpole] * 3, in_series=2))
    vec_env.reset()
    assert (vec_env.waiting, vec_env.closed, len(vec_env.processes)) == (False, False, 2)
    vec_env.step_async(np.zeros(3, int))
    assert vec_env.waiting
    vec_env.step_wait()


def test_waiting_without_a_pending_step_raises(closing):
    vec_env = closing(SubprocVecEnv([cartpole] * 2))
    with pytest.raises(NotSteppingError):
        vec_env.step_wait()
    vec_env.reset()
    vec_env.step(np.zeros(2, int))
    with pytest.raises(NotSteppingError):
        vec_env.step_wait()  # instead of returning the last step again
    vec_env.close()
    with pytest.raises(ClosedVecEnvError, match="vectorized environment is closed"):
        vec_env.step_wait()


def test_a_step_interrupted_while_its_infos_are_built_stays_pending(closing, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    vec_env = closing(SubprocVecEnv([cartpole] * 2))
    vec_env.reset()
    vec_env.step_async(np.zeros(2, int))
    with monkeypatch.context() as patched:
        patched.setattr(InfoBatch, "dicts", interrupt)
        with pytest.raises(KeyboardInterrupt):
            vec_env.step_wait()
    assert vec_env.waiting
    assert vec_env.step_wait()[1].tolist() == [1, 1]
    assert not vec_env.waiting


def test_errors_name_what_was_called(closing):
    vec_env = closing(SubprocVecEnv([cartpole] * 3, in_series=2))
    vec_env.reset()
    vec_env.step_async(np.zeros(3, int))
    for ask, told in (
        (lambda: vec_env.step(np.zeros(3, int)), "step or step_async was called"),
        (lambda: vec_env.get_attr("spec"), "an operation on the environments was called"),
        (lambda: vec_env.env_method("action_masks"), "env_method was called"),
    ):
        with pytest.raises(AlreadySteppingError, match=f"^{told} while a step is pending"):
            ask()
    vec_env.close()
    with pytest.raises(ClosedVecEnvError, match=r"^vectorized environment is closed"):
        vec_env.step(np.zeros(3, int))


# --- wrappers and algorithms --------------------------------------------------------------------


WRAPPERS = {
    "VecNormalize": theirs.VecNormalize,
    "VecFrameStack": partial(theirs.VecFrameStack, n_stack=3),
    "VecMonitor": theirs.VecMonitor,
    "VecCheckNan": theirs.VecCheckNan,
}


@pairs
@pytest.mark.parametrize("wrapper", WRAPPERS.values(), ids=WRAPPERS)
def test_their_wrappers_do_the_same(closing, kind, own, wrapper):
    envs = [closing(wrapper(each([cartpole] * 3))) for each in (kind, own)]
    for each in envs:
        each.seed(3)
    assert data_equivalence(envs[0].reset(), envs[1].reset())
    rng = np.random.default_rng(0)
    for _ in range(60):
        actions = rng.integers(2, size=3)
        got, expected = (each.step(actions) for each in envs)
        for *_, infos in (got, expected):
            for info in infos:
                info.get("episode", {}).pop("t", None)  # seconds
        assert np.allclose(got[1], expected[1], atol=1e-6), "rewards are float32 in one of theirs"
        assert data_equivalence([got[0], got[2], got[3]], [expected[0], expected[2], expected[3]])


@kinds
def test_videos_are_recorded(closing, kind, tmp_path, monkeypatch):
    for library in ("moviepy", "pygame"):
        pytest.importorskip(library)
    monkeypatch.setattr(tqdm.tqdm, "monitor_interval", 0)  # or its thread outlives the test
    functions = [partial(gymnasium.make, "CartPole-v1", render_mode="rgb_array")]
    envs = closing(kind(functions))
    vec_env = theirs.VecVideoRecorder(envs, str(tmp_path), lambda step: step == 0, 5)
    vec_env.reset()
    for _ in range(8):
        vec_env.step(np.zeros(1, int))
    vec_env.close()
    assert list(tmp_path.glob("*.mp4"))


ALGORITHMS = {
    "PPO": partial(PPO, "MlpPolicy", n_steps=32, batch_size=32, n_epochs=2),
    "DQN": partial(DQN, "MlpPolicy", learning_starts=20, train_freq=4),
    "SAC": partial(SAC, "MlpPolicy", learning_starts=20, train_freq=4, batch_size=16),
}


@with_torch
@pytest.mark.parametrize("name", ALGORITHMS)
def test_their_algorithms_learn_alike_on_ours_and_on_theirs(closing, kind, name):
    env_id = "Pendulum-v1" if name == "SAC" else "CartPole-v1"
    weights = []
    for each in (kind, theirs.DummyVecEnv):
        vec_env = closing(make_vec_env(env_id, 2, seed=1, vec_env_cls=each))
        model = ALGORITHMS[name](vec_env, seed=1, device="cpu").learn(160)
        weights.append(torch.cat([p.detach().ravel() for p in model.policy.parameters()]))
        if each is kind and name == "PPO":
            mean, _ = evaluate_policy(model, vec_env, n_eval_episodes=2, warn=False)
            assert mean > 0
    assert torch.equal(*weights)
