"""What can be done beside rollouts: resets, single steps, a test of the agent, closing."""

from __future__ import annotations

import copy
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from example_envs import InterruptingEnv, NamedEnv, ReusingEnv
from gymnasium import spaces
from PIL import Image
from play_envs import PlayEnv
from rollout_reference import Player

from xuance_envs import (
    ClosedVecEnvError,
    DummyVecEnv,
    DummyVecEnv_Gym,
    Gym_Env,
    RolloutCollector,
    StateError,
    SyncVecEnv,
)
from xuance_envs.rollout import GifRecorder


class PicturedEnv(PlayEnv):
    """Its episodes take some steps each, and it renders pictures."""

    render_mode = "rgb_array"

    def __init__(self, length):
        super().__init__(0, VECTOR, TWO, (length,), ("terminated",))

    def render(self):
        return np.full((20, 30, 3), self.steps, np.uint8)


VECTOR = spaces.Box(-1, 1, (3,), np.float32)
TWO = spaces.Discrete(2)
ZEROS = torch.zeros(2, dtype=torch.int64)
MASKED = np.ma.masked_array([0, 1], [False, True])


@pytest.fixture
def collector():
    """Two environments: episodes of the first take two steps, those of the second are endless."""
    functions = [partial(PlayEnv, i, VECTOR, TWO, (length,)) for i, length in enumerate((2, 99))]
    with RolloutCollector(DummyVecEnv(functions), Player(TWO), 3) as collector:
        yield collector


def resets(collector):
    return [len(env.resets) for env in collector.vec_env.envs]


def shown_by(observation):
    return torch.from_numpy(np.array(observation, np.float32))


def test_a_collector_resets_once_and_then_only_where_episodes_end(collector):
    assert resets(collector) == [1, 1]
    collector.rollout()
    assert resets(collector) == [2, 1]


def test_a_seed_is_that_of_the_first_reset():
    functions = [partial(PlayEnv, i, VECTOR, TWO) for i in range(2)]
    with RolloutCollector(DummyVecEnv(functions), Player(TWO), 2, seed=7) as collector:
        assert [env.resets for env in collector.vec_env.envs] == [[7], [8]]


def test_vec_step_returns_the_last_states_and_goes_on_from_the_first(collector):
    collector.vec_step(ZEROS)
    states, rewards, done, truncated = collector.vec_step(ZEROS)
    first, second = collector.vec_env.envs
    assert (states.shape, states.dtype) == ((2, 3), torch.float32)
    assert (rewards.shape, rewards.dtype) == ((2,), torch.float32)
    assert (done.tolist(), truncated.tolist()) == ([1, 0], [0, 0])
    assert done.dtype == truncated.dtype == torch.int32
    assert rewards[1] == pytest.approx(second.score - collector_first_reward(1), abs=1e-6)
    assert not torch.equal(states[0], collector.t_states[0])
    assert torch.equal(states[1], collector.t_states[1])
    assert first.steps == 0
    assert collector.global_steps == 4


def collector_first_reward(number):
    return float(np.random.default_rng(number).normal())


def test_what_vec_step_returned_is_not_changed_by_later_steps(collector):
    kept = collector.vec_step(ZEROS)
    copies = [tensor.clone() for tensor in kept]
    for _ in range(3):
        collector.vec_step(ZEROS)
    assert all(torch.equal(a, b) for a, b in zip(kept, copies, strict=True))


def test_env_reset_after_an_end_gives_the_state_that_is_there(collector):
    for _ in range(2):
        collector.vec_step(ZEROS)
    assert resets(collector) == [2, 1]
    for _ in range(2):
        state = collector.env_reset(0)
        assert torch.equal(state, collector.t_states[0])
    assert resets(collector) == [2, 1]


def test_env_reset_within_an_episode_resets_that_environment_only(collector):
    before = collector.t_states.clone()
    collector.vec_step(ZEROS)
    moved = collector.t_states.clone()
    state = collector.env_reset(1)
    assert state.shape == (3,)
    assert resets(collector) == [1, 2]
    assert torch.equal(collector.t_states[1], state)
    assert torch.equal(collector.t_states[0], moved[0])
    assert not torch.equal(state, moved[1])
    assert not torch.equal(state, before[1])
    collector.env_reset(env_id=-1)
    assert resets(collector) == [1, 3]
    with pytest.raises(IndexError, match="env_id: expected an index into 2 environments, got 2"):
        collector.env_reset(2)


