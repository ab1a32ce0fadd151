"""Environments that are vectorized already, as vector environments of ours."""

from __future__ import annotations

import warnings
from functools import partial

import gymnasium
import numpy as np
import pytest
from compat_envs import InfoEnv
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from xuance_envs import DummyVecEnv
from xuance_envs.compat import from_gymnasium
from xuance_envs.compat.native import make_native
from xuance_envs.errors import ClosedVecEnvError, EnvError, NotSteppingError
from xuance_envs.vector_envs.vector_env import VecEnv

NUM = 3  # each game of ale-py takes 70 ms to load
cartpole = partial(gymnasium.make_vec, "CartPole-v1", vectorization_mode="vector_entry_point")


def envpool(env_id, **options):
    pool = pytest.importorskip("envpool", reason="it has no wheels for this Python")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the precision of its bounds
        return pool.make(env_id, env_type="gymnasium", num_envs=NUM, seed=1, **options)


def atari(**options):
    engine = pytest.importorskip("ale_py.vector_env", reason="ale-py has it from 0.11 on")
    return engine.AtariVectorEnv(
        "breakout", NUM, img_height=16, img_width=16, noop_max=2, **options
    )


def sync(mode):
    return SyncVectorEnv(
        [partial(InfoEnv, number, kind=1) for number in range(NUM)], autoreset_mode=mode
    )


ENGINES = {
    "CartPoleVectorEnv": partial(cartpole, num_envs=NUM),
    "AtariVectorEnv": partial(atari, max_num_frames_per_episode=120),
    "AtariVectorEnv-same-step": partial(
        atari, max_num_frames_per_episode=120, autoreset_mode="SameStep"
    ),
    "EnvPool": partial(envpool, "CartPole-v1"),
    "EnvPool-Atari": partial(
        envpool, "Breakout-v5", img_height=16, img_width=16, noop_max=2, max_episode_steps=30
    ),
    "SyncVectorEnv-same-step": partial(sync, AutoresetMode.SAME_STEP),
    "SyncVectorEnv-disabled": partial(sync, AutoresetMode.DISABLED),
    "SyncVectorEnv-next-step": partial(sync, AutoresetMode.NEXT_STEP),
}
engines = pytest.mark.parametrize("make", ENGINES.values(), ids=ENGINES)
KEEPING = ("CartPoleVectorEnv", "AtariVectorEnv-same-step", "EnvPool", "SyncVectorEnv-same-step")
STEPS = 80  # enough for two episodes of each to end
GAME_STEPS = 260  # enough for a game of Breakout to end


def actions_for(vec_env, count, seed=0):
    return np.random.default_rng(seed).integers(vec_env.action_space.n, size=(count, NUM))


@pytest.fixture
def make_vec_env(closing):
    return lambda make, **options: closing(from_gymnasium(make(), **options))


# --- the table of a step ------------------------------------------------------------------------


def test_a_reset_has_no_rewards_and_flags_of_an_earlier_step() -> None:
    engine = gymnasium.make_vec("CartPole-v1", 4, vectorization_mode="vector_entry_point")
    with from_gymnasium(engine, seed=0) as envs:
        envs.async_reset()
        while not envs.recv(min_envs=4).terminated.any():
            envs.send([0] * 4, range(4))
        envs.async_reset()
        batch = envs.recv(min_envs=4)
    assert batch.rewards.tolist() == [0.0] * 4
    assert not batch.terminated.any()


