"""What all transforms share: what is within them, what they have learned, and what takes them."""

from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from walking import LENGTHS, NUM_WALKS, STILL, WALKS, ReferenceWalks, Walk

from xuance_envs import (
    ClosedVecEnvError,
    DummyVecEnv,
    Gym_Env,
    SubprocVecEnv,
    VecEnv,
    VecEnvWrapper,
)
from xuance_envs.compat import to_gymnasium
from xuance_envs.transforms import (
    ClipActions,
    ClipRewards,
    EpisodeStatistics,
    NormalizeObservations,
    NormalizeRewards,
    RescaleActions,
    ScaleRewards,
    StackObservations,
    TransformObservations,
    TransformRewards,
)
from xuance_envs.vector_envs.wrapper import VecEnvDelegate

ALL = [
    NormalizeObservations,
    NormalizeRewards,
    ClipRewards,
    partial(ScaleRewards, scale=2.0),
    RescaleActions,
    ClipActions,
    partial(StackObservations, n=2),
    partial(TransformObservations, function=np.sin, space=spaces.Box(-1, 1, (3,), np.float64)),
    partial(TransformRewards, function=np.sin),
    EpisodeStatistics,
]

each = pytest.mark.parametrize(
    "transform", ALL, ids=lambda wrap: getattr(wrap, "func", wrap).__name__
)


def many(envs, **options):
    """One of each that goes with the others."""
    envs = ClipActions(RescaleActions(NormalizeRewards(envs, **options)))
    return EpisodeStatistics(StackObservations(NormalizeObservations(ClipRewards(envs)), 2))


def play(envs, steps=12, seed=0):
    envs.reset(seed=seed)
    for _ in range(steps):
        envs.step(STILL)
    return envs


# --- what is within -----------------------------------------------------------------------------


def test_everything_of_the_contract_is_handed_on():
    """Also what the contract gets one day: else it would be the outer one's, who lacks it."""
    own = {"autoreset_mode", "close", "sample_actions", "step"}  # are made of others
    names = {n for n in vars(VecEnv) if n[0] != "_" and not n.startswith(("buf_", "max_"))}
    assert {"call", "recv", "exact_rewards"} <= names
    assert names - vars(VecEnvWrapper).keys() - vars(VecEnvDelegate).keys() == own


@each
def test_it_is_known_by_what_it_wraps(transform):
    with transform(DummyVecEnv(WALKS)) as envs:
        assert "(DummyVecEnv(num_envs=6))" in repr(envs)
        assert envs.envs[2] is envs.vec_env.envs[2]
        assert (envs.num_envs, envs.max_episode_steps) == (NUM_WALKS, 1000)
        with pytest.raises(AttributeError, match="'DummyVecEnv' object has no attribute 'nothing'"):
            _ = envs.nothing


@each
@pytest.mark.parametrize("layer", ["outside", "inside"])
def test_it_can_be_closed_through_any_layer(transform, layer):
    within = SubprocVecEnv(WALKS, context="forkserver", in_series=3)
    envs = VecEnvWrapper(transform(within))
    envs.reset()
    envs.step_async(STILL)
    (envs if layer == "outside" else within).close()
    assert envs.closed
    assert envs.vec_env.closed
    assert within.closed
    envs.close()
    for act in (envs.reset, lambda: envs.step(STILL), lambda: envs.call("pid"), envs.step_wait):
        with pytest.raises(ClosedVecEnvError):
            act()


@each
def test_what_is_no_vector_environment_of_ours_is_refused(transform):
    vector_env = gymnasium.make_vec("CartPole-v1", 2)
    for wrong in (vector_env, gymnasium.make("CartPole-v1"), None):
        kind = type(wrong).__name__
        with pytest.raises(TypeError, match=f"expected a VecEnv, got {kind}; .*from_gymnasium"):
            transform(wrong)
    vector_env.close()


class PlainInfos(VecEnvWrapper):
    """Somebody's own vector environment, which returns lists of dicts."""

    def step_wait(self):
        *rest, infos = super().step_wait()
        return *rest, list(infos)