def test_a_rollout_goes_on_from_single_steps_and_resets(collector):
    collector.vec_step(ZEROS)
    collector.env_reset(1)
    start = collector.t_states.clone()
    collector.rollout()
    assert torch.equal(collector.states[0], start)
    assert collector.done_flags[:, 0].tolist() == [1, 0, 0]  # it was in the middle of two steps


def test_vec_reset_starts_every_episode_again(collector):
    collector.vec_step(ZEROS)
    states = collector.vec_reset()
    assert resets(collector) == [2, 2]
    assert states is collector.t_states
    collector.rollout()
    assert collector.rolling_ep_lengths == [[2], []]
    assert torch.equal(collector.states[0], states)


def test_steps_of_an_episode_that_was_reset_do_not_count(collector):
    collector.vec_step(ZEROS)
    collector.env_reset(0)
    for _ in range(2):
        collector.vec_step(ZEROS)
    assert collector.rolling_ep_lengths == [[2], []]


@pytest.mark.parametrize(
    "actions",
    [torch.zeros(3), torch.zeros((2, 2)), torch.tensor([0.5, 0.0]), [0, float("nan")], MASKED],
)
def test_actions_that_do_not_fit_are_refused_and_nothing_happens(collector, actions):
    with pytest.raises(ValueError, match="actions"):
        collector.vec_step(actions)
    assert collector.global_steps == 0
    collector.vec_step([0, 1])
    assert collector.global_steps == 2


def test_actions_of_a_discrete_space_may_come_as_a_column(collector):
    collector.vec_step(torch.tensor([[0], [1]]))
    collector.vec_step(np.array([[1], [0]]))
    assert [env.received for env in collector.vec_env.envs] == [[0, 1], [1, 0]]
    assert all(action.shape == () for env in collector.vec_env.envs for action in env.received)


def test_without_a_finished_episode_statistics_are_nan(collector):
    names = ("mean", "lower", "median", "upper", "max")
    for name in (*(f"{n}_ep_return" for n in names), "mean_ep_length", "median_ep_length"):
        assert np.isnan(getattr(collector, name)), name
    assert collector.rolling_ep_returns == collector.rolling_ep_lengths == [[], []]


def test_returns_are_listed_in_the_order_in_which_episodes_finished(collector):
    collector.rollout()
    assert collector.finished_ep_returns == collector.rolling_ep_returns[0]
    collector.rollout()
    assert collector.finished_ep_returns == collector.rolling_ep_returns[0][1:]


def test_advantages_need_a_rollout(collector):
    with pytest.raises(RuntimeError, match="call rollout first"):
        collector.advantages(0.99, 0.95)


