"""Starting a game over from a saved state changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

ale_py = pytest.importorskip("ale_py")
pytest.importorskip("cv2")

from ale_py import roms

from xuance_envs import Atari_Env
from xuance_envs.gym.atari_fast_reset import FastReset, serialized, state_after_reset


def state_of(game: str, mode: int | None = None, difficulty: int | None = None) -> bytes | None:
    return state_after_reset(str(roms.get_rom_path(game)), mode, difficulty)


def play(env: Atari_Env, steps: int) -> tuple[list[Any], int]:
    """Everything that is to be seen in so many random steps, and the games that ended."""
    seen, ends = [], 0
    rng = np.random.default_rng(1)

    def see(observation: Any, *rest: Any) -> None:
        seen.append((np.asarray(observation).tobytes(), env.render().tobytes(), rest))

    see(*env.reset())
    for _ in range(steps):
        observation, *rest = env.step(rng.integers(env.action_space.n))
        see(observation, *rest)
        if rest[1] or rest[2]:
            ends += rest[-1]["game_over"]
            see(*env.reset())
    return seen, ends


@pytest.mark.parametrize(
    ("game", "kwargs"),
    [
        ("Breakout", {}),
        ("Breakout", {"repeat_action_probability": 0.0, "obs_type": "ram", "fire_on_reset": False}),
        ("Breakout", {"repeat_action_probability": 0.8, "mode": 4, "difficulty": 1}),
        ("Breakout", {"repeat_action_probability": 0.95, "max_num_frames_per_episode": 400}),
        ("SpaceInvaders", {"max_num_frames_per_episode": 400}),
        ("Seaquest", {"max_num_frames_per_episode": 400}),
    ],
)
def test_a_game_goes_as_after_a_reset(
    game: str, kwargs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    restored = 0
    restore = FastReset.restore

    def counted(start: FastReset) -> bool:
        nonlocal restored
        was_possible = restore(start)
        restored += was_possible
        return was_possible

    monkeypatch.setattr(FastReset, "restore", counted)
    quick, ends = play(Atari_Env(game, 7, image_size=84, **kwargs), 250)
    monkeypatch.setattr(FastReset, "restore", lambda start: False)
    assert quick == play(Atari_Env(game, 7, image_size=84, **kwargs), 250)[0]
    is_known = kwargs.get("repeat_action_probability") != 0.95 and game in (
        "Breakout",
        "SpaceInvaders",
    )
    assert (restored > 0) == is_known
    assert ends or "max_num_frames_per_episode" in kwargs


def test_games_that_do_not_always_begin_alike_are_left_alone() -> None:
    # The timer's first value shows in one, what the last game left in memory in the other; and of
    # the third a saved state does not hold everything.
    assert [state_of(game) for game in ("beam_rider", "seaquest", "qbert")] == [None] * 3


def test_modes_have_states_of_their_own() -> None:
    states = {state_of("breakout"), state_of("breakout", 4), state_of("breakout", 0, 1)}
    assert len(states) == 3


def test_a_game_that_goes_on_is_not_touched() -> None:
    env = Atari_Env("Breakout", 0, noop_max=0)
    env.reset()
    before = serialized(env._ale.cloneState())
    assert not env._fresh_start.restore()
    assert serialized(env._ale.cloneState()) == before


def test_a_mode_set_on_the_emulator_itself_counts() -> None:
    env = Atari_Env("Breakout", 0, max_num_frames_per_episode=50)
    env.reset()
    while not env.was_real_done:
        env.step(0)
    env._ale.setMode(4)
    assert not env._fresh_start.restore()


@pytest.mark.long
def test_no_game_is_taken_to_begin_alike_that_does_not() -> None:
    """Every game of ale-py, its second and third start after real games."""
    trusted = 0
    for game in roms.get_all_rom_ids():
        if game in ("combat", "joust", "maze_craze", "warlords"):  # for two players only
            continue
        state = state_of(game)
        if state is None:
            continue
        trusted += 1
        assert trace(game, None) == trace(game, state), game
    assert trusted > 20


def trace(game: str, state: bytes | None) -> list[bytes]:
    """What three games show, each begun by a reset or, but for the first, from a state."""
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.setInt("random_seed", 1)
    ale.loadROM(roms.get_rom_path(game))
    rng = np.random.default_rng(0)
    actions = ale.getMinimalActionSet()
    seen = []
    for number in range(3):
        if state is None or number == 0:
            ale.reset_game()
        else:
            ale.restoreState(ale_py.ALEState(state))
        for _ in range(200):
            action = actions[rng.integers(len(actions))]
            reward = sum(ale.act(action) for _ in range(4))
            seen += [ale.getScreen().tobytes(), ale.getRAM().tobytes(), b"%d" % reward]
    return seen