@each
def test_infos_may_be_a_list(transform):
    with transform(DummyVecEnv(WALKS)) as lazy, transform(PlainInfos(DummyVecEnv(WALKS))) as plain:
        lazy.reset(seed=2)
        plain.reset(seed=2)
        for _ in range(8):
            *right, right_infos = lazy.step(STILL)
            *got, infos = plain.step(STILL)
            assert [part.tolist() for part in got] == [part.tolist() for part in right]
            for info, right_info in zip(infos, right_infos, strict=True):
                assert info.keys() == right_info.keys()
                assert np.array_equal(info.get("reset_obs"), right_info.get("reset_obs"))
                for mine in (info, right_info):
                    mine.get("episode", {}).pop("t", None)
                assert info.get("episode") == right_info.get("episode")


class Counted(VecEnvWrapper):
    """Somebody's own, which looks at infos and changes one."""

    def step_wait(self):
        *rest, infos = super().step_wait()
        infos[0] = {**infos[0], "mine": 1}
        return *rest, infos


@each
def test_infos_that_were_changed_within_stay_changed(transform):
    with transform(Counted(DummyVecEnv(WALKS))) as envs:
        envs.reset()
        for step in range(1, 9):
            obs, *_, infos = envs.step(STILL)
            assert infos[0]["mine"] == 1
            assert infos[0] is infos[0]
            if step % LENGTHS[0] == 0:
                assert infos[0]["reset_obs"].shape == obs[0].shape


class Loud(ClipRewards):
    """Somebody's own, which does something more in its steps."""

    steps = 0

    def step_wait(self):
        self.steps += 1
        return super().step_wait()


def test_what_a_transform_within_does_in_its_steps_is_done():
    with NormalizeRewards(Loud(DummyVecEnv(WALKS))) as envs:
        envs.reset()
        for _ in range(3):
            envs.step(STILL)
        assert envs.steps == 3


# --- original values ----------------------------------------------------------------------------


@each
@pytest.mark.parametrize("keep_raw", [False, True])
@pytest.mark.parametrize("copy", [False, True])
def test_original_values_remain_to_be_had(transform, keep_raw, copy):
    walks = ReferenceWalks()
    acted = STILL + 2 if transform is RescaleActions else STILL
    with StackObservations(transform(DummyVecEnv(WALKS, copy=copy), keep_raw=keep_raw), 2) as envs:
        assert envs.reset(seed=1)[0].shape == (6, 2 * envs.vec_env.obs_shape[0])
        assert (envs.raw_observations == walks.reset(1).obs).all()
        for _ in range(5):
            told = walks.step(acted)
            obs = envs.step(STILL)[0]
            if copy:
                obs[...] = 0
            assert (envs.raw_observations == told.obs).all()
            assert (envs.raw_rewards == told.rewards.astype(np.float32)).all()
        assert envs.reset(env_ids=[4])[0].shape[0] == 1
        assert (envs.raw_observations == walks.reset(env_ids=[4]).obs).all()
        envs.async_reset(seed=2)
        envs.recv(min_envs=NUM_WALKS)
        assert (envs.raw_observations == walks.reset(2).obs).all()
        envs.send(STILL, np.arange(NUM_WALKS))
        envs.recv(min_envs=NUM_WALKS)
        told = walks.step(acted)
        assert (envs.raw_observations == told.obs).all()
        assert (envs.raw_rewards == told.rewards.astype(np.float32)).all()
        envs.reset(seed=3)
        state = envs.save_state([1, 4])
        acting = envs.raw_observations[[1, 4]]
        envs.step(STILL)
        envs.load_state(state, [1, 4])
        assert (envs.raw_observations == acting).all()
        envs.clone_state(4, 0)
        assert (envs.raw_observations == acting[1]).all()


# --- episodes -----------------------------------------------------------------------------------