@engines
def test_the_table_of_a_step_holds(make_vec_env, make):
    vec_env = make_vec_env(make)
    assert isinstance(vec_env, VecEnv)
    shape, dtype = vec_env.observation_space.shape, vec_env.observation_space.dtype
    obs, infos = vec_env.reset()
    assert (obs.shape, obs.dtype) == ((NUM, *shape), dtype)
    assert [info["episode_step"] for info in infos] == [0] * NUM
    counts, scores, ends = np.zeros(NUM, int), np.zeros(NUM), 0
    for actions in actions_for(vec_env, STEPS):
        obs, rewards, terminated, truncated, infos = vec_env.step(actions)
        assert (obs.shape, obs.dtype, obs.flags.writeable) == ((NUM, *shape), dtype, True)
        for array, kind in ((rewards, np.float32), (terminated, bool), (truncated, bool)):
            assert (array.shape, array.dtype) == ((NUM,), kind)
        counts, scores = counts + 1, scores + vec_env.exact_rewards
        for i, info in enumerate(infos):
            assert type(info["episode_step"]) is int
            assert type(info["episode_score"]) is float
            assert (info["episode_step"], info["episode_score"]) == (counts[i], scores[i])
            ended = terminated[i] or truncated[i]
            assert ("reset_obs" in info) == ("reset_info" in info) == ended
            if ended:
                ends += 1
                counts[i] = scores[i] = 0
                assert (info["reset_obs"].shape, info["reset_obs"].dtype) == (shape, dtype)
                assert info["reset_obs"].tobytes() != obs[i].tobytes(), "the last one is another"
                assert info["reset_info"]["episode_step"] == 0
                assert "episode_score" not in info["reset_info"]
    assert ends


class Naming(gymnasium.Wrapper):
    """Names every second step, which ends the episode, and each reset: texts have no columns."""

    def reset(self, **given):
        self.count = 0
        return self.env.reset(**given)[0], {"name": "reset"}

    def step(self, action):
        self.count += 1
        observation, reward, *_ = self.env.step(action)
        ends = self.count == 2
        return observation, reward, ends, False, {"name": f"step {self.count}"} if ends else {}


def test_infos_without_a_column_belong_to_their_environment_and_step(make_vec_env) -> None:
    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    functions = [partial(Naming, gymnasium.make("CartPole-v1")) for _ in range(3)]
    vec_env = make_vec_env(partial(SyncVectorEnv, functions, autoreset_mode=mode))
    _, infos = vec_env.reset(seed=0)
    assert [info["name"] for info in infos] == ["reset"] * 3
    steps = [vec_env.step([0] * 3)[-1]]
    vec_env.reset(env_ids=[1])
    steps += [vec_env.step([0] * 3)[-1] for _ in range(2)]
    assert [[info.get("name") for info in infos] for infos in steps] == [
        [None] * 3,
        ["step 2", None, "step 2"],
        [None, "step 2", None],
    ]
    ends = [
        [info["reset_info"]["name"] for info in infos if "reset_info" in info] for infos in steps
    ]
    assert ends == [[], ["reset"] * 2, ["reset"]]


class Reporting(gymnasium.Wrapper):
    """Reports some keys only in some steps; one is a dict, one may have another type at the end."""

    def __init__(self, mixes):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.mixes = mixes

    def reset(self, **given):
        self.count = 0
        info = {"kept": {"of": 0, 2: 0}, "_hidden": 0, "first": 9, 5: 0}
        return self.env.reset(**given)[0], info

    def step(self, action):
        self.count += 1
        observation, reward, *_ = self.env.step(action)
        info = {"kept": {"of": self.count, 2: self.count}, "_hidden": self.count, 5: self.count}
        if self.count == 1:
            info["once"] = 1
        info["mixed"] = "end" if self.mixes and self.count == 3 else self.count
        return observation, reward, self.count == 3, False, info


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_infos_are_those_of_each_environments_own_step(make_vec_env, mode) -> None:
    # Gymnasium itself has no infos of several types in one step.
    functions = [partial(Reporting, mixes=mode is AutoresetMode.SAME_STEP)] * 2
    native = make_vec_env(partial(SyncVectorEnv, functions, autoreset_mode=mode))
    stepped = DummyVecEnv(functions)
    seen = []
    for vec_env in (native, stepped):
        vec_env.reset(seed=0)
        infos = [vec_env.step([0, 0])[-1]]
        vec_env.reset(env_ids=[1])
        infos += [vec_env.step([0, 0])[-1] for _ in range(6)]
        seen.append([list(map(without_own_keys, each)) for each in infos])
    assert seen[0] == seen[1]
    stepped.close()