def test_after_an_interrupt_everything_begins_again():
    import os

    functions = [partial(InterruptingEnv, os.getpid()), partial(InterruptingEnv, os.getpid())]
    envs = DummyVecEnv(functions)
    with RolloutCollector(envs, Player(spaces.Discrete(100)), 4) as collector:
        collector.rollout()
        envs.envs[1].armed = "step"
        with pytest.raises(KeyboardInterrupt):
            collector.rollout()
        collector.rollout()
        assert collector.states[0, :, 1].tolist() == [0, 0], "not the first states of episodes"
        assert collector.global_steps <= 4 * 2 * 3


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("reset", lambda collector, _: collector.vec_reset()),
        ("reset", lambda collector, _: collector.env_reset(0)),
        ("load_state", lambda collector, state: collector.load_state_dict(state)),
    ],
    ids=["vec_reset", "env_reset", "load_state_dict"],
)
def test_after_an_interrupted_reset_or_load_everything_begins_again(name, use):
    envs = DummyVecEnv([ReusingEnv, ReusingEnv])
    method = getattr(envs, name)

    def interrupted(*arguments, **keywords):
        method(*arguments, **keywords)
        raise KeyboardInterrupt

    with RolloutCollector(envs, Player(spaces.Discrete(100)), 1) as collector:
        collector.rollout()
        state = collector.state_dict()
        collector.vec_step(ZEROS)
        setattr(envs, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            use(collector, state)
        delattr(envs, name)
        episode = [env.observation[0] + 1 for env in envs.envs]
        collector.rollout()
        assert collector.states[0, :, 0].tolist() == episode
        assert collector.states[0, :, 1].tolist() == [0, 0]


def test_a_refused_state_leaves_the_episodes_as_they_are(collector):
    with RolloutCollector(DummyVecEnv([ReusingEnv] * 2), Player(TWO), 2) as other:
        state = other.state_dict()
    collector.vec_step(ZEROS)
    with pytest.raises(StateError):
        collector.load_state_dict(state)
    collector.vec_step(ZEROS)
    assert resets(collector) == [2, 1]


# --- the test of an agent -----------------------------------------------------------------------


@pytest.mark.parametrize(("render_every", "pictures"), [(1, 5), (2, 3), (9, 1)])
def test_an_agent_is_pictured_every_so_many_steps(render_every, pictures, capsys):
    class Seen(NamedEnv):
        steps = 0

        def step(self, action):
            Seen.steps += 1
            return super().step(action)

    envs = DummyVecEnv([lambda: Seen(10), lambda: Seen(20)])
    with RolloutCollector(envs, Player(TWO), 5) as collector:
        resets = []
        envs.reset, reset = (
            lambda **kwargs: (resets.append(Seen.steps), reset(**kwargs))[1],
            (envs.reset),
        )
        collector.test_agent(render_every)
        assert resets == [0, 10]
        assert [len(images) for images in collector.images] == [pictures] * 2
        for images, colour in zip(collector.images, (10, 20), strict=True):
            assert all(isinstance(image, Image.Image) for image in images)
            assert images[0].getpixel((0, 0)) == (colour,) * 3
    bar = capsys.readouterr().err
    assert "Recording" in bar
    assert "5/5" in bar, "it counts steps"


def test_a_test_is_neither_counted_nor_recorded(tmp_path):
    envs = DummyVecEnv([partial(PicturedEnv, 4), partial(PicturedEnv, 99)])
    recorder = GifRecorder(1000, folder=tmp_path)
    with RolloutCollector(envs, Player(TWO), 3, recorder=recorder) as collector:
        collector.rollout()
        collector.test_agent(1)
        assert collector.global_steps == 6
        assert len(collector.images[0]) == 3
        assert recorder.count == 0
        for _ in range(2):
            collector.rollout()  # the first episode was cut off, so the next is recorded
        assert collector.global_steps == 18
    with Image.open(recorder.paths[0]) as film:
        assert film.n_frames == 4
    assert recorder.count == 1


def test_after_a_test_that_raised_everything_begins_again(tmp_path):
    envs = DummyVecEnv([partial(PicturedEnv, 4)])
    recorder = GifRecorder(1000, folder=tmp_path)
    with RolloutCollector(envs, Player(TWO), 6, recorder=recorder) as collector:
        collector.vec_step(ZEROS[:1])
        (env,) = envs.envs
        env.render = lambda: None if env.steps == 2 else PicturedEnv.render(env)
        with pytest.raises(ValueError, match="render_mode='rgb_array'"):
            collector.test_agent(1)
        del env.render
        assert collector.global_steps == 1
        assert collector.recorder is recorder
        collector.rollout()
        assert collector.done_flags[:, 0].tolist() == [0, 0, 0, 1, 0, 0]
    with Image.open(recorder.paths[0]) as film:
        assert film.n_frames == 4


def test_an_agent_plays_on_after_the_end_of_an_episode():
    pytest.importorskip("pygame")
    functions = [partial(Gym_Env, "CartPole-v1", render_mode="rgb_array")] * 2
    with RolloutCollector(DummyVecEnv_Gym(functions), Player(TWO), 60, seed=0) as collector:
        collector.test_agent(30)
        assert [image.size for image in collector.images[0]] == [(600, 400)] * 2
        assert all(collector.rolling_ep_returns)


def test_a_test_needs_environments_that_render_and_a_positive_number():
    with RolloutCollector(DummyVecEnv([partial(NamedEnv, 1)]), Player(TWO), 5) as collector:
        with pytest.raises(ValueError, match="render_every"):
            collector.test_agent(0)
        collector.vec_env.envs[0].render = lambda: None
        with pytest.raises(ValueError, match="render_mode='rgb_array'"):
            collector.test_agent(1)
        collector.rollout()


# --- progress, closing, and environments of its own ----------------------------------------------


@pytest.mark.parametrize("progress", [False, True])
def test_progress_is_shown_when_asked_for(progress, capsys):
    with RolloutCollector(DummyVecEnv([NamedEnv]), Player(TWO), 5, progress=progress) as collector:
        collector.rollout()
    assert ("rollout" in capsys.readouterr().err) == progress


def test_closing_closes_the_environments(collector):
    collector.close()
    collector.close()
    assert collector.vec_env.closed
    with pytest.raises(ClosedVecEnvError):
        collector.rollout()


def test_a_copy_would_step_the_same_environments(collector):
    with pytest.raises(TypeError, match="cannot pickle or copy RolloutCollector"):
        copy.copy(collector)


@pytest.mark.parametrize("options", [{}, {"backend": "subproc", "context": "forkserver"}])
def test_environments_of_its_own_are_made_and_closed(options):
    def env_fn():
        return gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))

    envs = SyncVecEnv(env_fn, 3, 30, agent=Player(TWO), seed=4, window=2, **options)
    assert (envs.num_envs, envs.steps_per_env, envs.device) == (3, 30, torch.device("cpu"))
    with (
        RolloutCollector(DummyVecEnv([env_fn] * 3), Player(TWO), 30, seed=4, window=2) as collector,
        envs,
    ):
        for _ in range(3):
            envs.rollout()
            collector.rollout()
            assert torch.equal(envs.states, collector.states)
            assert envs.rolling_ep_returns == collector.rolling_ep_returns
        assert [len(returns) for returns in envs.rolling_ep_returns] == [2] * 3
    assert envs.vec_env.closed