ORDERS = {
    "within": lambda envs: NormalizeRewards(EpisodeStatistics(envs)),
    "around": lambda envs: EpisodeStatistics(ClipRewards(NormalizeRewards(envs))),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("first_ready", [False, True], ids=["step", "first ready"])
def test_episodes_are_told_of_in_original_rewards(order, first_ready):
    walks, returns, lengths = ReferenceWalks(), np.zeros(NUM_WALKS), np.zeros(NUM_WALKS, int)
    with ORDERS[order](DummyVecEnv(WALKS)) as envs:
        walks.reset(4)
        if first_ready:
            envs.async_reset(seed=4)
            envs.recv(min_envs=NUM_WALKS)
        else:
            envs.reset(seed=4)
        for _ in range(20):
            told = walks.step()
            returns += told.rewards
            lengths += 1
            if first_ready:
                envs.send(STILL, range(NUM_WALKS))
                infos = envs.recv(min_envs=NUM_WALKS).infos
            else:
                infos = envs.step(STILL)[4]
            assert [i for i, info in enumerate(infos) if "episode" in info] == told.ended
            for i in told.ended:
                episode = infos[i]["episode"]
                assert list(episode) == ["r", "l", "t"]
                assert episode["r"] == pytest.approx(returns[i], rel=1e-6 if first_ready else 1e-15)
                assert (type(episode["r"]), episode["l"]) == (float, lengths[i])
                assert 0 < episode["t"] < 60
            returns[told.ended] = lengths[told.ended] = 0


def test_an_episode_that_is_cut_short_by_a_reset_is_not_told_of():
    with EpisodeStatistics(DummyVecEnv([partial(Walk, 5)] * 2)) as envs:
        envs.reset()
        for _ in range(3):
            envs.step(STILL[:2])
        envs.reset(env_ids=[1])
        told = [envs.step(STILL[:2])[4] for _ in range(5)]
        assert [[info.get("episode", {}).get("l") for info in infos] for infos in told] == [
            *([[None, None]]),
            [5, None],
            *([[None, None]] * 2),
            [None, 5],
        ]


def test_for_who_does_not_look_no_dict_is_made(monkeypatch):
    from xuance_envs.transforms import episodes

    made = []
    monkeypatch.setattr(
        episodes, "_episode_info", lambda *args: made.append(args) or {"r": args[0]}
    )
    with EpisodeStatistics(DummyVecEnv(WALKS)) as envs:
        play(envs, 8)
        assert made == []
        infos = envs.step(STILL)[4]
        assert infos.column("episode")[1].tolist() == [False] * 4 + [True, False]
        assert len(made) == 1


# --- what has been learned ----------------------------------------------------------------------


def through_torch(state, path):
    torch = pytest.importorskip("torch")
    torch.save(state, path)
    return torch.load(path, weights_only=True)


def through_npz(state, path):
    np.savez(path, **state)
    return dict(np.load(path))


@pytest.mark.parametrize("through", [through_torch, through_npz], ids=["torch", "npz"])
def test_what_was_learned_is_saved_and_loaded(through, tmp_path):
    with many(DummyVecEnv(WALKS)) as envs, many(DummyVecEnv(WALKS[:2])) as other:
        play(envs)
        saved = through(envs.state_dict(), tmp_path / "state.npz")
        other.load_state_dict(saved)
        assert other.state_dict() == envs.state_dict()
        assert len(saved) == 8
        other.freeze()
        assert not any(transform.training for transform in other.transforms)
        other.reset(seed=9)
        for _ in range(5):
            other.step(STILL[:2])
        assert other.state_dict() == envs.state_dict()


def test_going_on_from_what_was_saved_is_going_on():
    with many(DummyVecEnv(WALKS)) as envs, many(DummyVecEnv(WALKS)) as other:
        play(envs)
        other.load_state_dict(envs.state_dict())
        for each_one in (envs, other):
            play(each_one, seed=5)
        assert envs.count == other.count
        assert envs.state_dict() == other.state_dict()


def test_frozen_environments_for_tests_are_kept_in_step_with_those_that_learn():
    with (
        many(DummyVecEnv(WALKS)) as envs,
        StackObservations(NormalizeObservations(DummyVecEnv(WALKS[:3])), 2) as tests,
    ):
        play(envs)
        tests.sync_from(envs)
        tests.freeze()
        obs, _ = tests.reset(seed=8)
        assert tests.count == envs.count
        assert tests.mean.tolist() == envs.mean.tolist()
        envs.freeze()
        assert obs.tolist() == envs.reset(seed=8)[0][:3].tolist()
        with pytest.raises(
            ValueError, match="expected statistics of NormalizeObservations and NormalizeRe"
        ):
            envs.sync_from(tests)
        with pytest.raises(TypeError, match="other: expected a transform, got DummyVecEnv"):
            tests.sync_from(DummyVecEnv(WALKS))


def with_parts(state, **parts):
    names = {key.replace("_", ".", 1): value for key, value in parts.items()}
    assert names.keys() <= state.keys()
    return {**state, **names}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            lambda s: {},
            r"expected statistics of NormalizeObservations and Norm.*, got those of no tran",
        ),
        (
            lambda s: {k: v for k, v in s.items() if "Rewards" in k},
            r"expected statistics of NormalizeObs.* and NormalizeRewards, got those of NormalizeR",
        ),
        (
            lambda s: {**s, "Other.count": 1},
            r"got those of NormalizeObservations and NormalizeRewards and Other",
        ),
        (
            lambda s: with_parts(s, NormalizeObservations_mean=[0.0] * 4),
            r"mean and squares: expected shape \(3,\), got \(4,\) and \(3,\)",
        ),
        (
            lambda s: with_parts(s, NormalizeRewards_squares=-1.0),
            "non-negative sums of squared deviations, got",
        ),
        (
            lambda s: with_parts(s, NormalizeObservations_squares=[1.0, np.inf, 1.0]),
            "finite, non-negative sums",
        ),
        (lambda s: with_parts(s, NormalizeObservations_mean=[np.nan] * 3), "finite means"),
        (lambda s: with_parts(s, NormalizeRewards_count=-1), "expected a non-negative count"),
        (
            lambda s: {k: v for k, v in s.items() if not k.endswith("Rewards.count")},
            r"expected the keys NormalizeRewards\.count, NormalizeRewards\.environment, "
            r".*got NormalizeRewards\.environment, NormalizeRewards\.mean",
        ),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_has_changed(change, expected):
    with many(DummyVecEnv(WALKS)) as envs:
        state = play(envs).state_dict()
        with pytest.raises(ValueError, match=expected):
            envs.load_state_dict(change(play(envs, 3).state_dict()))
        assert envs.count == state["NormalizeObservations.count"] + 6 * 4 + 3


