"""Recordings: which episodes, what is on the frames, and where they are saved."""

from __future__ import annotations

import sys
import types
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image, ImageDraw
from rollout_reference import Player

from xuance_envs import DummyVecEnv, DummyVecEnv_Gym, Gym_Env, RolloutCollector, SyncVecEnv
from xuance_envs.rollout import GifRecorder, gif
from xuance_envs.rollout.recorder import image_of

TWO = spaces.Discrete(2)


class FilmEnv(gymnasium.Env):
    """Shows in grey how many steps it has made in all; its episodes take some steps each."""

    observation_space = spaces.Box(-1, 1, (1,))
    action_space = TWO
    render_mode = "rgb_array"

    def __init__(self, length=4, size=(60, 80, 3)):
        self.length = length
        self.size = size
        self.steps_ever = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        self.steps_ever += 1
        return np.zeros(1, np.float32), 1.5, self.steps == self.length, False, {}

    def render(self):
        return np.full(self.size, self.steps_ever % 256, np.uint8)


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    """A folder of its own for what is recorded, and no wandb."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    return tmp_path


def make(num_envs=1, length=4, steps=4, **options):
    return SyncVecEnv(partial(FilmEnv, length), num_envs, steps, Player(TWO), **options)


def greys(path):
    """The grey of the last pixel of each frame, far from the text."""
    with Image.open(path) as gif:
        found = []
        for number in range(gif.n_frames):
            gif.seek(number)
            found.append(gif.convert("RGB").getpixel((gif.width - 1, gif.height - 1))[0])
        return found


def saved(folder="renders/misc"):
    return sorted(path.name for path in Path(folder).glob("*"))


# --- which episodes -----------------------------------------------------------------------------


def test_the_first_episode_of_environment_0_is_recorded_frame_by_frame():
    with make(num_envs=3, render_every=1000) as envs:
        for _ in range(5):
            envs.rollout()
    assert saved() == ["render_0.gif"]
    assert greys("renders/misc/render_0.gif") == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("render_every", "firsts"),
    [
        (1, range(0, 40, 4)),
        (8, range(0, 40, 8)),
        (10, [0, 12, 20, 32]),
        (6, [0, 8, 12, 20, 24, 32, 36]),
    ],
)
def test_then_one_is_recorded_whenever_so_many_steps_have_gone_by(render_every, firsts):
    with make(render_every=render_every, steps=40) as envs:
        envs.rollout()
    names = [f"render_{k}.gif" for k in range(len(firsts))]
    assert saved() == sorted(names)
    assert [greys(f"renders/misc/{name}")[0] for name in names] == list(firsts)


def test_steps_of_all_environments_count():
    with make(num_envs=4, render_every=32, steps=40) as envs:
        envs.rollout()
    assert [greys(f"renders/misc/{name}")[0] for name in saved()] == [0, 8, 16, 24, 32]


def test_a_recording_goes_on_over_rollouts_and_is_saved_when_the_episode_ends():
    with make(length=10, steps=3, render_every=1000) as envs:
        for _ in range(3):
            envs.rollout()
            assert saved() == []
        envs.rollout()
        assert greys("renders/misc/render_0.gif") == list(range(10))


@pytest.mark.parametrize("reset", ["vec_reset", "env_reset"])
def test_an_episode_that_was_cut_off_is_dropped_and_the_next_recorded(reset):
    with make(length=4, steps=3, render_every=1000) as envs:
        envs.rollout()
        envs.vec_reset() if reset == "vec_reset" else envs.env_reset(0)
        for _ in range(4):
            envs.rollout()
    assert saved() == ["render_0.gif"]
    assert greys("renders/misc/render_0.gif") == [3, 4, 5, 6]


def test_a_loaded_state_without_a_recording_drops_it_and_the_next_episode_is_recorded():
    with make(length=10, steps=3, render_every=0) as envs:
        envs.rollout()
        state = envs.state_dict()
    with make(length=10, steps=3, render_every=1000) as envs:
        envs.rollout()
        envs.load_state_dict(state)
        for _ in range(6):
            envs.rollout()
    assert saved() == ["render_0.gif"]
    assert greys("renders/misc/render_0.gif") == list(range(10, 20))


@pytest.mark.parametrize("render_every", [0, -1, -1000.0])
def test_without_render_every_nothing_is_recorded(render_every):
    with make(steps=9, render_every=render_every) as envs:
        assert (envs.can_record, envs.is_recording, envs.record_episode) == (False, False, 0)
        assert envs.render_every == 1
        envs.rollout()
    assert not Path("renders").exists()


@pytest.mark.parametrize("render_every", [8, 8.0, np.int64(8)])
def test_what_is_recorded_is_told(render_every):
    with make(steps=3, render_every=render_every, render_fps=25.0) as envs:
        assert (envs.can_record, envs.render_every, envs.render_fps) == (True, 8, 25.0)
        assert saved("renders") == ["misc"], "the folder is there from the beginning"
        told = [(envs.is_recording, envs.record_episode)]
        for _ in range(4):
            envs.rollout()
            told.append((envs.is_recording, envs.record_episode))
    assert told == [(True, 0), (True, 0), (False, 1), (True, 1), (False, 2)]
    assert saved() == ["render_0.gif", "render_1.gif"]


def test_a_game_is_recorded_whole_not_life_by_life():
    class Lives(FilmEnv):
        def step(self, action):
            *step, terminated, truncated, _ = super().step(action)
            over = self.steps_ever % 8 == 0
            return *step, terminated, truncated, {"lives": 1 - over, "game_over": over}

    envs = DummyVecEnv([Lives])
    with RolloutCollector(envs, Player(TWO), 16, recorder=GifRecorder(1)) as collector:
        collector.rollout()
    assert greys("renders/misc/render_0.gif") == list(range(8))
    assert saved() == ["render_0.gif", "render_1.gif"]


# --- the frames ---------------------------------------------------------------------------------


def test_the_reward_so_far_is_drawn_on_each_frame(monkeypatch):
    drawn = []
    draw_text = ImageDraw.ImageDraw.text

    def note(self, place, text, *args, **kwargs):
        drawn.append(text)
        draw_text(self, place, text, *args, **kwargs)

    monkeypatch.setattr(ImageDraw.ImageDraw, "text", note)
    with make(render_every=1, steps=8) as envs:
        envs.rollout()
    assert drawn == [f"Total Reward: {reward:g}" for reward in (0, 1.5, 3, 4.5)] * 2
    with Image.open("renders/misc/render_0.gif") as gif:
        colours = gif.convert("RGB").getcolors()
    assert len(colours) > 1, "nothing was drawn on the plain frame"


@pytest.mark.parametrize(
    ("fps", "milliseconds"), [(30.0, 30), (10.0, 100), (50.0, 20), (500.0, 20)]
)
def test_frames_are_shown_at_the_given_rate(fps, milliseconds):
    with make(render_every=1000, render_fps=fps) as envs:
        envs.rollout()
    with Image.open("renders/misc/render_0.gif") as gif:
        assert gif.info["duration"] == milliseconds
        assert gif.info["loop"] == 0


@pytest.mark.parametrize("in_memory", [100, 1 << 25])
def test_every_step_has_a_frame_however_long_the_episode_is(in_memory, monkeypatch):
    monkeypatch.setattr(gif, "MAX_IN_MEMORY", in_memory)
    envs = DummyVecEnv([partial(FilmEnv, 300, (20, 30, 3))])
    recorder = GifRecorder(10_000, fps=10)
    with RolloutCollector(envs, Player(TWO), 300, recorder=recorder) as collector:
        collector.rollout()
    assert saved() == ["render_0.gif"]
    assert greys("renders/misc/render_0.gif") == [step % 256 for step in range(300)]
    with Image.open("renders/misc/render_0.gif") as film:
        assert film.info["duration"] == 100


def test_steps_that_look_the_same_have_frames_of_their_own():
    class Still(FilmEnv):
        def step(self, action):
            obs, _, *others = super().step(action)
            return obs, 0.0, *others

        def render(self):
            return np.full(self.size, 7, np.uint8)

    with SyncVecEnv(Still, 1, 4, Player(TWO), render_every=1000) as envs:
        envs.rollout()
    with Image.open("renders/misc/render_0.gif") as film:
        assert film.n_frames == 4


def test_frames_are_the_pictures_wherever_they_differ():
    random = np.random.default_rng(0)
    pictures = [np.zeros((30, 40, 3), np.uint8)]
    for _ in range(5):
        picture = pictures[-1].copy()
        y, x = random.integers(0, 20, 2)
        picture[y : y + 9, x : x + 7] = random.integers(0, 256, 3)
        pictures.append(picture)
    film = gif.GifWriter(30)
    for picture in [*pictures, pictures[0]]:
        film.add(Image.fromarray(picture))
    film.save(Path("film.gif"))
    with Image.open("film.gif") as saved_film:
        assert saved_film.n_frames == film.count == 7
        for number, picture in enumerate([*pictures, pictures[0]]):
            saved_film.seek(number)
            assert np.array_equal(np.asarray(saved_film.convert("RGB")), picture)


@pytest.mark.parametrize(
    ("frame", "shown"),
    [
        ([[0.0, 0.5, 1.0]], [0, 128, 255]),
        ([[False, True]], [0, 255]),
        ([[0.0, 1.0, 254.0]], [0, 1, 254]),
        ([[0, 1]], [0, 1]),
    ],
)
def test_floats_up_to_one_and_booleans_are_shown_as_brightness(frame, shown):
    assert np.asarray(image_of(frame))[0, :, 0].tolist() == shown


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        ([[0, 256]], "int64 from 0 to 256"),
        ([[-1.0, 1.0]], "float64 from -1.0 to 1.0"),
        ([[np.nan, 1.0]], "float64 from nan to nan"),
    ],
)
def test_frames_with_other_values_are_refused(frame, said):
    with pytest.raises(ValueError, match=f"expected values from 0 to 255, .*, got {said}"):
        image_of(frame)


@pytest.mark.parametrize("size", [(20, 30, 3), (20, 30, 4), (20, 30), (84, 84, 3)])
def test_pictures_of_any_kind_are_recorded(size):
    with RolloutCollector(
        DummyVecEnv([partial(FilmEnv, 4, size)]), Player(TWO), 4, recorder=GifRecorder(1)
    ) as collector:
        collector.rollout()
    with Image.open("renders/misc/render_0.gif") as gif:
        assert gif.size == size[1::-1]


@pytest.mark.parametrize("size", [(20,), (20, 30, 7)])
def test_what_is_no_picture_is_an_error_that_says_what_to_do(size):
    envs = DummyVecEnv([partial(FilmEnv, 4, size)])
    with (
        RolloutCollector(envs, Player(TWO), 4, recorder=GifRecorder(1)) as collector,
        pytest.raises(ValueError, match="render_mode='rgb_array'"),
    ):
        collector.rollout()


def test_a_real_environment_is_recorded_from_a_worker():
    pytest.importorskip("pygame")
    envs = SyncVecEnv(
        partial(Gym_Env, "CartPole-v1", render_mode="rgb_array"),
        2,
        100,
        agent=Player(TWO),
        backend="subproc",
        context="forkserver",
        render_every=1000,
        seed=0,
    )
    with envs:
        envs.rollout()
    with Image.open("renders/misc/render_0.gif") as gif:
        assert gif.size == (600, 400)
        assert gif.n_frames == envs.rolling_ep_lengths[0][0]


def test_environments_that_do_not_render_say_so():
    envs = DummyVecEnv_Gym([partial(Gym_Env, "CartPole-v1")])
    with (
        RolloutCollector(envs, Player(TWO), 4, recorder=GifRecorder(1)) as collector,
        pytest.raises(Exception, match="render_mode='rgb_array'"),
    ):
        collector.rollout()


# --- the folder ---------------------------------------------------------------------------------


def with_wandb(monkeypatch, run):
    module = types.ModuleType("wandb")
    module.run = run
    monkeypatch.setitem(sys.modules, "wandb", module)


def run_of(**attributes):
    return types.SimpleNamespace(**attributes)


@pytest.mark.parametrize("wandb", ["absent", "inactive"])
def test_without_an_active_run_recordings_go_to_misc(monkeypatch, wandb):
    if wandb == "inactive":
        with_wandb(monkeypatch, None)
    else:
        monkeypatch.setitem(sys.modules, "wandb", None)  # to import it would raise
    with make(render_every=1) as envs:
        assert envs.render_folder == "renders/misc"
        envs.rollout()
    assert saved() == ["render_0.gif"]


def test_with_an_active_run_recordings_go_to_its_folder(monkeypatch):
    with_wandb(monkeypatch, run_of(project="balance", name="fiery-sun-3"))
    with make(render_every=1, steps=8) as envs:
        assert envs.render_folder == "renders/balance/fiery-sun-3"
        envs.rollout()
    assert saved("renders/balance/fiery-sun-3") == ["render_0.gif", "render_1.gif"]
    assert not Path("renders/misc").exists()


@pytest.mark.parametrize(
    ("attributes", "folder"),
    [
        ({"project": "p", "name": None, "id": "a1b2"}, "renders/p/a1b2"),
        ({"project": None, "name": "n"}, "renders/uncategorized/n"),
        ({"project": "../up", "name": "a/b: c"}, "renders/-up/a-b- c"),
        ({"project": "..", "name": ""}, "renders/unnamed/unnamed"),
    ],
)
def test_names_of_runs_are_made_names_of_folders(monkeypatch, attributes, folder):
    with_wandb(monkeypatch, run_of(**attributes))
    with make() as envs:
        assert envs.render_folder == folder


def test_a_folder_of_its_own_comes_before_that_of_a_run(monkeypatch):
    with_wandb(monkeypatch, run_of(project="p", name="n"))
    recorder = GifRecorder(1, folder=Path("films"))
    with RolloutCollector(DummyVecEnv([FilmEnv]), Player(TWO), 4, recorder=recorder) as collector:
        assert collector.render_folder == "films"
        collector.rollout()
    assert saved("films") == ["render_0.gif"]
    assert recorder.paths == [Path("films/render_0.gif")]
