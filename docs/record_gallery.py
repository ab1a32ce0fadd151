"""Record the GIFs of the gallery with the package's recorder.

    python docs/record_gallery.py [NAME ...]

The policies are short hand-written rules. The script needs the extras ``atari``, ``mujoco``,
``multi-objective`` and ``torch``, and ``gymnasium[box2d,classic-control]``. MuJoCo without a
display needs OSMesa (``apt-get install libosmesa6``) and the variable ``MUJOCO_GL=osmesa``.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from xuance_envs import Atari_Env, Gym_Env
from xuance_envs.rollout import GifRecorder
from xuance_envs.rollout.recorder import image_of

FOLDER = Path(__file__).parent / "_static" / "gallery"
HEIGHT = 160
LARGEST = 150_000
"""Maximum size of a GIF in bytes."""

Player = Callable[[Any, Any, int], Any]
"""Policy: returns an action for the environment, its last observation and the step number."""


@dataclass(frozen=True)
class Film:
    """Recording settings of one environment."""

    env_id: str
    play: Player
    steps: int = 300
    every: int = 4
    """Steps per frame."""
    fps: float = 15.0
    seed: int = 1

    @property
    def path(self) -> Path:
        name = self.env_id.rpartition("/")[2].rpartition(":")[2]
        return FOLDER / f"{name.rpartition('-')[0].lower()}.gif"

    def make(self) -> Any:
        if self.env_id.startswith("ALE/"):
            return Atari_Env(
                self.env_id, seed=self.seed, obs_type="ram", terminal_on_life_loss=False
            )
        # The checker would warn about vector rewards.
        options: Any = {"render_mode": "rgb_array", "disable_env_checker": True}
        return Gym_Env(self.env_id, seed=self.seed, **options)


# --- policies -------------------------------------------------------------------------------------


def balance(env: Any, state: Any, step: int) -> int:
    """Push the cart under the pole."""
    return int(state[2] + 0.5 * state[3] + 0.02 * state[0] + 0.05 * state[1] > 0)


def swing(env: Any, state: Any, step: int) -> int:
    """Push in the direction of motion."""
    return 2 if state[1] > 0 else 0


def pump(env: Any, state: Any, step: int) -> Any:
    """Add energy while the pendulum hangs, and hold it when it is upright."""
    cos, sin, speed = state
    angle = math.atan2(sin, cos)
    torque = -12 * angle - 3 * speed if cos > 0.8 else 2 * np.sign(speed or 1.0)
    return np.clip([torque], -2, 2).astype(np.float32)


def land(env: Any, state: Any, step: int) -> int:
    """Land with the heuristic in Gymnasium's source."""
    from gymnasium.envs.box2d.lunar_lander import heuristic

    return int(heuristic(env.unwrapped, state))


def wander(env: Any, state: Any, step: int) -> Any:
    """Take random actions, each for six steps."""
    if step % 6 == 0:
        env.wandering = env.action_space.sample()
    return env.wandering


def stroll(env: Any, state: Any, step: int) -> Any:
    """Take random actions with less force."""
    return 0.4 * wander(env, state, step)


def wave(env: Any, state: Any, step: int) -> Any:
    """Move all joints in waves with shifted phases."""
    joints = np.arange(env.action_space.shape[0])
    return np.sin(0.55 * step + 1.2 * joints).astype(np.float32)


def dive(env: Any, state: Any, step: int) -> int:
    """Go right to the most valuable treasure's column, then down."""
    return 3 if state[1] < 10 else 1


def follow(ball: int, paddle: int, more: str, less: str) -> Player:
    """Move the paddle to the ball; arguments are their addresses in RAM."""

    def play(env: Any, state: Any, step: int) -> int:
        memory = np.asarray(state)[-128:].astype(int)
        meanings = env.unwrapped.get_action_meanings()
        if step % 40 == 0:
            return int(meanings.index("FIRE"))
        off = memory[ball] - memory[paddle]
        return int(meanings.index("NOOP" if abs(off) < 3 else more if off > 0 else less))

    return play


FILMS = [
    Film("CartPole-v1", balance, steps=200, fps=12.5),
    Film("MountainCar-v0", swing, steps=200, fps=12.5),
    Film("Pendulum-v1", pump, steps=150, every=3, seed=4),
    Film("LunarLander-v3", land, steps=320, every=5),
    Film("BipedalWalker-v3", wander, steps=160),
    Film("ALE/Breakout-v5", follow(99, 72, "RIGHT", "LEFT"), steps=200, every=2),
    Film("ALE/Pong-v5", follow(54, 51, "LEFT", "RIGHT"), steps=200, every=2),
    Film("HalfCheetah-v5", wave, steps=100, every=4, fps=5),
    Film("Ant-v5", stroll, steps=100, every=4, fps=5),
    Film("mo_gymnasium:deep-sea-treasure-v0", dive, steps=20, every=3, fps=3),
]


# --- recording ------------------------------------------------------------------------------------


def small(frame: Any) -> Any:
    """Scale a frame down to the height in the gallery."""
    image = image_of(frame)
    width = round(image.width * HEIGHT / image.height)
    return np.asarray(image.resize((width, HEIGHT), Image.Resampling.BOX))


def record(film: Film, path: Path) -> None:
    """Record one GIF."""
    env = film.make()
    state, _ = env.reset()
    with tempfile.TemporaryDirectory() as folder:
        recorder = GifRecorder(render_every=1, fps=film.fps, folder=folder)
        recorder.begin(global_steps=0)
        for step in range(film.steps):
            if step % film.every == 0:
                recorder.before_step(lambda: small(env.render()))
            state, reward, terminated, truncated, _ = env.step(film.play(env, state, step))
            finished = terminated or truncated or step == film.steps - 1
            recorder.after_step(np.round(reward, 1), finished, step)
            if finished:
                break
        env.close()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(recorder.paths[0].read_bytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = {film.path.stem: film for film in FILMS}
    parser.add_argument("name", nargs="*", choices=[[], *names], help="default: all")
    for name in parser.parse_args().name or names:
        film = names[name]
        record(film, film.path)
        size = film.path.stat().st_size
        print(f"{film.path.name}: {size:,} bytes" + (" (too large)" if size > LARGEST else ""))


if __name__ == "__main__":
    main()