def test_what_was_learned_in_other_environments_is_refused_naming_both():
    def of(env_id):
        return NormalizeObservations(DummyVecEnv([lambda: Gym_Env(env_id)] * 2))

    with of("Pendulum-v1") as envs, of("MountainCarContinuous-v0") as others:
        with pytest.raises(
            ValueError, match=r"learned in Pendulum-v1, got those of MountainCarContinuous-v0"
        ):
            envs.load_state_dict(others.state_dict())
        with pytest.raises(
            ValueError, match=r"learned in MountainCarContinuous-v0, got those of Pendulum-v1"
        ):
            others.sync_from(envs)


@pytest.mark.parametrize(
    ("wrap", "changed"),
    [
        (lambda envs: StackObservations(envs, 2, keys=["place"]), [1, 1, 1, 1]),
        (lambda envs: NormalizeObservations(envs, keys=["place"]), [0, 0]),
    ],
    ids=["stacked", "normalized"],
)
def test_parts_stay_with_their_keys_in_any_order(wrap, changed):
    class Unsorted(Walk):
        def __init__(self):
            super().__init__(5)
            box = spaces.Box(-9, 9, (2,), np.float32)
            pairs = [("place", box), ("aim", spaces.Dict([("z", box), ("a", box)]))]
            self.observation_space = spaces.Dict(pairs)

        def seen(self):
            return {"place": np.ones(2), "aim": {"z": np.full(2, 2), "a": np.full(2, 3)}}

    with wrap(DummyVecEnv([Unsorted])) as envs:
        obs, _ = envs.reset()
        for _ in range(5):
            assert obs["place"].tolist() == [changed]
            assert obs["aim"]["z"].tolist() == [[2, 2]]
            assert obs["aim"]["a"].tolist() == [[3, 3]]
            assert list(obs) == list(envs.observation_space) == ["place", "aim"]
            obs, *_ = envs.step(STILL[:1])


