"""States of Atari's games, loaded into emulators with each kind of history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
from comparing import assert_same

from xuance_envs import Atari_Env, DummyVecEnv
from xuance_envs.state.checkpointer import EnvCheckpointer
from xuance_envs.state.recorders import record

ale_py = pytest.importorskip("ale_py")

gymnasium.register_envs(ale_py)

GAMES = {spec.kwargs["game"] for spec in gymnasium.registry.values() if spec.namespace == "ALE"}
OTHERS = sorted(GAMES - {"qbert"})
STEPS = 12
ACTIONS = 3  # that every game has


HISTORIES = ("never reset", "reset", "stepped", "loaded")


def make(game: str, stickiness: float, **options: Any) -> Any:
    from ale_py.env import AtariEnv

    env = AtariEnv(
        game,
        obs_type="ram",
        frameskip=2,
        repeat_action_probability=stickiness,
        full_action_space=True,
        **options,
    )
    record(env)
    return env


def run(env: Any, actions: Any) -> list[Any]:
    seen: list[Any] = []
    for action in actions:
        seen.append(env.step(action))
        if seen[-1][2] or seen[-1][3]:
            seen.append(env.reset())
    return [*seen, env.ale.getScreenRGB()]


def load(env: Any, data: bytes) -> None:
    EnvCheckpointer(env).prepare(data, trusted=False).apply()


def bring(target: Any, history: str, rng: Any) -> None:
    """Gives an emulator a history: whether it was reset, has acted, or was loaded before."""
    if history != "never reset":
        target.reset(seed=7 if history == "loaded" else None)  # a seed loads the game again
    if history == "stepped":
        run(target, rng.integers(ACTIONS, size=20))
    if history == "loaded":
        load(target, EnvCheckpointer(target).save())


def check_game(
    game: str,
    stickiness: float,
    options: dict[str, Any],
    steps: Sequence[int] = (0, 1, 17),
    histories: Sequence[str] = HISTORIES,
) -> None:
    """Save after each number of steps, and load into emulators with each history."""
    source = target = make(game, stickiness, **options)
    rng = np.random.default_rng(1)
    source.reset(seed=1)
    for before in steps:
        run(source, rng.integers(ACTIONS, size=before))
        data = EnvCheckpointer(source).save()
        actions = rng.integers(ACTIONS, size=STEPS)
        expected = run(source, actions)
        for history in histories:
            if history == "never reset":
                target = make(game, stickiness, **options)
            bring(target, history, rng)
            for _ in range(2 if history == "loaded" else 1):
                load(target, data)
            where = f"{game}, saved after {before} steps, loaded when {history}"
            assert_same(run(target, actions), expected, where)


VARIANTS = [
    (0.0, {}),
    (0.25, {}),
    (0.25, {"max_num_frames_per_episode": 5000}),
]


# Each load of a game takes as long as some hundred steps, so all histories are long.
@pytest.mark.parametrize(
    ("game", "variant", "histories"),
    [("qbert", 1, HISTORIES[:2]), ("qbert", 0, HISTORIES[1:3]), ("breakout", 2, HISTORIES[2:])],
)
def test_a_game_goes_on_exactly(game: str, variant: int, histories: Sequence[str]) -> None:
    check_game(game, *VARIANTS[variant], (0, 17), histories)


def test_a_mode_that_a_reset_selects_in_frames_goes_on_exactly() -> None:
    check_game("space_invaders", 0.0, {"mode": 5}, (17,), HISTORIES[1:])


@pytest.mark.long
@pytest.mark.parametrize(
    ("game", "variant"),
    [
        *((game, k % len(VARIANTS)) for k, game in enumerate(OTHERS)),
        *(("qbert", k) for k in range(len(VARIANTS))),
    ],
)
def test_every_game_goes_on_exactly(game: str, variant: int) -> None:
    check_game(game, *VARIANTS[variant])


@pytest.mark.parametrize("stickiness", [0.0, 0.25])
def test_qbert_goes_on_in_a_vec_env_that_was_not_stepped(stickiness: float) -> None:
    def game() -> Any:
        return Atari_Env("Qbert", image_size=20, repeat_action_probability=stickiness)

    with DummyVecEnv([game]) as one, DummyVecEnv([game]) as other:
        one.reset(seed=1)
        for _ in range(5):
            one.step([1])
        state = one.save_state()
        expected = [one.step([k % 6]) for k in range(30)]
        other.reset(seed=2)
        for _ in range(2):
            other.load_state(state)
            assert_same([other.step([k % 6])[:4] for k in range(30)], [e[:4] for e in expected])
            other.reset(seed=3)