def test_any_callable_is_a_backend():
    made = []

    def backend(env_fns, **options):
        made.append(options)
        return DummyVecEnv(env_fns, **options)

    with SyncVecEnv(NamedEnv, 2, 3, agent=Player(TWO), backend=backend, check_actions=True) as envs:
        envs.rollout()
    assert made == [{"check_actions": True}]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"num_envs": 0}, "num_envs"),
        ({"backend": "threads"}, "'dummy', 'subproc'"),
        ({"render_every": 5, "render_fps": 0}, "fps"),
        ({"state_dtype": torch.uint8}, "state_dtype"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, said):
    closed = []

    class Noting(NamedEnv):
        def close(self):
            closed.append(True)

    arguments = {"num_envs": 2, "steps_per_env": 3, "agent": Player(TWO), **arguments}
    with pytest.raises(ValueError, match=said):
        SyncVecEnv(Noting, **arguments)
    assert len(closed) == (2 if said == "state_dtype" else 0), "made in vain, or not closed"


# --- the programs whose name it has --------------------------------------------------------------


AGENT = Player(TWO)


@pytest.mark.parametrize(
    ("in_order", "by_name", "expected"),
    [
        ((AGENT,), {}, (0, 30.0)),
        ((AGENT, 500), {}, (500, 30.0)),
        ((AGENT, 500, 25), {}, (500, 25)),
        ((AGENT,), {"render_fps": 12.5, "render_every": 9}, (9, 12.5)),
        ((500, 25.0, AGENT), {}, (500, 25.0)),
        ((np.int64(500), np.float32(25), AGENT), {}, (500, 25.0)),
        ((1e4, 25, AGENT), {}, (1e4, 25)),
        ((0, 25, AGENT), {}, (0, 25)),
        ((500, 25), {"agent": AGENT}, (500, 25)),
        ((500,), {"agent": AGENT, "render_fps": 25}, (500, 25)),
        ((), {"agent": AGENT, "render_every": 500, "render_fps": 25}, (500, 25)),
        ((), {"agent": AGENT}, (0, 30.0)),
    ],
)
def test_the_agent_comes_first_or_last(in_order, by_name, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with SyncVecEnv(partial(PicturedEnv, 4), 2, 3, *in_order, **by_name, seed=1) as envs:
        assert envs.agent is AGENT
        assert envs.render_fps == expected[1]
        assert envs.can_record == envs.is_recording == (expected[0] > 0)
        assert envs.render_every == (expected[0] or 1)
        envs.rollout()


@pytest.mark.parametrize(
    ("in_order", "by_name", "got"),
    [
        ((), {}, "none"),
        ((None,), {}, "NoneType"),
        ((500,), {}, "int"),
        ((500, AGENT), {}, "int, Player"),
        ((500, AGENT, 25), {}, "int, Player, int"),
        ((500, "25", AGENT), {}, "int, str, Player"),
        ((500, 25, AGENT, 1), {}, "int, int, Player, int"),
        ((500, 25, Player), {"agent": AGENT}, "int, int, type, agent: Player"),
        ((AGENT, "500"), {}, "Player, str"),
        ((AGENT, 500, 25, 1), {}, "Player, int, int, int"),
        ((AGENT,), {"agent": AGENT}, "Player, agent: Player"),
        ((), {"render_every": 500, "render_fps": 25}, "render_every: int, render_fps: int"),
        ((), {"agent": "me"}, "agent: str"),
    ],
)
def test_arguments_in_any_other_order_are_refused_with_both_that_there_are(in_order, by_name, got):
    made = []
    with pytest.raises(TypeError) as raised:
        SyncVecEnv(lambda: made.append(1), 2, 3, *in_order, **by_name)
    said = str(raised.value)
    assert "(env_fn, num_envs, steps_per_env, agent, " in said
    assert "(env_fn, num_envs, steps_per_env, render_every, render_fps, agent)" in said
    assert said.endswith(f"steps_per_env were: {got}")
    assert not made


def test_environments_and_the_turning_of_images_have_their_names():
    image = spaces.Box(0, 255, (8, 6, 3), np.uint8)
    with SyncVecEnv(partial(PlayEnv, 1, image, TWO), 2, 3, AGENT) as envs:
        assert [type(env) for env in envs.envs] == [PlayEnv, PlayEnv]
        assert envs.permute_state_fn(np.zeros((8, 6, 3))).shape == (3, 8, 6)
    with SyncVecEnv(partial(PlayEnv, 1, VECTOR, TWO), 2, 3, AGENT) as envs:
        state = np.zeros(3)
        assert envs.permute_state_fn(state) is state


def test_environments_in_workers_are_not_at_hand():
    options = {"backend": "subproc", "context": "forkserver"}
    with SyncVecEnv(NamedEnv, 2, 3, AGENT, **options) as envs:
        assert not hasattr(envs, "envs")
        with pytest.raises(AttributeError, match="envs"):
            _ = envs.envs


def test_statistics_over_a_hundred_episodes_are_those_that_the_environments_record():
    lengths = (1, 3, 1, 1, 2)

    def env_fn():
        env = PlayEnv(len(made), VECTOR, TWO, lengths[len(made) :])
        made.append(env)
        return gymnasium.wrappers.RecordEpisodeStatistics(env)

    made = []
    best = -np.inf
    with SyncVecEnv(env_fn, 3, 60, 0, 30.0, AGENT, window=100) as envs:
        for _ in range(6):
            envs.rollout()
            returns = [r for env in envs.envs for r in env.return_queue]
            lengths_there = [n for env in envs.envs for n in env.length_queue]
            best = max(best, *returns)
            assert envs.max_ep_return == pytest.approx(best)
            found = envs.lower_ep_return, envs.median_ep_return, envs.upper_ep_return
            assert found == pytest.approx(np.percentile(returns, [5, 50, 95]))
            assert envs.median_ep_length == np.median(lengths_there)
        assert [len(env.return_queue) for env in envs.envs] == [100] * 3