def test_two_of_a_kind_are_told_apart():
    class InParts(Walk):
        def __init__(self, length):
            super().__init__(length)
            self.observation_space = spaces.Dict(
                {"a": self.observation_space, "b": self.observation_space}
            )

        def seen(self):
            return {"a": self.place, "b": -self.place}

    def of():
        envs = DummyVecEnv([partial(InParts, length) for length in LENGTHS])
        return NormalizeObservations(NormalizeObservations(envs, keys=["a"]), clip=5.0, keys=["b"])

    with of() as envs, of() as other:
        state = play(envs).state_dict()
        assert {key.partition(".")[0] for key in state} == {
            "NormalizeObservations",
            "NormalizeObservations-2",
        }
        other.load_state_dict(state)
        assert other.state_dict() == state
        assert other.mean["b"].tolist() == envs.mean["b"].tolist()


# --- what takes them ----------------------------------------------------------------------------


def test_gymnasiums_wrappers_take_them():
    walks = ReferenceWalks()
    with many(DummyVecEnv(WALKS)) as direct:
        direct.reset(seed=0)
        vector_env = gymnasium.wrappers.vector.RecordEpisodeStatistics(
            to_gymnasium(many(DummyVecEnv(WALKS)))
        )
        walks.reset(0)
        vector_env.reset(seed=0)
        for _ in range(9):
            told = walks.step()
            obs, rewards, *_, right = direct.step(STILL)
            got_obs, got_rewards, _, _, infos = vector_env.step(STILL)
            np.testing.assert_array_equal(np.float32(got_rewards), rewards)
            for i in range(NUM_WALKS):
                expected = right[i]["reset_obs"] if i in told.ended else obs[i]
                assert got_obs[i].tolist() == expected.tolist()
            for i in told.ended:
                assert infos["final_obs"][i].tolist() == obs[i].tolist()
                assert infos["final_info"]["episode"]["l"][i] == right[i]["episode"]["l"]
        vector_env.close()


def test_rollouts_are_made_of_them():
    torch = pytest.importorskip("torch")
    from xuance_envs import RolloutCollector

    class Idle:
        def get_actions_and_values(self, states, actions=None):
            zeros = torch.zeros(len(states))
            return torch.zeros(len(states), 2), zeros, zeros, zeros

    walks = ReferenceWalks()
    with many(DummyVecEnv(WALKS, copy=False)) as direct:
        walks.reset(0)
        first, _ = direct.reset(seed=0)
        with RolloutCollector(
            many(DummyVecEnv(WALKS, copy=False)), Idle(), 8, device="cpu", seed=0
        ) as collector:
            collector.rollout()
            states, returns, sums = first.copy(), [], np.zeros(NUM_WALKS)
            for t in range(8):
                assert collector.states[t].tolist() == states.tolist()
                told = walks.step()
                obs, rewards, *_, infos = direct.step(STILL)
                assert collector.rewards[t].tolist() == rewards.tolist()
                states = obs.copy()
                sums += told.rewards
                for i in told.ended:
                    states[i] = infos[i]["reset_obs"]
                    returns.append(sums[i])
                    sums[i] = 0
            assert collector.finished_ep_returns == pytest.approx(returns)
