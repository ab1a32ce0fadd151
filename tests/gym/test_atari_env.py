"""`Atari_Env`: what it is called with, what it says of itself, and how its games go."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

ale_py = pytest.importorskip("ale_py")
cv2 = pytest.importorskip("cv2")

from plain_atari import PlainAtari

from xuance_envs import Atari_Env, LazyFrames
from xuance_envs.gym.atari_games import UnknownGameError, closest_games

FIRE = 1  # its place among the actions of Breakout


def make(game: str = "Breakout", **kwargs: Any) -> Atari_Env:
    return Atari_Env(game, **{"seed": 0, "image_size": 84, **kwargs})


def lose_a_life(env: Atari_Env) -> tuple[Any, ...]:
    """Serve in Breakout and let the ball pass; the step that lost the life."""
    while True:
        result = env.step(FIRE)
        if result[2]:
            return result


def play_to_the_end(env: Atari_Env) -> tuple[list[tuple[Any, ...]], list[dict[str, Any]]]:
    """Play a game of Breakout to its end; its steps, and the infos of the resets in between."""
    steps, resets = [], []
    while True:
        steps.append(env.step(FIRE))
        *_, info = steps[-1]
        if info["game_over"]:
            return steps, resets
        if steps[-1][2]:
            resets.append(env.reset()[1])


# --- ids and arguments --------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", ["ALE/Breakout-v5", "Breakout-v5", "Breakout"])
def test_ids_and_their_short_forms_are_one_game(env_id: str) -> None:
    assert Atari_Env(env_id).spec.id == "ALE/Breakout-v5"


def test_another_id_that_ale_py_knows_is_taken_as_it_is() -> None:
    assert Atari_Env("BreakoutNoFrameskip-v4").spec.id == "BreakoutNoFrameskip-v4"


@pytest.mark.parametrize(
    ("env_id", "closest"),
    [
        ("Brekout", "Breakout"),
        ("ALE/Pongg-v5", "Pong"),
        ("space_invaders-v5", "SpaceInvaders"),
        ("mspacman", "MsPacman"),
        ("CartPole-v1", "expected"),
    ],
)
def test_an_unknown_game_is_an_error_with_the_closest_names(env_id: str, closest: str) -> None:
    with pytest.raises(UnknownGameError, match=f"(?i){closest}") as caught:
        Atari_Env(env_id)
    assert env_id in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, gymnasium.error.Error)


def test_the_closest_names_come_closest_first() -> None:
    assert closest_games("Pacman")[0] == "Pacman"
    assert set(closest_games("Pacmann")) >= {"Pacman", "MsPacman"}


@pytest.mark.parametrize(
    ("argument", "value", "said"),
    [
        ("obs_type", "gray", "grayscale"),
        ("render_mode", "ansi", "rgb_array"),
        ("frame_skip", 0, "at least 1"),
        ("frame_skip", (4, 4), "low < high"),
        ("frame_skip", (1, 2, 3), "pair"),
        ("frame_skip", 2.5, "int"),
        ("num_stack", 0, "at least 1"),
        ("noop_max", -1, "at least 0"),
        ("image_size", 0, "height, width"),
        ("image_size", (84, 84, 3), "height, width"),
        ("image_size", "84", "height, width"),
        ("repeat_action_probability", 1.5, "from 0 to 1"),
        ("continuous", True, "Gym_Env"),
    ],
)
def test_a_wrong_argument_is_named_with_what_was_expected(
    argument: str, value: Any, said: str
) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        Atari_Env("Breakout", **{argument: value})
    assert argument in str(caught.value)


# --- observations -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kwargs", "shape"),
    [
        ({}, (210, 160, 4)),
        ({"image_size": 84}, (84, 84, 4)),
        ({"image_size": (64, 96)}, (64, 96, 4)),
        ({"image_size": [64, 96], "num_stack": 2}, (64, 96, 2)),
        ({"obs_type": "rgb", "image_size": (100, 50), "num_stack": 3}, (100, 50, 9)),
        ({"obs_type": "rgb", "num_stack": 1}, (210, 160, 3)),
        ({"obs_type": "ram"}, (512,)),
        ({"obs_type": "ram", "num_stack": 1, "image_size": 84}, (128,)),
    ],
)
def test_observations_are_in_the_space_that_the_arguments_say(
    kwargs: dict[str, Any], shape: tuple[int, ...]
) -> None:
    env = Atari_Env("Pong", **kwargs)
    assert env.observation_space.shape == shape
    assert env.observation_space.dtype == np.uint8
    observation, _ = env.reset()
    for _ in range(3):
        assert isinstance(observation, LazyFrames)
        assert np.asarray(observation) in env.observation_space
        assert observation.shape == shape
        assert observation.dtype == np.uint8
        observation, *_ = env.step(env.action_space.sample())


def test_observations_are_snapshots() -> None:
    env = make("Pong")
    kept = [env.reset()[0]]
    copies = [np.asarray(kept[0])]
    for _ in range(20):
        kept.append(env.step(env.action_space.sample())[0])
        copies.append(np.asarray(kept[-1]))
    for observation, copy in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(observation, copy)


# --- what it says of itself ---------------------------------------------------------------------


def test_what_a_game_says_of_itself() -> None:
    env = make()
    assert env.max_episode_steps == 27_000
    assert env.reward_range == (-1.0, 1.0)
    assert env.render_mode == "rgb_array"
    assert (env.num_stack, env.was_real_done) == (4, True)
    assert (env.obs_type, env.grayscale, env.rgb) == ("grayscale", True, False)
    assert (make(obs_type="rgb").rgb, make(obs_type="ram").grayscale) == (True, False)
    assert env.action_space == gymnasium.spaces.Discrete(4)
    assert make(clip_reward=False).reward_range == (-np.inf, np.inf)


@pytest.mark.parametrize(
    ("kwargs", "limit"),
    [
        ({"frame_skip": 3}, 36_000),
        ({"frame_skip": (2, 5)}, 54_000),
        ({"max_num_frames_per_episode": 1_002}, 251),
        ({"max_episode_steps": 20}, 20),
        ({"max_num_frames_per_episode": 0}, None),
    ],
)
def test_the_step_limit_is_what_the_emulators_limit_allows(
    kwargs: dict[str, Any], limit: int | None
) -> None:
    assert make(**kwargs).max_episode_steps == limit


def test_the_full_action_space_has_18_actions() -> None:
    env = make(full_action_space=True, repeat_action_probability=0.0)
    assert env.action_space == gymnasium.spaces.Discrete(18)
    env.reset()
    env.step(17)


@pytest.mark.parametrize("key", ["mode", "difficulty"])
def test_modes_and_difficulties_are_passed_on(key: str) -> None:
    def play(value: int) -> bytes:
        env = make("SpaceInvaders", **{key: value}, repeat_action_probability=0.0)
        env.reset()
        return b"".join(np.asarray(env.step(0)[0]).tobytes() for _ in range(60))

    assert play(0) != play(1)


# --- rendering ----------------------------------------------------------------------------------


def test_rendering_gives_the_screen_in_colour() -> None:
    env = make()
    env.reset()
    image = env.render()
    assert (image.shape, image.dtype) == ((210, 160, 3), np.uint8)
    np.testing.assert_array_equal(image, env.render("rgb_array"))
    np.testing.assert_array_equal(image, env.render(render_mode="rgb_array"))
    with pytest.warns(UserWarning, match="render_mode='human'"):
        np.testing.assert_array_equal(image, env.render("human"))
    with pytest.raises(ValueError, match="render_mode='ansi'"):
        env.render("ansi")


def test_a_window_is_opened_where_there_is_no_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setenv("SDL_AUDIODRIVER", "dummy")
    env = make(render_mode="human", noop_max=0, fire_on_reset=False)
    env.reset()
    env.step(0)
    assert env.render() is None
    env.close()
    env.close()


# --- how a game begins --------------------------------------------------------------------------


def test_the_number_of_noops_goes_from_none_to_the_most() -> None:
    env = make("Freeway", noop_max=2)
    frames = [0, *(env.reset()[1]["frame_number"] for _ in range(12))]  # of all games so far
    assert set(np.diff(frames)) == {0, 1, 2}


@pytest.mark.parametrize(
    ("game", "kwargs", "frames"),
    [
        ("Breakout", {}, 4),
        ("Breakout", {"frame_skip": 7}, 7),
        ("Breakout", {"fire_on_reset": False}, 0),
        ("MsPacman", {}, 0),
        ("MsPacman", {"full_action_space": True}, 0),
    ],
)
def test_fire_is_pressed_where_the_game_has_it(
    game: str, kwargs: dict[str, Any], frames: int
) -> None:
    env = make(game, noop_max=0, **kwargs)
    assert env.reset()[1]["frame_number"] == frames


def test_a_game_that_ends_before_it_begins_begins_again() -> None:
    env = make(noop_max=30, max_num_frames_per_episode=12, frame_skip=2)
    for _ in range(10):
        env.reset()
        assert env._ale.getEpisodeFrameNumber() < 12
    with pytest.raises(RuntimeError, match="limit of 3 frames"):
        make(max_num_frames_per_episode=3).reset()


def test_the_seed_is_used_once_and_then_the_stream_goes_on() -> None:
    def numbers(env: Atari_Env, seed: int | None) -> list[int]:
        counts = [env.reset(seed=seed)[1]["frame_number"]]
        for _ in range(4):
            before = counts[-1] if len(counts) == 1 else sum(counts)
            counts.append(env.reset()[1]["frame_number"] - before)
        return counts

    global_state = np.random.get_state()[1].tobytes()
    first = numbers(make("Freeway", seed=5), None)
    assert first == numbers(make("Freeway", seed=None), 5)
    assert np.random.get_state()[1].tobytes() == global_state
    assert len(set(first)) > 1
    assert make(seed=5).action_space.sample() == make(seed=5).action_space.sample()


def test_a_step_before_the_first_reset_is_an_error() -> None:
    with pytest.raises(gymnasium.error.ResetNeeded):
        make().step(0)


# --- how a game goes on and ends ----------------------------------------------------------------


def test_an_action_is_given_by_place_or_by_either_librarys_name() -> None:
    results = []
    for args, kwargs in [((2,), {}), ((), {"action": 2}), ((), {"actions": 2})]:
        env = make("Pong")
        env.reset()
        results.append([np.asarray(env.step(*args, **kwargs)[0]).tobytes() for _ in range(9)])
    assert results[0] == results[1] == results[2]


def test_a_lost_life_ends_the_episode_and_the_game_goes_on() -> None:
    env = make()
    env.reset()
    _, _, terminated, truncated, info = lose_a_life(env)
    assert (terminated, truncated) == (True, False)
    assert (info["lives"], info["game_over"], env.lifes, env.was_real_done) == (4, False, 4, False)

    observation, reset_info = env.reset()
    assert reset_info == {**info, "frame_number": info["frame_number"] + 4}, "a no-op, not counted"
    frame = np.asarray(observation)[..., -1]
    np.testing.assert_array_equal(observation, np.stack([frame] * 4, axis=-1))
    after, *_, next_info = env.step(0)
    assert next_info["episode_step"] == info["episode_step"] + 1
    np.testing.assert_array_equal(np.asarray(after)[..., :-1], np.asarray(observation)[..., 1:])


@pytest.mark.parametrize("arguments", [{"seed": 1}, {"options": {}}])
def test_a_reset_with_arguments_starts_a_new_game(arguments: dict[str, Any]) -> None:
    env = make()
    env.reset()
    lose_a_life(env)
    _, info = env.reset(**arguments)
    assert (info["lives"], info["episode_step"], info["episode_score"]) == (5, 0, 0.0)


def test_only_the_reset_right_after_a_lost_life_goes_on() -> None:
    env = make()
    env.reset()
    lose_a_life(env)
    env.step(0)
    assert env.reset()[1]["lives"] == 5
    lose_a_life(env)
    assert env.reset()[1]["lives"] == 4
    assert env.reset()[1]["lives"] == 5


def test_a_game_over_is_the_end_of_all_lives() -> None:
    env = make()
    env.reset()
    steps, resets = play_to_the_end(env)
    *_, last = steps
    _, _, terminated, truncated, info = last
    assert (terminated, truncated) == (True, True)
    assert (info["lives"], info["game_over"], env.was_real_done) == (0, True, True)
    assert [reset["lives"] for reset in resets] == [4, 3, 2, 1]
    assert info["episode_step"] == len(steps)
    assert sum(result[2] for result in steps) == 5
    assert env.reset()[1]["lives"] == 5


def test_a_game_over_need_not_be_truncated() -> None:
    env = make(truncate_on_game_over=False)
    env.reset()
    steps, _ = play_to_the_end(env)
    assert steps[-1][2:4] == (True, False)


def test_the_observation_at_a_game_over_shows_the_last_screen() -> None:
    env = make(max_pool=False)
    env.reset()
    play_to_the_end(env)
    screen = env.unwrapped.ale.getScreenGrayscale()
    shown = np.asarray(env._get_obs())[..., -1]
    np.testing.assert_array_equal(shown, cv2.resize(screen, (84, 84), interpolation=cv2.INTER_AREA))


@pytest.mark.parametrize("kwargs", [{"max_num_frames_per_episode": 80}, {"max_episode_steps": 20}])
def test_the_step_limit_truncates_and_does_not_terminate(kwargs: dict[str, Any]) -> None:
    env = make("Pong", noop_max=0, fire_on_reset=False, **kwargs)
    for _ in range(2):
        env.reset()
        flags = [env.step(0)[2:] for _ in range(20)]
        assert [flag[:2] for flag in flags] == [(False, False)] * 19 + [(False, True)]
        assert flags[-1][2]["game_over"] is False
        assert env.was_real_done
    assert env.reset()[1]["episode_step"] == 0


def test_a_subclass_has_its_own_observations_and_rewards() -> None:
    class Halved(Atari_Env):
        def observation(self, frame: Any) -> Any:
            assert frame.shape == (210, 160)
            return super().observation(frame) // 2

        def reward(self, reward: float) -> float:
            return reward - 0.5

    own, usual = Halved("Breakout", seed=0, image_size=84), make(clip_reward=False)
    np.testing.assert_array_equal(own.reset()[0], np.asarray(usual.reset()[0]) // 2)
    for _ in range(30):
        mine, my_reward, *_ = own.step(2)
        theirs, reward, *_ = usual.step(2)
        np.testing.assert_array_equal(mine, np.asarray(theirs) // 2)
        assert my_reward == reward - 0.5


# --- all of it, by the letter -------------------------------------------------------------------

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("Breakout", {}),
    ("Breakout", {"frame_skip": (1, 6), "repeat_action_probability": 0.0}),
    ("Breakout", {"max_pool": False, "terminal_on_life_loss": False}),
    ("Breakout", {"frame_skip": 1, "truncate_on_game_over": False, "clip_reward": False}),
    ("SpaceInvaders", {"obs_type": "rgb", "image_size": (105, 80)}),
    ("SpaceInvaders", {"image_size": (64, 96), "frame_skip": 3, "mode": 1, "difficulty": 1}),
    ("MsPacman", {"frame_skip": (2, 5), "image_size": (250, 200)}),
    ("Qbert", {"image_size": None, "frame_skip": 2, "num_stack": 2}),
    ("Seaquest", {"max_num_frames_per_episode": 300, "noop_max": 60}),
    ("Asteroids", {"obs_type": "ram"}),
]


@pytest.mark.parametrize(
    ("game", "kwargs"),
    VARIANTS,
    ids=[f"{game}-{'-'.join(kw) or 'defaults'}" for game, kw in VARIANTS],
)
def test_every_step_is_as_the_letter_has_it(game: str, kwargs: dict[str, Any]) -> None:
    env, letter = make(game, seed=3, **kwargs), PlainAtari(game, 3, **kwargs)
    observation, info = env.reset()
    np.testing.assert_array_equal(observation, letter.observation())
    assert info == letter.info()
    rng, ends = np.random.default_rng(0), 0
    for step in range(250):
        action = rng.integers(env.action_space.n)
        observation, *rest = env.step(action)
        expected, *expected_rest = letter.step(action)
        assert rest == expected_rest, step
        assert type(rest[0]) is float
        np.testing.assert_array_equal(observation, expected, str(step))
        if rest[1] or rest[2]:
            ends += 1
            observation, info = env.reset()
            expected, expected_info = letter.reset()
            assert info == expected_info, step
            np.testing.assert_array_equal(observation, expected, str(step))
            if ends > 1 and step > 150:
                break
    assert ends or game == "Asteroids"
