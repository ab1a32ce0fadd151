"""Reference implementation of Atari games, which reads every frame and caches nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ale_py
import cv2
import gymnasium
import numpy as np
from numpy.typing import NDArray

NOOP, FIRE = ale_py.Action.NOOP, ale_py.Action.FIRE


@dataclass
class PlainAtari:
    """The specified behavior of `Atari_Env`, with the same arguments."""

    game: str
    seed: int
    obs_type: str = "grayscale"
    frame_skip: Any = 4
    num_stack: int = 4
    image_size: tuple[int, int] | None = (84, 84)
    noop_max: int = 30
    max_pool: bool = True
    fire_on_reset: bool = True
    terminal_on_life_loss: bool = True
    clip_reward: bool = True
    truncate_on_game_over: bool = True
    repeat_action_probability: float = 0.25
    max_num_frames_per_episode: int = 108_000
    mode: int | None = None
    difficulty: int | None = None

    def __post_init__(self) -> None:
        self.env: Any = gymnasium.make(
            f"ALE/{self.game}-v5",
            frameskip=1,
            repeat_action_probability=self.repeat_action_probability,
            max_num_frames_per_episode=self.max_num_frames_per_episode,
            mode=self.mode,
            difficulty=self.difficulty,
        ).unwrapped
        self.ale = self.env.ale
        self.actions = self.env._action_set
        self.life_lost = False
        self.stack: list[NDArray[np.uint8]] = []
        self.reset(seed=self.seed)

    def screen(self) -> NDArray[np.uint8]:
        if self.obs_type == "ram":
            return self.ale.getRAM()
        return (
            self.ale.getScreenRGB()
            if self.obs_type == "rgb"
            else self.ale.getScreenGrayscale()[..., None]
        )

    def scaled(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if self.obs_type == "ram" or self.image_size is None:
            return image
        height, width = self.image_size
        small = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
        return small.reshape(height, width, -1)

    def observation(self) -> NDArray[np.uint8]:
        return np.concatenate(self.stack, axis=-1)

    def info(self) -> dict[str, Any]:
        return {
            "episode_step": self.steps,
            "episode_score": self.score,
            "lives": self.ale.lives(),
            "game_over": self.ale.game_over(with_truncation=False),
            "frame_number": self.ale.getFrameNumber(),
        }

    def skip(self) -> int:
        if isinstance(self.frame_skip, int):
            return self.frame_skip
        return int(self.env.np_random.integers(*self.frame_skip))

    def reset(self, seed: int | None = None) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        if self.life_lost and seed is None:
            self.life_lost = False
            image, _ = self.emulate(NOOP)
            if not self.ale.game_over():
                self.stack = [image] * self.num_stack
                return self.observation(), self.info()
        self.life_lost = False
        while True:
            self.env.reset(seed=seed)
            seed = None
            for _ in range(self.env.np_random.integers(self.noop_max + 1) if self.noop_max else 0):
                self.ale.act(NOOP)
            if self.fire_on_reset and FIRE in self.ale.getMinimalActionSet():
                for _ in range(self.skip()):
                    self.ale.act(FIRE)
            if not self.ale.game_over():
                break
        self.steps, self.score = 0, 0.0
        self.stack = [self.scaled(self.screen())] * self.num_stack
        return self.observation(), self.info()

    def emulate(self, action: Any) -> tuple[NDArray[np.uint8], int]:
        screens, reward = [], 0
        for _ in range(self.skip()):
            reward += self.ale.act(action)
            screens.append(self.screen())
            if self.ale.game_over():
                break
        pooled = self.max_pool and self.obs_type != "ram"
        image = np.max(screens[-2:], axis=0) if pooled else screens[-1]
        return self.scaled(image), reward

    def step(self, action: int) -> tuple[Any, ...]:
        lives = self.ale.lives()
        image, reward = self.emulate(self.actions[action])
        self.stack = [*self.stack[1:], image]
        self.steps += 1
        self.score += reward
        over, limit = self.ale.game_over(with_truncation=False), self.ale.game_truncated()
        lost = self.terminal_on_life_loss and self.ale.lives() < lives
        self.life_lost = lost and not over and not limit
        truncated = limit or (over and self.truncate_on_game_over)
        shown = float(np.sign(reward)) if self.clip_reward else float(reward)
        return self.observation(), shown, over or lost, truncated, self.info()