def without_own_keys(info):
    own = ("episode_step", "episode_score", "reset_obs")
    return {
        key: without_own_keys(value) if key == "reset_info" else value
        for key, value in info.items()
        if key not in own
    }


class TupleEnv(gymnasium.Env):
    """Its observations are nested tuples; its episodes take two steps."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Tuple(
        [spaces.Tuple([spaces.Box(0, 100, (2,)), spaces.Box(0, 100, (2,))]), spaces.Discrete(9)]
    )

    def __init__(self, number):
        self.number = number

    def observe(self):
        first = 10 * self.number + self.count
        return tuple(np.full(2, first + part, np.float32) for part in (0, 5)), self.count

    def reset(self, **given):
        super().reset(seed=given.get("seed"))
        self.count = 0
        return self.observe(), {}

    def step(self, action):
        self.count += 1
        return self.observe(), 0.0, self.count == 2, False, {}


class ScoringEnv(TupleEnv):
    """Reports a score and a number of steps of its own where its episode ends, after 2 or 3."""

    def step(self, action):
        observation, *_ = super().step(action)
        ends = self.count == 2 + self.number
        info = {"episode_score": 50, "episode_step": float(self.count)} if ends else {}
        return observation, 1.0, ends, False, info


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_scores_that_only_some_environments_report_leave_those_of_others(make_vec_env, mode):
    functions = [partial(ScoringEnv, number) for number in range(2)]
    vec_env = make_vec_env(partial(SyncVectorEnv, functions, autoreset_mode=mode))
    vec_env.reset()
    steps = [vec_env.step([0, 0])[-1] for _ in range(4)]
    assert [[info["episode_step"] for info in infos] for infos in steps] == [
        *([1, 1], [2, 2], [1, 3], [2, 1])
    ]
    assert [[info["episode_score"] for info in infos] for infos in steps] == [
        *([1, 1], [50, 2], [1, 50], [50, 1])
    ]


class ReportingOnce(gymnasium.Wrapper):
    """Reports only in its first two resets and its second step; every episode takes a step."""

    count = 0

    def reset(self, **given):
        self.count += 1
        return self.env.reset(**given)[0], {"started": 1} if self.count < 3 else {}

    def step(self, action):
        observation, reward, *_ = self.env.step(action)
        return observation, reward, True, False, {"once": 1} if self.count == 2 else {}


def test_steps_without_infos_do_not_repeat_those_of_earlier_steps(make_vec_env):
    functions = [lambda: ReportingOnce(gymnasium.make("CartPole-v1"))] * 2
    mode = AutoresetMode.SAME_STEP
    vec_env = make_vec_env(partial(SyncVectorEnv, functions, autoreset_mode=mode))
    seen = [vec_env.reset()[1]] + [vec_env.step([0, 0])[-1] for _ in range(4)]
    keys = [(sorted(infos[1]), sorted(infos[1].get("reset_info", ()))) for infos in seen]
    first, ended = ["episode_step"], ["episode_score", "episode_step", "reset_info", "reset_obs"]
    assert keys[0] == ([*first, "started"], [])
    assert keys[1] == (ended, [*first, "started"])
    assert keys[2] == (sorted([*ended, "once"]), first)
    assert keys[3] == keys[4] == (ended, first)


def test_the_last_observations_of_nested_tuples_belong_to_their_environments(make_vec_env):
    functions = [partial(TupleEnv, number) for number in range(2)]
    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    vec_env = make_vec_env(partial(SyncVectorEnv, functions, autoreset_mode=mode))
    vec_env.reset()
    vec_env.step([0, 0])
    ((one, other), counts), _, terminated, _, infos = vec_env.step([0, 0])
    assert terminated.all()
    assert one.tolist() == [[2, 2], [12, 12]]
    assert other.tolist() == [[7, 7], [17, 17]]
    assert counts.tolist() == [2, 2]
    assert [info["reset_obs"][0][1].tolist() for info in infos] == [[5, 5], [15, 15]]


class SmoothEnv(gymnasium.Env):
    """Environment that keeps its last action, and rewards small changes of it."""

    observation_space = action_space = spaces.Box(-9, 9, (1,))

    def reset(self, **given):
        self.last = np.zeros(1, np.float32)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        reward = -float(abs(action - self.last)[0])
        self.last = action
        return np.zeros(1, np.float32), reward, False, False, {}


def test_actions_that_an_engine_keeps_stay_as_they_are(make_vec_env):
    vec_env = make_vec_env(lambda: SyncVectorEnv([SmoothEnv] * 2, autoreset_mode="SameStep"))
    vec_env.reset()
    rewards = [vec_env.step(np.full((2, 1), a, np.float32))[1][0] for a in (1, 3, 2)]
    assert rewards == [-1, -2, -1]


class OwnBuffers(gymnasium.vector.VectorEnv):
    """Engine that returns its own arrays, which later steps and resets change."""

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012  # as in Gymnasium

    def __init__(self, num_envs=2):
        self.num_envs = num_envs
        self.single_observation_space = spaces.Box(0, 99, (1,))
        self.single_action_space = spaces.Discrete(2)
        self.observations = np.zeros((num_envs, 1), np.float32)
        self.rewards, self.counts = np.zeros(num_envs), np.zeros(num_envs, int)
        self.terminated, self.truncated = np.zeros((2, num_envs), bool)

    def reset(self, *, seed=None, options=None):
        mask = slice(None) if options is None else options["reset_mask"]
        for array in (self.observations, self.rewards, self.counts, self.terminated):
            array[mask] = 0
        return self.observations, {"count": self.counts}

    def step(self, actions):
        self.observations += 1
        self.counts += 1
        self.rewards[:] = 1
        self.terminated[:] = self.counts == np.arange(2, 2 + self.num_envs)
        flags = self.terminated, self.truncated
        return self.observations, self.rewards, *flags, {"count": self.counts}


def test_results_in_an_engines_own_arrays_are_those_before_the_reset(make_vec_env):
    vec_env = make_vec_env(OwnBuffers)
    vec_env.reset()
    vec_env.step([0, 0])
    for count, ended in ((2, 0), (3, 1)):
        obs, rewards, terminated, _, infos = vec_env.step([0, 0])
        assert obs[ended] == infos[ended]["count"] == infos[ended]["episode_score"] == count
        assert rewards.tolist() == [1, 1]
        assert terminated.nonzero()[0].tolist() == [ended]
        assert infos[ended]["reset_obs"] == infos[ended]["reset_info"]["count"] == 0


class NumberedEnv(TupleEnv):
    """Environment whose infos have its own ``env_id``, and the list of its counts."""

    def reset(self, **given):
        self.counts = []
        return super().reset(**given)[0], {"env_id": 7 + self.number}

    def step(self, action):
        result = super().step(action)
        self.counts.append(self.count)
        return *result[:4], {"env_id": 7 + self.number, "counts": self.counts}


@pytest.fixture
def numbered(make_vec_env):
    functions = [partial(NumberedEnv, number) for number in range(3)]
    vec_env = make_vec_env(lambda: SyncVectorEnv(functions, autoreset_mode="Disabled"))
    vec_env.reset()
    return vec_env


def test_an_info_env_id_does_not_decide_which_observation_is_whose(numbered):
    numbered.step([0] * 3)
    infos = numbered.step([0] * 3)[-1]
    assert [info["reset_obs"][0][0][0] for info in infos] == [0, 10, 20]
    assert [info["reset_info"]["env_id"] for info in infos] == [7, 8, 9]


def test_objects_in_infos_stay_as_they_were(numbered):
    first, second = numbered.step([0] * 3)[-1], numbered.step([0] * 3)[-1]
    assert [info["counts"] for info in first] == [[1]] * 3
    assert [info["counts"] for info in second] == [[1, 2]] * 3


@pytest.mark.parametrize("name", KEEPING)
def test_infos_still_show_their_own_step_later(make_vec_env, name):
    at_once, late = make_vec_env(ENGINES[name]), make_vec_env(ENGINES[name])
    for vec_env in (at_once, late):
        seeded_when_made = "EnvPool" in type(vec_env.vector_env).__name__
        vec_env.reset(seed=None if seeded_when_made else 1)
    looked, kept = [], []
    for actions in actions_for(late, STEPS):
        looked.append(repr(at_once.step(actions)[-1]))
        kept.append(late.step(actions)[-1])
    assert any("reset_obs" in text for text in looked)
    assert list(map(repr, kept)) == looked


def test_cartpole_is_the_engine_stepped_by_hand(make_vec_env):
    vec_env = make_vec_env(ENGINES["CartPoleVectorEnv"])
    engine = cartpole(num_envs=NUM)
    assert np.array_equal(vec_env.reset(seed=3)[0], engine.reset(seed=3)[0])
    for actions in actions_for(vec_env, 100):
        obs, rewards, terminated, truncated, infos = vec_env.step(actions)
        expected = engine.step(actions)
        assert np.array_equal(obs, expected[0])
        assert rewards.tolist() == [1] * NUM, "a step that ends an episode has its reward"
        assert np.array_equal(terminated, expected[2])
        ended = np.flatnonzero(terminated | truncated)
        if len(ended):
            engine.state[:, ended] = engine.np_random.uniform(
                engine.low, engine.high, (4, len(ended))
            )
            engine.steps[ended] = 0
            engine.prev_done[:] = False
            first = engine.state.T.astype(np.float32)
            assert [infos[i]["reset_obs"].tolist() for i in ended] == first[ended].tolist()


def test_the_atari_engine_gives_the_same_in_both_of_its_modes(make_vec_env):
    one, other = make_vec_env(atari), make_vec_env(partial(atari, autoreset_mode="SameStep"))
    assert np.array_equal(one.reset(seed=2)[0], other.reset(seed=2)[0])
    for actions in actions_for(one, GAME_STEPS):
        (obs, *flags, infos), (its, *its_flags, its_infos) = one.step(actions), other.step(actions)
        assert np.array_equal(obs, its)
        assert np.array_equal(flags, its_flags)
        for i in np.flatnonzero(flags[1] | flags[2]):
            assert np.array_equal(infos[i]["reset_obs"], its_infos[i]["reset_obs"])


def test_last_observations_are_kept_where_gymnasium_keeps_them(make_vec_env):
    vec_env = make_vec_env(ENGINES["SyncVectorEnv-same-step"])
    by_hand = [InfoEnv(number, kind=1) for number in range(NUM)]
    vec_env.reset()
    for env in by_hand:
        env.reset()
    for actions in actions_for(vec_env, 30):
        obs, *_, infos = vec_env.step(actions)
        for i, env in enumerate(by_hand):
            expected, _, *ended, info = env.step(0)
            assert np.array_equal(obs[i], expected)
            assert {key: infos[i][key] for key in info} == info
            if any(ended):
                first, info = env.reset()
                assert np.array_equal(infos[i]["reset_obs"], first)
                assert infos[i]["reset_info"]["int"] == info["int"]


# --- what the contract says besides -------------------------------------------------------------


def test_states_and_actions_are_checked(make_vec_env):
    vec_env = make_vec_env(ENGINES["CartPoleVectorEnv"])
    vec_env.reset(seed=0)
    with pytest.raises(NotSteppingError):
        vec_env.step_wait()
    with pytest.raises(ValueError, match="expected shape"):
        vec_env.step([0, 1])
    vec_env.step_async([0] * NUM)
    vec_env.reset(seed=0)
    vec_env.close()
    with pytest.raises(ClosedVecEnvError):
        vec_env.step([0] * NUM)


@pytest.mark.parametrize(
    "engine",
    [
        lambda: SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2),
        lambda: gymnasium.make_vec("CartPole-v1", 2, "vector_entry_point"),
    ],
    ids=["SyncVectorEnv", "CartPoleVectorEnv"],
)
def test_a_mask_of_resets_is_not_an_option(engine):
    with from_gymnasium(engine()) as vec_env:
        vec_env.reset(seed=0)
        with pytest.raises(NotImplementedError, match=r"reset_mask.*env_ids"):
            vec_env.reset(options={"reset_mask": np.array([True, False])})


def test_an_engines_error_is_an_env_error_and_closes(make_vec_env):
    vec_env = make_vec_env(ENGINES["CartPoleVectorEnv"])
    vec_env.reset()
    with pytest.raises(EnvError, match="CartPoleVectorEnv") as caught:
        vec_env.step([0, 1, 2])
    assert isinstance(caught.value.__cause__, AssertionError)
    assert vec_env.closed


def test_columns_of_infos_can_be_had(make_vec_env):
    vec_env = make_vec_env(ENGINES["EnvPool"])
    vec_env.reset()
    *_, infos = vec_env.step([0] * NUM)
    values, mask = infos.column("elapsed_step")
    assert (values.tolist(), mask.all(), values.dtype) == ([1] * NUM, True, np.int32)
    assert infos.column("episode_score")[0].tolist() == [1.0] * NUM


def test_without_copies_views_are_returned(make_vec_env):
    vec_env = make_vec_env(ENGINES["CartPoleVectorEnv"], copy=False)
    first, _ = vec_env.reset(seed=0)
    second, *_ = vec_env.step([0] * NUM)
    assert not first.flags.writeable
    assert np.array_equal(first, second)


@pytest.mark.parametrize(
    "name", ["CartPoleVectorEnv", "AtariVectorEnv", "AtariVectorEnv-same-step", "EnvPool"]
)
def test_some_can_be_reset(make_vec_env, name):
    vec_env = make_vec_env(ENGINES[name])
    vec_env.reset()
    for _ in range(3):
        obs, *_ = vec_env.step([1] * NUM)
    first, infos = vec_env.reset(env_ids=[2, 0])
    assert first.shape == (2, *vec_env.obs_shape)
    assert [info["episode_step"] for info in infos] == [0, 0]
    assert np.array_equal(vec_env.buf_obs[[2, 0]], first)
    assert np.array_equal(vec_env.buf_obs[1], obs[1])
    *_, infos = vec_env.step([1] * NUM)
    assert [info["episode_step"] for info in infos] == [1, 4, 1]
    assert all("episode_score" in info for info in infos)


def test_a_seed_decides(make_vec_env):
    vec_env = make_vec_env(ENGINES["CartPoleVectorEnv"], seed=4)
    unseeded, _ = vec_env.reset()
    continued, _ = vec_env.reset()
    seeded, _ = vec_env.reset(seed=4)
    assert np.array_equal(unseeded, seeded)
    assert not np.array_equal(unseeded, continued)


def test_a_seed_decides_however_the_first_reset_is_called(make_vec_env):
    make = partial(make_vec_env, ENGINES["CartPoleVectorEnv"], seed=4)
    expected, _ = make().reset()
    by_list, _ = make().reset(seed=[None] * NUM)
    vec_env = make()
    vec_env.async_reset()
    assert np.array_equal(by_list, expected)
    assert np.array_equal(vec_env.recv(min_envs=NUM).obs, expected)
    assert not np.array_equal(vec_env.reset()[0], expected)


def test_atari_takes_a_seed_for_each(make_vec_env):
    vec_env = make_vec_env(ENGINES["AtariVectorEnv"])
    whole, _ = vec_env.reset(seed=3)
    vec_env.step([1] * NUM)
    part, _ = vec_env.reset(seed=3, env_ids=[2, 1])
    assert np.array_equal(part, whole[[2, 1]])
    listed, _ = vec_env.reset(seed=[3, 4, 5])
    assert np.array_equal(listed, whole)


REFUSED = {
    "seeds-for-each": ("CartPoleVectorEnv", lambda e: e.reset(seed=[4, 1, 3]), "generator"),
    "a-seed-for-some": ("CartPoleVectorEnv", lambda e: e.reset(seed=1, env_ids=[0]), "generator"),
    "options-for-some": (
        "CartPoleVectorEnv",
        lambda e: e.reset(options={"low": 0}, env_ids=[0]),
        "bounds",
    ),
    "seeds-for-some-of-all": (
        "AtariVectorEnv",
        lambda e: e.reset(seed=[1, None, 2]),
        "a seed for each",
    ),
    "a-seed-for-a-pool": ("EnvPool", lambda e: e.reset(seed=1), "to the constructor"),
    "options-for-a-pool": ("EnvPool", lambda e: e.reset(options={"low": 0}), "options in reset"),
    "call": ("CartPoleVectorEnv", lambda e: e.call("render"), "access to single environments"),
    "get_attr": ("AtariVectorEnv", lambda e: e.get_attr("ale"), "access to single environments"),
    "set_attr": ("EnvPool", lambda e: e.set_attr("x", 1), "access to single environments"),
    "render": ("AtariVectorEnv", lambda e: e.render(), "render"),
}


@pytest.mark.parametrize(("name", "act", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_an_engine_cannot_do_is_refused_with_the_reason(make_vec_env, name, act, reason):
    vec_env = make_vec_env(ENGINES[name])
    vec_env.reset()
    with pytest.raises(NotImplementedError, match=reason):
        act(vec_env)
    vec_env.step([0] * NUM)


def test_frames(closing):
    pytest.importorskip("pygame")
    vec_env = closing(make_native("CartPole-v1", 2, render_mode="rgb_array"))
    vec_env.reset(seed=0)
    frames = vec_env.render()
    assert [frame.shape for frame in frames] == [(400, 600, 3)] * 2
    assert len(vec_env.render(env_ids=[1])) == 1


class ScaledCartPole(type(cartpole(num_envs=1))):
    """Engine with other observations than the one that it derives from."""

    def reset(self, **given):
        observations, infos = super().reset(**given)
        return 2 * observations, infos

    def step(self, actions):
        observations, *others = super().step(actions)
        return 2 * observations, *others


# --- what is taken ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "reason"),
    [
        (lambda: 3, TypeError, "got 3"),
        (lambda: gymnasium.make("CartPole-v1"), TypeError, "vector environment|VectorEnv"),
        (lambda: RecordEpisodeStatistics(cartpole(num_envs=2)), TypeError, "wrapper"),
        (lambda: AsyncVectorEnv([partial(InfoEnv, 0, kind=1)]), ValueError, "reset_obs"),
        (lambda: ScaledCartPole(2), ValueError, "reset_obs"),
        (partial(atari, batch_size=2), ValueError, "batch_size"),
        (partial(envpool, "CartPole-v1", batch_size=2), ValueError, "batch_size"),
    ],
)
def test_what_cannot_keep_the_contract_is_refused(make, error, reason):
    engine = make()
    with pytest.raises(error, match=reason):
        from_gymnasium(engine)
    if hasattr(engine, "close"):
        engine.close()


def test_an_environments_own_vectorized_form(closing):
    vec_env = closing(make_native("CartPole-v1", 3, seed=2, sutton_barto_reward=True))
    vec_env.reset()
    assert vec_env.step([0, 1, 0])[1].tolist() == [0, 0, 0]
    assert vec_env.max_episode_steps == 500
    with pytest.raises(ValueError, match="no vectorized implementation"):
        make_native("Acrobot-v1", 2)


def test_a_games_own_vectorized_form(closing):
    gymnasium.register_envs(pytest.importorskip("ale_py"))
    pytest.importorskip("ale_py.vector_env")
    pong = closing(make_native("ALE/Pong-v5", 2))
    assert pong.reset(seed=0)[0].shape == (2, 4, 84, 84)
